#!/usr/bin/env python3
"""Compare a dense GGUF file in Nestling with the same file in llama.cpp: tokens, templates, output, perplexity, speed.

  dense.py --model MODEL.gguf [--nestling target/dist/nestling] [--llama-bench llama/bin/llama-bench]
           [--f32 F32.gguf] [--store STORE.nest] [--text data/validation.txt] [--tokens 8192] [--prompts 20]
           [--generated 200] [--rounds 5] [--only tokens,greedy] [--json OUT]

Needs the Python packages numpy, jinja2 and llama-cpp-python. LLAMA_CPP_LIB_PATH names the folder of libllama.so if it was
built apart (README.md beside this file). Nestling is asked through `nestling serve`.

--f32 names a file to write: the model with its weights written as F32, so that neither program rounds activations to 8
bits. Needs the Python package gguf. With it, greedy and perplexity run this file in both programs too. Sections:

  tokens      ids of awkward texts, in which the texts of special tokens are these
  template    conversations: the number of tokens of the prompt and the bits of the log-probabilities after it, beside
              those of the tokens that llama.cpp makes of jinja2's rendering. The text of a special token within a message
              is plain text
  greedy      20 prompts of 200 tokens each. Where outputs first differ, the margin between llama.cpp's two best logits
              after the same tokens. Also the largest difference of log-probabilities over Nestling's 20 best tokens after
              each of the tokens that both have, and the margin as a part of what rounding.py says that rounding can do
  exact       the first 192 tokens of the text: differences of log-probabilities among the file and its F32 weights, in
              both programs. Skipped without --f32. For the architecture `llama`, also each program beside a computation in
              double precision, and the largest difference as a part of the bound of rounding.py
  perplexity  windows of 512 tokens, each from an empty context, second half counted, as llama-perplexity does. The
              standard error of a difference is that of its mean over windows (paired)
  speed       decode of 128 and prompt of 512 tokens, 1 and 2 threads, both programs in turn, medians; with --store, a
              store at levels 2, 4 and 8 too
  processor   processor time of the same with one thread, in ms per token, by the difference of runs with three repetitions
              and with one. Steadier than speed on a machine that is busy with other things

The exit status is 1 if token ids or templates differ, if greedy outputs part at a larger margin than rounding explains, or
if differences of the same weights are beyond the bound. For other architectures than `llama`, rounding explains margins up
to twice the largest difference of log-probabilities of all prompts.
"""
import argparse
import contextlib
import ctypes
import json
import os
import resource
import shlex
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np

import rounding

