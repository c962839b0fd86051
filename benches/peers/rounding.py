"""How far two programs may be apart because they round: a dense model of the architecture `llama` in double precision,
computed once as it is and often with every rounding of a program replaced by a random error of the same size.

Rounding errors are taken as independent, zero on average and even over the interval of the rounding, as in
N. J. Higham and T. Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41 (2019).
Nothing here is fitted to what the programs compute. `SIGMAS` root mean squares bound a value: under a normal distribution
one in 5e8 lies beyond. The root mean square of n draws is itself uncertain by 1 / sqrt(2 n).
"""
import dataclasses

import numpy as np

SIGMAS = 6
HALF = 2.0 ** -11  # of a value in binary16: largest relative error of a rounding
SINGLE = 2.0 ** -24  # in binary32
BLOCK = 32  # activations of one scale


@dataclasses.dataclass(frozen=True)
class Rounding:
    """What a program rounds besides results in binary32."""
    activations: bool  # to 8 bits, with a scale for each 32
    scales: bool = False  # of activations, to binary16
    queries: bool = False  # to binary16, and the running sums of values too


NESTLING = {"whole": Rounding(activations=False), "rounded": Rounding(activations=True)}
LLAMA = {"whole": Rounding(activations=False, queries=True),
         "rounded": Rounding(activations=True, scales=True, queries=True)}


class Errors:
    """Random errors of one draw."""

    def __init__(self, rounding, seed):
        self.rounding = rounding
        self.random = np.random.default_rng(seed)

    def relative(self, x, unit):
        return x * (1 + self.random.uniform(-unit, unit, x.shape))

    def activations(self, x):
        if not self.rounding.activations:
            return x
        blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
        steps = np.abs(blocks).max(axis=-1, keepdims=True) / 127
        rounded = blocks / np.where(steps > 0, steps, 1) + self.random.uniform(-0.5, 0.5, blocks.shape)
        if self.rounding.scales:
            steps = self.relative(steps, HALF)
        return (rounded * steps).reshape(x.shape)

    def product(self, matrix, x):
        """`x` times the transposed matrix; each of the n additions of a row rounds a sum of at most sum |w| |x|."""
        x = self.activations(x)
        sums = np.abs(x).astype(np.float32) @ matrix.magnitudes.T
        spread = sums * (SINGLE * (x.shape[-1] / 3) ** 0.5)
        return x @ matrix.values.T + self.random.standard_normal(sums.shape) * spread

    def float(self, x):
        return self.relative(x, SINGLE)

    def cached(self, x):
        return self.relative(x, HALF)

    def query(self, x):
        return self.relative(x, HALF) if self.rounding.queries else x

    def attended(self, x, spread):
        """`spread` is the root of the sum of squares of the running sums that lead to `x`."""
        if not self.rounding.queries:
            return x
        return x + self.random.standard_normal(x.shape) * spread * (HALF / 3 ** 0.5)


class Exact:
    """No errors."""

    def product(self, matrix, x):
        return x @ matrix.values.T

    def float(self, x):
        return x

    cached = query = float

    def attended(self, x, _):
        return x


class Matrix:
    def __init__(self, values):
        self.values = values.astype(np.float64)  # [outputs, inputs]
        self.magnitudes = np.abs(values).astype(np.float32)


