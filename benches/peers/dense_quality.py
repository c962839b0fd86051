#!/usr/bin/env python3
"""Compare a dense model's quantizations: divergence per byte of a Nestling store and of llama.cpp's types.

  dense_quality.py --model MODEL.gguf --work FOLDER [--nestling target/dist/nestling] [--chunks 200]
                   [--calibration apps/cli/data/calibration.txt] [--text data/validation.txt] [--tokens 8192]
                   [--levels 2,4] [--budgets 60MB] [--types Q2_K,Q4_K_M] [--joined IQ2_XS,Q4_K] [--json OUT]

The reference is the model with its weights written as F32, in llama.cpp. Both sides quantize it with the same part of the
calibration text: llama.cpp with an importance matrix, Nestling's store with activations; with --calibration none, from the
weights alone. Each runs in its own program, with
activations in 8 bits. Divergence is counted after each token of the second half of windows of 512 tokens, over 21 outcomes:
the 20 tokens that the quantized model finds best, and all others together. This is a lower bound of the whole divergence,
which is printed too where all logits are at hand. Standard errors are over windows.

  --levels   levels of the store
  --budgets  allocations of the store: values of --weight-budget
  --types    files as llama-quantize writes them. It replaces types with blocks of 256 where rows are no multiple of 256
  --joined   types that llama.cpp cannot use here, in all matrices of the layers: ggml_quantize_chunk on several rows joined.
             Decoded to F32, so activations are not rounded, and embedding and head are not quantized

Bits per weight count the matrices of the layers with all scales. llama.cpp is called through its C functions:
llama_model_quantize is what llama-quantize calls, and the importance matrix has the sums of llama-imatrix. Files in the
folder are kept and used again. Needs the Python packages numpy, gguf and llama-cpp-python; LLAMA_CPP_LIB_PATH as in dense.py.
"""
import argparse
import concurrent.futures
import ctypes
import json
import math
import os
import subprocess
import sys

import gguf
import numpy as np

from dense import BEST, WINDOW, Llama, Nestling, log_probabilities, quiet, windows_of, write_f32

CHUNK = 512
# GGML_OP_MUL_MAT is looked up by its name.
PRODUCT = b"MUL_MAT"


class Tensor(ctypes.Structure):
    """ggml_tensor of ggml.h, as far as its name."""


Tensor._fields_ = [
    ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32), ("src", ctypes.POINTER(Tensor) * 10),
    ("view_src", ctypes.c_void_p), ("view_offs", ctypes.c_size_t), ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64),
]


class Sums:
    """Sums of squares of the inputs of each counted matrix, as llama-imatrix keeps them."""

    def __init__(self, ggml):
        self.name_of = ggml.ggml_op_name
        self.name_of.restype = ctypes.c_char_p
        self.sums = {}

    def see(self, pointer, is_question):
        tensor = ctypes.cast(pointer, ctypes.POINTER(Tensor)).contents
        if self.name_of(tensor.op) != PRODUCT:
            return False if is_question else True
        name = tensor.src[0].contents.name.decode()
        if not is_counted(name) or is_question:
            return is_counted(name) if is_question else True
        inputs = tensor.src[1].contents
        columns, rows = inputs.ne[0], inputs.ne[1]
        assert inputs.type == 0 and inputs.nb[1] == 4 * columns
        values = np.ctypeslib.as_array(ctypes.cast(inputs.data, ctypes.POINTER(ctypes.c_float)), (rows, columns))
        squares = np.square(values, dtype=np.float64).sum(axis=0)
        total, count = self.sums.get(name, (0.0, 0))
        self.sums[name] = (total + squares, count + rows)
        return True


def is_counted(name):
    return name.startswith("blk.") and name.endswith(".weight") and "norm" not in name


def run(*words):
    print(*words, file=sys.stderr, flush=True)
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True, text=True).stdout


def bits_of(path):
    """Bits per weight of the counted matrices, and the types that hold them with their shares of weights."""
    sizes, weights, types = 0, 0, {}
    for tensor in gguf.GGUFReader(path).tensors:
        if is_counted(tensor.name):
            sizes += int(tensor.n_bytes)
            weights += int(tensor.n_elements)
            types[tensor.tensor_type.name] = types.get(tensor.tensor_type.name, 0) + int(tensor.n_elements)
    return 8 * sizes / weights, {name: round(count / weights, 3) for name, count in types.items()}