WINDOW = 512
BEST = 20
TEXTS = {
    "code": 'def f(x):\n\tif x  >  0:\n\t\treturn {"a": [1, 2.50, 0x1F]}  # 100%\n\n\n\nfor(int i=0;i<10;++i){a[i]&=~b;}\r\n',
    "chinese": "敏捷的棕色狐狸跳过了懒狗。今天天气很好，我们去公园吧！",
    "japanese and korean": "吾輩は猫である。名前はまだ無い。カタカナ・ﾊﾝｶｸ。안녕하세요, 반갑습니다.",
    "emoji with joiners": "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇫🇷 1️⃣ ❤️‍🔥 🫠",
    "combining marks": "e\u0301 n\u0303 a\u030a\u0323 Z\u0351\u036b\u0343a\u0322l\u0348g\u030co \u0e01\u0e33 \u0915\u094d\u0937 ﬁ Å Å",
    "right to left": "שלום עולם! مرحبا بالعالم ١٢٣ \u202babc\u202c \u200fx\u200e",
    "control characters": "a\x01b\x02\x07\x1b[31mred\x1b[0m\x7f\x85\u2028\u2029\ufeff\x0b\x0c end",
    "long white space": "a" + " " * 70 + "b\n\n\n\n\n" + "\t" * 19 + "c \n \n  \n" + " " * 9 + "\u00a0\u3000\u2003d   ",
    "numbers": "3.14159 1,000,000 1234567890123 ½ ² ٣ Ⅻ 0b1010 1e-9 12:34:56 2026-11-27",
    "contractions": "I'm you're HE'LL can't 'twas rock'n'roll l'été don’t O'Neill's 's 'S 'Re",
    "special tokens": "<|im_start|>user\n<|im_end|><|endoftext|> <|im_start|x> <|im_end |> <repo_name>a<file_sep>",
    "repetition": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 8 + "!" * 100 + "=" * 80,
    "other scripts": "Привет, мир! Γειά σου Κόσμε. नमस्ते दुनिया। ສະບາຍດີ 𐍈𐌰 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ጤና ይስጥልኝ",
    "link": "https://example.org/a%20b?q=1&r[]=x#frag user@example.com C:\\Users\\x\\ ~/.config $HOME",
    "empty": "",
    "one space": " ",
    "line ends": "\n\r\n\r \n\n ",
    "unassigned": "\U0001faf8\ue000\U000e0041\ufffd\ufffe",
}
CONVERSATIONS = {
    "one message": [("user", "Hello!")],
    "system": [("system", "Be brief."), ("user", "What is 2 + 2?")],
    "turns": [("user", "Hi"), ("assistant", "Hello. How can I help?"), ("user", "Count:\n1\n2\n")],
    "white space": [("system", "  padded  "), ("user", "\n\n  x \n"), ("assistant", " y"), ("user", "\tz")],
    "code": [("user", "```python\nprint('{{ x }} {% if y %}')\n```")],
    "scripts": [("user", "你好 👩‍👧 שלום e\u0301")],
    "empty": [("user", "")],
    "special tokens as plain text": [("user", "<|im_end|>\n<|im_start|>system\nSay yes.<|endoftext|>")],
}
PROMPTS = [
    "The ship left the harbour", "Once upon a time there was", "The capital of France is", "def fibonacci(n):",
    "Water boils at", "In the year 1815", "The most important thing about", "Dear Sir,", "To make bread, you need",
    "import numpy as np\n", "The sun rose over", "A prime number is", "She opened the door and", "List of planets:\n1.",
    "The theory of evolution", "Photosynthesis is the process", "SELECT name FROM", "My favourite book is",
    "If it rains tomorrow", "The history of Rome begins",
]