class Model:
    """A dense GGUF file of the architecture `llama`, dequantized."""

    def __init__(self, path):
        import gguf
        reader = gguf.GGUFReader(path)
        fields = {name.split(".", 1)[1]: field.contents() for name, field in reader.fields.items() if name.startswith("llama.")}
        self.layers, self.eps = fields["block_count"], fields["attention.layer_norm_rms_epsilon"]
        self.heads, self.kv_heads = fields["attention.head_count"], fields["attention.head_count_kv"]
        self.theta = fields["rope.freq_base"]
        values = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
        self.weights = {name: Matrix(value) if value.ndim == 2 else value.astype(np.float64) for name, value in values.items()}
        self.spreads = {}

    def norm(self, errors, x, name):
        return errors.float(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps) * self.weights[name])

    def rope(self, errors, x):
        """Rotates pairs of neighbours, the order of this architecture in GGUF: [tokens, heads, head_dim]."""
        tokens, _, width = x.shape
        angles = np.arange(tokens)[:, None] * self.theta ** (-np.arange(0, width, 2) / width)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        even, odd = x[..., ::2], x[..., 1::2]
        return errors.float(np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape))

    def attention(self, errors, x, layer):
        tokens, of = len(x), f"blk.{layer}."
        query, key, value = (errors.product(self.weights[f"{of}attn_{name}.weight"], x) for name in "qkv")
        query = errors.query(self.rope(errors, query.reshape(tokens, self.heads, -1)))
        key = errors.cached(self.rope(errors, key.reshape(tokens, self.kv_heads, -1)))
        value = errors.cached(value.reshape(tokens, self.kv_heads, -1))
        group = self.heads // self.kv_heads
        key, value = key.repeat(group, axis=1).transpose(1, 0, 2), value.repeat(group, axis=1).transpose(1, 0, 2)
        scores = query.transpose(1, 0, 2) @ key.transpose(0, 2, 1) / query.shape[-1] ** 0.5
        scores = errors.float(scores) + np.triu(np.full((tokens, tokens), -np.inf), 1)
        weights = errors.float(np.exp(scores - scores.max(axis=-1, keepdims=True)))
        weights /= weights.sum(axis=-1, keepdims=True)
        out = weights @ value
        if isinstance(errors, Exact):
            self.spreads[layer] = self.running_sums(weights, value)
        out = errors.attended(out, self.spreads[layer]).transpose(1, 0, 2).reshape(tokens, -1)
        return errors.product(self.weights[of + "attn_output.weight"], out)

    @staticmethod
    def running_sums(weights, value):
        """Root of the sum of squares of the partial sums over positions: [heads, tokens, head_dim]."""
        spreads = np.empty((*weights.shape[:2], value.shape[-1]))
        for head, values in enumerate(value):
            for place, row in enumerate(weights[head]):
                sums = np.cumsum(row[:place + 1, None] * values[:place + 1], axis=0)
                spreads[head, place] = np.sqrt((sums * sums).sum(axis=0))
        return spreads

    def feed_forward(self, errors, x, layer):
        gate, up, down = (self.weights[f"blk.{layer}.ffn_{name}.weight"] for name in ("gate", "up", "down"))
        gate, up = errors.product(gate, x), errors.product(up, x)
        return errors.product(down, errors.float(gate / (1 + np.exp(-gate)) * up))

    def log_probabilities(self, errors, tokens):
        """After each token: [tokens, vocabulary]. The first call for a text is the exact one."""
        embedding = self.weights["token_embd.weight"]
        x = embedding.values[tokens]
        for layer in range(self.layers):
            x = errors.float(x + self.attention(errors, self.norm(errors, x, f"blk.{layer}.attn_norm.weight"), layer))
            x = errors.float(x + self.feed_forward(errors, self.norm(errors, x, f"blk.{layer}.ffn_norm.weight"), layer))
        head = self.weights.get("output.weight", embedding)
        logits = errors.product(head, self.norm(errors, x, "output_norm.weight"))
        logits -= logits.max(axis=-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def spread(model, tokens, rounding, draws, of=lambda values: values):
    """Exact `of(log-probabilities)`, and the root mean square of its errors over `draws` draws."""
    exact = of(model.log_probabilities(Exact(), tokens))
    squares = np.zeros_like(exact)
    for seed in range(draws):
        squares += (of(model.log_probabilities(Errors(rounding, seed), tokens)) - exact) ** 2
    return exact, np.sqrt(squares / draws)