class Reference:
    """Log-probabilities of the F32 model after each token of the second half of each window."""

    def __init__(self, args):
        model = Llama(args.f32, args.threads, WINDOW)
        self.windows = windows_of(model, args.text, args.tokens)
        self.rows, self.model = [], model
        for window in self.windows:
            self.rows.append(second_half(model, window).astype(np.float32))
        self.targets = [window[WINDOW // 2 + 1:] for window in self.windows]
        self.losses = [loss_of(rows, targets) for rows, targets in zip(self.rows, self.targets)]

    def row(self, name, bits, size, found, **more):
        """A result of tokens and log-probabilities of the best tokens, by window, [place, BEST], and losses."""
        values = []
        for rows, (tokens, best, _) in zip(self.rows, found):
            expected = np.take_along_axis(rows, tokens, 1).astype(np.float64)
            rest = [np.log(np.maximum(1 - np.exp(some).sum(axis=1), 1e-12)) for some in (expected, best)]
            values.append(((np.exp(expected) * (expected - best)).sum(axis=1) + np.exp(rest[0]) * (rest[0] - rest[1])).mean())
        apart = np.array([loss for _, _, loss in found]) - self.losses
        row = {"name": name, "bits": bits, "bytes": size, "kl": mean_of(values), "perplexity": mean_of(apart, percent=True), **more}
        print(row, file=sys.stderr, flush=True)
        return {**row, "kl_of_windows": values}


def mean_of(values, percent=False):
    """The mean over windows and its standard error; in percent of a ratio of perplexities if so asked."""
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5)
    return [100 * math.expm1(mean), 100 * error] if percent else [mean, error]


def loss_of(rows, targets):
    return -rows[np.arange(len(targets)), targets].mean()


def second_half(model, window):
    model.clear()
    return log_probabilities(model.logits(window)[WINDOW // 2:WINDOW - 1])


def by_llama(args, reference, path):
    """The best tokens, their log-probabilities and the loss of each window; and the mean of the whole divergence."""
    model, found, whole = Llama(path, args.threads, WINDOW), [], []
    for window, expected, targets in zip(reference.windows, reference.rows, reference.targets):
        rows = second_half(model, window)
        tokens = np.argpartition(-rows, BEST, axis=1)[:, :BEST]
        found.append((tokens, np.take_along_axis(rows, tokens, 1), loss_of(rows, targets)))
        whole.append((np.exp(expected) * (expected - rows)).sum(axis=1).mean())
    return found, mean_of(whole)


def by_nestling(args, reference, path, *options):
    ours, found = Nestling(args.nestling, path, args.threads, reference.model, *options), []
    try:
        for window in reference.windows:
            _, values, best = ours.complete(window, 1, echo=True)
            # A token that is none of the best ones is in the list too.
            best = [sorted(known.items(), key=lambda entry: -entry[1])[:BEST] for known in best[WINDOW // 2 + 1:WINDOW]]
            tokens = np.array([[ours.id(text) for text, _ in known] for known in best])
            found.append((tokens, np.array([[value for _, value in known] for known in best]), -np.mean(values[WINDOW // 2 + 1:WINDOW])))
    finally:
        ours.end()
    return found


def write_importance(args):
    """Runs the calibration text through the F32 model and writes the mean square of each input of each matrix."""
    import llama_cpp.llama_cpp as api
    sums = Sums(library("ggml-base"))
    callback = api.ggml_backend_sched_eval_callback(lambda pointer, is_question, _: sums.see(pointer, is_question))
    model = Llama(args.f32, args.threads, CHUNK, callback)
    with open(args.calibration, encoding="utf-8") as file:
        tokens = model.encode(file.read(), False)
    assert len(tokens) >= args.chunks * CHUNK
    for start in range(0, args.chunks * CHUNK, CHUNK):
        model.clear()
        model.logits(tokens[start:start + CHUNK])
    np.savez(args.importance, **{name: total / count for name, (total, count) in sums.sums.items()})


def library(name):
    import llama_cpp
    folder = os.environ.get("LLAMA_CPP_LIB_PATH") or os.path.join(os.path.dirname(llama_cpp.__file__), "lib")
    return ctypes.CDLL(os.path.join(folder, f"lib{name}.so"))


def write_type(args, path, name):
    """Writes what `llama-quantize --imatrix` would."""
    with quiet():
        import llama_cpp.llama_cpp as api
        weights = {} if args.calibration == "none" else np.load(args.importance)
        weights = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in weights.items()}
        entries = [api.llama_model_imatrix_data(name.encode(), values.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), values.size)
                   for name, values in weights.items()]
        entries = (api.llama_model_imatrix_data * (len(entries) + 1))(*entries)
        options = api.llama_model_quantize_default_params()
        options.nthread, options.ftype = args.threads, getattr(api, f"LLAMA_FTYPE_MOSTLY_{name}")
        if weights:
            options.imatrix = entries
        assert api.llama_model_quantize(args.f32.encode(), path.encode(), ctypes.byref(options)) == 0


def quantized(api, values, kind, weights):
    """The values of a matrix after ggml_quantize_chunk on joined rows, and the bytes of their blocks."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    joined = math.lcm(values.shape[1], block) // values.shape[1]
    assert values.shape[0] % joined == 0
    source = np.ascontiguousarray(values, dtype=np.float32)
    weights = None if weights is None else np.ascontiguousarray(np.tile(weights, joined), dtype=np.float32)
    out = np.zeros(values.size // block * size, dtype=np.uint8)
    rows, columns = values.shape[0] // joined, values.shape[1] * joined
    pointer = ctypes.POINTER(ctypes.c_float)
    written = api.ggml_quantize_chunk(int(kind), source.ctypes.data_as(pointer), out.ctypes.data_as(ctypes.c_void_p), 0, rows, columns,
                                      None if weights is None else weights.ctypes.data_as(pointer))
    assert written == len(out)
    return gguf.quants.dequantize(out.reshape(rows, -1), kind).reshape(values.shape), len(out)


def write_joined(args, name):
    """Writes the values that a type gives, as F32, and returns the file and its bits per weight."""
    path, notes = f"{args.work}/joined-{name}.gguf", f"{args.work}/joined-{name}.json"
    if not os.path.exists(notes):
        api = library("ggml-base")
        api.ggml_quantize_chunk.restype = ctypes.c_size_t
        api.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_int64,
                                            ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_float)]
        weights, types = {} if args.calibration == "none" else dict(np.load(args.importance)), gguf.GGMLQuantizationType
        total = {"bytes": 0, "weights": 0}

        def changed(tensor, values):
            if not is_counted(tensor):
                return values
            values, size = quantized(api, values, types[name], weights.get(tensor))
            total["bytes"] += size
            total["weights"] += values.size
            return values

        with concurrent.futures.ThreadPoolExecutor(args.threads) as pool:
            write_f32(args.f32, path, lambda names, all_values: pool.map(changed, names, all_values))
        with open(notes, "w", encoding="utf-8") as file:
            json.dump(8 * total["bytes"] / total["weights"], file)
    with open(notes, encoding="utf-8") as file:
        return path, json.load(file)


def prepare(args):
    """Writes the reference, the importance matrix and the store."""
    os.makedirs(args.work, exist_ok=True)
    args.f32, args.importance, args.store = f"{args.work}/f32.gguf", f"{args.work}/importance.npz", f"{args.work}/nested.nest"
    if not os.path.exists(args.f32):
        write_f32(args.model, args.f32)
    if args.calibration != "none" and not os.path.exists(args.importance):
        write_importance(args)
    if not os.path.exists(args.store):
        run(args.nestling, "convert", args.f32, "-o", args.store, "--calibration", args.calibration, "--calibration-tokens",
            str(args.chunks * CHUNK), "-t", str(args.threads))


def compare(args):
    reference, rows = Reference(args), []
    found, whole = by_llama(args, reference, args.model)
    rows.append(reference.row("the file, llama.cpp", bits_of(args.model)[0], os.path.getsize(args.model), found, whole=whole))
    rows.append(reference.row("the file, Nestling", bits_of(args.model)[0], os.path.getsize(args.model),
                              by_nestling(args, reference, args.model)))
    for name in args.types:
        path = f"{args.work}/{name}.gguf"
        if not os.path.exists(path):
            write_type(args, path, name)
        bits, types = bits_of(path)
        found, whole = by_llama(args, reference, path)
        rows.append(reference.row(name, bits, os.path.getsize(path), found, whole=whole, types=types))
    sizes = {level["level"]: level for level in json.loads(run(args.nestling, "inspect", args.store, "--json"))["levels"]}
    for level in args.levels:
        found = by_nestling(args, reference, args.store, "--level", str(level))
        rows.append(reference.row(f"level {level}", sizes[level]["bits_per_weight"], sizes[level]["bytes"], found))
    for budget in args.budgets:
        found = by_nestling(args, reference, args.store, "--weight-budget", budget)
        rows.append(reference.row(f"budget {budget}", None, None, found))
    for name in args.joined:
        path, bits = write_joined(args, name)
        found, whole = by_llama(args, reference, path)
        rows.append(reference.row(f"{name}, joined rows", bits, None, found, whole=whole))
    return {"windows": len(reference.windows), "reference_perplexity": math.exp(np.mean(reference.losses)), "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: [name for name in text.split(",") if name]
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", required=True, help="folder of all files that are made")
    parser.add_argument("--nestling", default="target/dist/nestling")
    parser.add_argument("--calibration", default="apps/cli/data/calibration.txt")
    parser.add_argument("--text", default="data/validation.txt")
    parser.add_argument("--chunks", type=int, default=200, help="chunks of 512 tokens of the calibration text")
    parser.add_argument("--tokens", type=int, default=8192, help="of the text; 0 means all")
    parser.add_argument("--types", type=names, default=names("IQ2_XS,Q2_K,IQ3_XXS,Q3_K_M,IQ4_XS,Q4_K_M,Q5_K_M,Q6_K"))
    parser.add_argument("--joined", type=names, default=names("IQ2_XS,Q2_K,IQ3_XXS,Q3_K,IQ4_XS,Q4_K,Q5_K,Q6_K"))
    parser.add_argument("--levels", type=lambda text: [int(one) for one in names(text)], default=[2, 3, 4, 6, 8])
    parser.add_argument("--budgets", type=names, default=[])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="file for all results")
    args = parser.parse_args()
    prepare(args)
    results = compare(args)
    print(json.dumps(results, indent=1))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