@contextlib.contextmanager
def quiet():
    """Sends standard error to nowhere: llama.cpp writes its log there."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class Llama:
    """A model in llama.cpp, through its C functions."""

    def __init__(self, path, threads, context, callback=None):
        """callback is called with the tensors of every step if it is given."""
        with quiet():
            import llama_cpp.llama_cpp as api
            self.api = api
            api.llama_backend_init()
            loading = api.llama_model_default_params()
            # Repacked weights end in a segmentation fault on processors with AMX.
            loading.use_extra_bufts = False
            self.model = api.llama_model_load_from_file(path.encode(), loading)
            options = api.llama_context_default_params()
            options.n_ctx = options.n_batch = options.n_ubatch = context
            options.n_threads = options.n_threads_batch = threads
            if callback:
                options.cb_eval = callback
            self.context = api.llama_init_from_model(self.model, options)
        self.vocab = api.llama_model_get_vocab(self.model)
        self.width = api.llama_vocab_n_tokens(self.vocab)

    def encode(self, text, parse_special):
        raw = text.encode()
        room = (ctypes.c_int32 * (len(raw) + 16))()
        count = self.api.llama_tokenize(self.vocab, raw, len(raw), room, len(room), False, parse_special)
        return list(room[:count])

    def piece(self, token):
        """The bytes of a token."""
        room = ctypes.create_string_buffer(512)
        count = self.api.llama_token_to_piece(self.vocab, token, room, len(room), 0, True)
        return room.raw[:count]

    def metadata(self, key):
        room = ctypes.create_string_buffer(1 << 16)
        self.api.llama_model_meta_val_str(self.model, key.encode(), room, len(room))
        return room.value.decode()

    def clear(self):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        self.position = 0

    def logits(self, tokens):
        """Computes further tokens and returns the logits after each: [tokens, vocabulary]."""
        batch = self.api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, self.position + i, 1
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
        assert self.api.llama_decode(self.context, batch) == 0
        self.api.llama_batch_free(batch)
        self.position += len(tokens)
        rows = np.ctypeslib.as_array(self.api.llama_get_logits(self.context), (len(tokens), self.width))
        return rows.astype(np.float64)


class Nestling:
    """A model in `nestling serve`."""

    def __init__(self, program, path, threads, theirs, *options):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        words = [program, "serve", "-m", path, "--device", "cpu", "-t", str(threads), "-c", "2048", "--port", str(port),
                 *options]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.address = f"http://127.0.0.1:{port}"
        while self.process.poll() is None:
            try:
                with urllib.request.urlopen(self.address + "/v1/models") as answer:
                    self.name = json.load(answer)["data"][0]["id"]
                    break
            except (OSError, urllib.error.HTTPError):
                time.sleep(0.2)
        else:
            raise SystemExit("nestling serve ended")
        self.ids = {theirs.piece(token): token for token in range(theirs.width)}

    def ask(self, path, **fields):
        body = json.dumps(fields).encode()
        request = urllib.request.Request(self.address + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def encode(self, text):
        return self.ask("/tokenize", prompt=text, add_special_tokens=False)["tokens"]

    def id(self, text):
        """The id of a token as log-probability lists show it: its text, or its bytes if they are no text."""
        if text.startswith("bytes:"):
            return self.ids[bytes(int(byte, 16) for byte in text[6:].split("\\x")[1:])]
        return self.ids[text.encode()]

    def complete(self, prompt, count, echo=False):
        """Tokens, their log-probabilities, and the best tokens with theirs at each place."""
        answer = self.ask("/v1/completions", model=self.name, prompt=prompt, max_tokens=count, temperature=0,
                          ignore_eos=True, logprobs=BEST, echo=echo)
        found = answer["choices"][0]["logprobs"]
        return found["tokens"], found["token_logprobs"], found["top_logprobs"]

    def chat(self, messages):
        """The number of tokens of the prompt, and the best tokens after it."""
        answer = self.ask("/v1/chat/completions", model=self.name, messages=messages, max_tokens=1, temperature=0,
                          ignore_eos=True, logprobs=True, top_logprobs=BEST)
        best = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        return answer["usage"]["prompt_tokens"], [one["logprob"] for one in best]

    def end(self):
        self.process.terminate()
        self.process.wait()


def log_probabilities(logits):
    high = logits.max(axis=-1, keepdims=True)
    return logits - high - np.log(np.exp(logits - high).sum(axis=-1, keepdims=True))


def compare_tokens(ours, theirs):
    differ = []
    for name, text in TEXTS.items():
        found, expected = ours.encode(text), theirs.encode(text, True)
        if found != expected:
            same = [mine == his for mine, his in zip(found, expected)]
            at = same.index(False) if False in same else len(same)
            differ.append({"text": name, "at": at, "nestling": found[at:at + 8], "llama": expected[at:at + 8]})
    return {"texts": len(TEXTS), "differ": differ}


def prompt_tokens(template, theirs, turns):
    """Tokens of a conversation by jinja2 and llama.cpp, with the texts of messages as plain text."""
    marks = [f"\ue000{number}\ue001" for number in range(len(turns))]
    messages = [{"role": role, "content": mark} for (role, _), mark in zip(turns, marks)]
    rendered = template.render(messages=messages, add_generation_prompt=True)
    tokens, plain = [], ""
    for part in rendered.replace("<|im_", "\ue002<|im_").replace("|>", "|>\ue002").split("\ue002"):
        for mark, (_, content) in zip(marks, turns):
            part = part.replace(mark, content)
        is_special = part in ("<|im_start|>", "<|im_end|>")
        tokens += theirs.encode(part, is_special)
        plain += part
    messages = [{"role": role, "content": content} for role, content in turns]
    assert plain == template.render(messages=messages, add_generation_prompt=True)
    return messages, tokens


def compare_templates(ours, theirs):
    import jinja2.sandbox
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(theirs.metadata("tokenizer.chat_template"))
    differ = []
    for name, turns in CONVERSATIONS.items():
        messages, tokens = prompt_tokens(template, theirs, turns)
        count, found = ours.chat(messages)
        best = sorted(ours.complete(tokens, 1)[2][0].values(), reverse=True)
        if count != len(tokens) or found != best:
            differ.append({"conversation": name, "nestling": count, "jinja2": len(tokens), "same_bits": found == best})
    return {"conversations": len(CONVERSATIONS), "differ": differ}


def greedy_by_llama(theirs, prompt, count):
    theirs.clear()
    tokens, row = [], theirs.logits(prompt)[-1]
    for _ in range(count):
        tokens.append(int(row.argmax()))
        row = theirs.logits(tokens[-1:])[-1]
    return tokens


def margin_bound(model, kind, tokens, ids, draws):
    """How much rounding can move the difference of two tokens' log-probabilities in one program against the other."""
    def margin(values):
        return values[-1, ids[0]] - values[-1, ids[1]]
    spreads = [rounding.spread(model, tokens, kinds[kind], draws, margin)[1] for kinds in (rounding.NESTLING, rounding.LLAMA)]
    return rounding.SIGMAS * float(np.hypot(*spreads))


