#!/usr/bin/env python3
"""Time llama.cpp through its C functions, as llama-bench does, where only its libraries are at hand.

  llama_speed.py -m MODEL.gguf [-p 512] [-n 128] [-t 2] [-r 1] [-o json]

Prints the fields n_prompt, n_gen and avg_ts of llama-bench, so that it can stand for it: `dense.py --llama-bench
benches/peers/llama_speed.py`. Tokens are random. Every test starts from an empty context, after a run that is not counted.
Needs the Python packages numpy and llama-cpp-python; LLAMA_CPP_LIB_PATH as in dense.py.
"""
import argparse
import json
import random
import time

from dense import quiet


def timed(api, context, tokens, at_once):
    """Tokens per second of a run from an empty context, `at_once` tokens to a step."""
    memory = api.llama_get_memory(context)
    api.llama_memory_clear(memory, True)
    started = time.perf_counter()
    for start in range(0, len(tokens), at_once):
        part = (api.llama_token * at_once)(*tokens[start:start + at_once])
        assert api.llama_decode(context, api.llama_batch_get_one(part, at_once)) == 0
        api.llama_synchronize(context)
    return len(tokens) / (time.perf_counter() - started)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", required=True)
    parser.add_argument("-p", type=int, default=512)
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("-t", type=int, default=2)
    parser.add_argument("-r", type=int, default=1)
    parser.add_argument("-o", choices=["json"], default="json")
    args = parser.parse_args()
    with quiet():
        import llama_cpp.llama_cpp as api
        api.llama_backend_init()
        model = api.llama_model_load_from_file(args.m.encode(), api.llama_model_default_params())
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = max(args.p, args.n), 2048, 512
        options.n_threads = options.n_threads_batch = args.t
        context = api.llama_init_from_model(model, options)
    width = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    records = []
    for count, at_once in ((args.p, min(args.p, 512)), (args.n, 1)):
        if not count:
            continue
        tokens = [random.randrange(width) for _ in range(count)]
        # As llama-bench warms up: the whole prompt, or one token.
        timed(api, context, tokens[:at_once], at_once)
        speeds = [timed(api, context, tokens, at_once) for _ in range(args.r)]
        is_prompt = at_once > 1
        records.append({"n_prompt": count if is_prompt else 0, "n_gen": 0 if is_prompt else count, "avg_ts": sum(speeds) / args.r})
    print(json.dumps(records))


if __name__ == "__main__":
    main()