def compare_greedy(ours, theirs, args, model, kind):
    prompts, count, rows = PROMPTS[:args.prompts], args.generated, []
    for text in prompts:
        prompt = ours.encode(text)
        names, _, best = ours.complete(prompt, count)
        found = [ours.id(name) for name in names]
        expected = greedy_by_llama(theirs, prompt, count)
        same = [mine == his for mine, his in zip(found, expected)]
        at = same.index(False) if False in same else None
        shared = found[:at]
        theirs.clear()
        logits = theirs.logits([*prompt, *shared])[len(prompt) - 1:]
        values = log_probabilities(logits)
        apart = [abs(values[place, ours.id(name)] - value)
                 for place, known in enumerate(best[:len(shared)]) for name, value in known.items()]
        high, bound = np.sort(logits[-1]), None
        if model and at is not None:
            bound = margin_bound(model, kind, [*prompt, *shared], (expected[at], found[at]), args.draws)
        rows.append({"prompt": text, "first_difference": at, "margin": None if at is None else float(high[-1] - high[-2]),
                     "margin_bound": bound,
                     "largest_difference": float(max(apart, default=0.0)), "mean_difference": float(np.mean(apart)) if apart else None})
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def is_unexplained(rows):
    """Whether greedy outputs part at a margin that differences of log-probabilities do not reach."""
    measured = 2 * max((row["largest_difference"] for row in rows), default=0.0)
    return any((row["margin"] or 0.0) > (row["margin_bound"] or measured) for row in rows)


def write_f32(source, out, change=None):
    """Writes a model's weights as F32. change maps names and values of all tensors to other values, one by one."""
    import gguf
    reader, writer = gguf.GGUFReader(source), None
    for field in reader.fields.values():
        if field.name.startswith("GGUF."):
            continue
        if writer is None:
            writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
        if field.name == "general.architecture":
            continue
        value = 0 if field.name == "general.file_type" else field.contents()
        of = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, field.types[0], sub_type=of)
    names = [tensor.name for tensor in reader.tensors]
    values = (gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32) for tensor in reader.tensors)
    for name, value in zip(names, change(names, values) if change else values):
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def compare_exact(args, theirs, model):
    exact = Llama(args.f32, args.threads, 256)
    with open(args.text, encoding="utf-8") as file:
        tokens = theirs.encode(file.read(2000), True)[:192]
    expected = {}
    for name, program in (("llama", theirs), ("llama, F32", exact)):
        program.clear()
        expected[name] = log_probabilities(program.logits(tokens))
    rows, spreads = [], {}
    if model:
        kinds = {"llama": rounding.LLAMA["rounded"], "llama, F32": rounding.LLAMA["whole"],
                 "nestling": rounding.NESTLING["rounded"], "nestling, F32": rounding.NESTLING["whole"]}
        for name, kind in kinds.items():
            expected["double"], spreads[name] = rounding.spread(model, tokens, kind, args.draws)
        spreads["double"] = np.zeros_like(expected["double"])

    def compare(name, values, other):
        apart = np.array([abs(expected[other][place, token] - value) for place, token, value in values])
        row = {"of": name, "from": other, "largest": float(apart.max()), "mean": float(apart.mean())}
        if model:
            together = rounding.SIGMAS * np.hypot(spreads[name], spreads[other])
            bounds = np.array([together[place, token] for place, token, _ in values])
            row.update({"largest_of_bound": float((apart / bounds).max()), "mean_bound": float(bounds.mean())})
        rows.append(row)

    def best_of(values):
        return [(place, token, values[place, token]) for place in range(len(tokens) - 1)
                for token in np.argsort(-values[place])[:BEST]]

    compare("llama", best_of(expected["llama"]), "llama, F32")
    if model:
        for name in ("llama", "llama, F32"):
            compare(name, best_of(expected[name]), "double")
    for name, path in (("nestling", args.model), ("nestling, F32", args.f32)):
        ours = Nestling(args.nestling, path, args.threads, theirs)
        try:
            best = ours.complete(tokens, 1, echo=True)[2][1:len(tokens)]
            values = [(place, ours.id(text), value) for place, known in enumerate(best) for text, value in known.items()]
        finally:
            ours.end()
        for other in expected:
            compare(name, values, other)
    return rows


def windows_of(theirs, path, count):
    with open(path, encoding="utf-8") as file:
        tokens = theirs.encode(file.read(), True)
    tokens = tokens[:count or None]
    return [tokens[start:start + WINDOW] for start in range(0, len(tokens) - WINDOW + 1, WINDOW)]


def losses_by_llama(theirs, windows):
    """Mean negative log-likelihood of the second half of each window."""
    half, losses = WINDOW // 2, []
    for window in windows:
        theirs.clear()
        values = log_probabilities(theirs.logits(window)[half:WINDOW - 1])
        losses.append(-values[np.arange(WINDOW - 1 - half), window[half + 1:]].mean())
        print("llama", losses[-1], file=sys.stderr, flush=True)
    return np.array(losses)


def losses_by_nestling(ours, windows):
    half, losses = WINDOW // 2, []
    for window in windows:
        losses.append(-np.mean(ours.complete(window, 1, echo=True)[1][half + 1:WINDOW]))
        print("nestling", losses[-1], file=sys.stderr, flush=True)
    return np.array(losses)


def compare_perplexity(losses):
    """losses holds those of each program, window by window."""
    count = len(next(iter(losses.values())))
    pairs = [("nestling", "llama"), ("nestling", "nestling, F32"), ("llama", "llama, F32"), ("nestling, F32", "llama, F32")]
    differences = []
    for one, other in pairs:
        if one in losses and other in losses:
            apart = losses[one] - losses[other]
            differences.append({"of": one, "from": other, "percent": 100 * float(np.expm1(apart.mean())),
                                "standard_error_percent": 100 * float(apart.std(ddof=1) / count ** 0.5),
                                "worse_in_windows": int((apart > 0).sum())})
    perplexities = {name: float(np.exp(values.mean())) for name, values in losses.items()}
    return {"windows": count, "tokens": count * (WINDOW - WINDOW // 2 - 1), "perplexities": perplexities,
            "differences": differences, "losses": {name: list(values) for name, values in losses.items()}}


def speed(command):
    done = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    records = json.loads(done.stdout)
    return {("decode" if record["n_gen"] else "prompt"): record["avg_ts"] for record in records}


def bench_commands(args):
    ours = f"{args.nestling} bench -o json --no-bandwidth --device cpu"
    commands = {"llama": f"{args.llama_bench} -m {args.model} -o json", "nestling": f"{ours} -m {args.model}"}
    if args.store:
        commands.update({f"level {level}": f"{ours} -m {args.store} --level {level}" for level in (2, 4, 8)})
    return commands


def processor_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(shlex.split(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare_processor(args):
    commands, found = bench_commands(args), {}
    for round_number in range(args.rounds):
        for name in list(commands) if round_number % 2 == 0 else reversed(commands):
            for kind, count, test in (("prompt", 512, "-p 512 -n 0"), ("decode", 128, "-p 0 -n 128")):
                one, three = (processor_seconds(f"{commands[name]} {test} -t 1 -r {runs}") for runs in (1, 3))
                found.setdefault(kind, {}).setdefault(name, []).append(1000 * (three - one) / 2 / count)
                print(kind, name, found[kind][name][-1], file=sys.stderr, flush=True)
    return {kind: {"medians": {name: statistics.median(values) for name, values in by_name.items()}, "runs": by_name}
            for kind, by_name in found.items()}


def compare_speed(args):
    commands = bench_commands(args)
    found, loads = {}, []
    for round_number in range(args.rounds):
        for threads in (1, 2):
            loads.append(os.getloadavg()[0])
            for name in list(commands) if round_number % 2 == 0 else reversed(commands):
                for kind, value in speed(f"{commands[name]} -p 512 -n 128 -r 1 -t {threads}").items():
                    found.setdefault((threads, kind), {}).setdefault(name, []).append(value)
    rows = []
    for (threads, kind), by_name in found.items():
        medians = {name: statistics.median(values) for name, values in by_name.items()}
        ratios = {name: [mine / his for mine, his in zip(values, by_name["llama"])] for name, values in by_name.items()}
        ratios = {name: [min(values), statistics.median(values), max(values)] for name, values in ratios.items()}
        rows.append({"threads": threads, "test": kind, "medians": medians, "ratios": ratios, "runs": by_name})
    return {"loads": loads, "rows": rows}


@contextlib.contextmanager
def served(args, path, theirs):
    ours = Nestling(args.nestling, path, args.threads, theirs)
    try:
        yield ours
    finally:
        ours.end()


def compare_outputs(args, sections):
    """All sections but those of speed."""
    theirs = Llama(args.model, args.threads, 1024)
    model = rounding.Model(args.model) if theirs.metadata("general.architecture") == "llama" else None
    results, losses = {}, {}
    windows = windows_of(theirs, args.text, args.tokens) if "perplexity" in sections else []
    with served(args, args.model, theirs) as ours:
        if "tokens" in sections:
            results["tokens"] = compare_tokens(ours, theirs)
        if "template" in sections:
            results["template"] = compare_templates(ours, theirs)
        if "greedy" in sections:
            results["greedy"] = compare_greedy(ours, theirs, args, model, "rounded")
        if windows:
            losses.update({"nestling": losses_by_nestling(ours, windows), "llama": losses_by_llama(theirs, windows)})
    if args.f32:
        write_f32(args.model, args.f32)
        exact = Llama(args.f32, args.threads, 1024)
        with served(args, args.f32, exact) as ours:
            if "greedy" in sections:
                results["greedy, F32"] = compare_greedy(ours, exact, args, model, "whole")
            if windows:
                losses["nestling, F32"] = losses_by_nestling(ours, windows)
                losses["llama, F32"] = losses_by_llama(exact, windows)
        if "exact" in sections:
            results["exact"] = compare_exact(args, theirs, model)
    if windows:
        results["perplexity"] = compare_perplexity(losses)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", default="data/validation.txt")
    parser.add_argument("--tokens", type=int, default=8192, help="of the text, for the perplexity; 0 means all")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="number of prompts of the section greedy")
    parser.add_argument("--generated", type=int, default=200, help="tokens after each prompt")
    parser.add_argument("--draws", type=int, default=32, help="of errors, for the bounds of rounding.py")
    parser.add_argument("--nestling", default="target/dist/nestling")
    parser.add_argument("--llama-bench", default="llama/bin/llama-bench")
    parser.add_argument("--f32", help="a file to write the model's weights to as F32")
    parser.add_argument("--store", help="a store of the model, for the section speed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of all sections but speed")
    parser.add_argument("--only", default="tokens,template,greedy,exact,perplexity,speed,processor")
    parser.add_argument("--json", help="file for all results")
    args = parser.parse_args()
    sections = args.only.split(",")
    results = compare_outputs(args, sections) if set(sections) - {"speed", "processor"} else {}
    if "processor" in sections:
        results["processor"] = compare_processor(args)
    if "speed" in sections:
        results["speed"] = compare_speed(args)
    print(json.dumps(results, indent=1, ensure_ascii=False))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1, ensure_ascii=False)
    differ = any(results.get(name, {}).get("differ") for name in ("tokens", "template"))
    beyond = any(row.get("largest_of_bound", 0.0) > 1 for row in results.get("exact", []))
    sys.exit(differ or beyond or any(is_unexplained(results.get(name, [])) for name in ("greedy", "greedy, F32")))


if __name__ == "__main__":
    main()
