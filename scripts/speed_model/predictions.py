"""What the model says of products, of a layer for one token, and of a prompt."""

from collections.abc import Callable
from dataclasses import dataclass

from .cards import Card
from .kernels import (
    LEVELS,
    Attention,
    Compiled,
    NoImage,
    Product,
    Tiles,
    argmax_seconds,
    attend_seconds,
    matmul_seconds,
    matvec_seconds,
)

Find = Callable[[str, str], Compiled]  # a kernel for a target

# Large launches: 16 matrices of Mixtral's shape, as `examples/bandwidth.rs` has them.
LARGE = (14336, 4096, 16)
# Levels, and whether planes P3 and P4 are apart, which concerns two.
FORMS = [("2", False), ("3", False), ("3", True), ("4", False), ("4", True), ("6", False), ("8", False)]

# Kernels of a layer that are a chain of loads in a block or a few: estimates for an H100 that were made by reading
# the source, microseconds, for every card.
TAKEN_OVER = {
    "rms_norm_quantize, twice": 8.6,
    "rope": 2.2,
    "kv_store": 2.0,
    "attend_merge": 2.4,
    "quantize": 1.6,
    "router (matvec_float)": 8.0,
    "route": 5.5,
    "expert_blocks": 3.0,
    "experts_sum": 1.8,
}
LAUNCHES = 15
# What a block of `argmax` looks at where a row has several.
ARGMAX_PART_COLUMNS = 4096


@dataclass(frozen=True)
class Shape:
    """A mixture of experts, one token at a time."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    experts: int
    per_token: int
    layers: int
    vocabulary: int


QWEN3 = Shape("Qwen3-30B-A3B", 2048, 32, 4, 128, 768, 128, 8, 48, 151936)


def shares(find: Find, card: Card, kernel: str = "matvec_nested", large=LARGE) -> dict[tuple[str, bool], float]:
    """Of the card's bandwidth, by level and planes, for a large launch."""
    rows, cols, matrices = large
    found = {}
    for level, is_apart in FORMS:
        product = Product(kernel, level, is_apart, rows, cols, matrices)
        seconds = matvec_seconds(find(kernel, card.target), card, product)
        found[level, is_apart] = product.bytes / seconds / card.bandwidth
    return found


def layer(find: Find, card: Card, shape: Shape = QWEN3, context: int = 1024) -> dict[str, float]:
    """Microseconds of every kernel of one layer for one token."""

    def product(kernel: str, level: str, rows: int, cols: int, matrices: int = 1) -> float:
        work = Product(kernel, level, False, rows, cols, matrices, is_cold=True)
        return 1e6 * matvec_seconds(find(kernel, card.target), card, work)

    attended = shape.heads * shape.head_dim
    splits = -(-context // 256)
    attention = Attention(shape.heads // shape.kv_heads, shape.head_dim, min(4, context // 64), shape.kv_heads * splits)
    found = {
        "qkv, level 6": product("matvec_nested", "6", attended + 2 * shape.kv_heads * shape.head_dim, shape.hidden),
        "attend_split": 1e6 * attend_seconds(find("attend_split_f16", card.target), card, attention),
        "o, level 6": product("matvec_nested", "6", shape.hidden, attended),
        "gate, up and join, level 4": product(
            "matvec_gated_quantize", "4", shape.inner, shape.hidden, 2 * shape.per_token
        ),
        "down, level 4": product("matvec_nested", "4", shape.hidden, shape.inner, shape.per_token),
    }
    found |= TAKEN_OVER
    found[f"{LAUNCHES} gaps"] = LAUNCHES * card.gap
    return found


def argmax(find: Find, card: Card, shape: Shape = QWEN3) -> float:
    """Of a row of logits: by one block, or by a block for each part and one more."""
    first = find("argmax", card.target)
    try:
        merge = find("argmax_merge", card.target)
    except NoImage:
        return 1e6 * argmax_seconds(first, card, shape.vocabulary)
    parts = -(-shape.vocabulary // ARGMAX_PART_COLUMNS)
    return 1e6 * (argmax_seconds(first, card, ARGMAX_PART_COLUMNS) + argmax_seconds(merge, card, parts)) + card.gap


def head(find: Find, card: Card, shape: Shape = QWEN3) -> float:
    work = Product("matvec_nested", "6", False, shape.vocabulary, shape.hidden, 1)
    return 1e6 * matvec_seconds(find("matvec_nested", card.target), card, work)


def floor(card: Card, shape: Shape = QWEN3) -> float:
    """Microseconds that a layer's bytes take at the full bandwidth, without keys and values."""
    attended, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    parts = [
        Product("", "6", False, attended + 2 * kv, shape.hidden),
        Product("", "6", False, shape.hidden, attended),
        Product("", "4", False, shape.inner, shape.hidden, 2 * shape.per_token),
        Product("", "4", False, shape.hidden, shape.inner, shape.per_token),
    ]
    return 1e6 * sum(part.bytes for part in parts) / card.bandwidth


def tensor_shares(find: Find, card: Card, pairs: int) -> dict[str, float]:
    """Of the card's int8 rate, by level, for large products of so many rows of activations a block."""
    found = {}
    for level in LEVELS:
        work = Tiles(level, 16384, 2048, pairs, 8)
        seconds = matmul_seconds(find("matmul_nested", card.target), card, work)
        found[level] = 2 * work.rows * work.cols * pairs * work.matrices / seconds / (card.int8_tops * 1e12)
    return found


def prompt_layer(find: Find, card: Card, tokens: int = 512, shape: Shape = QWEN3) -> dict[str, float]:
    """Microseconds of the products and the attention of one layer for a prompt."""
    attended, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    pairs = max(1, tokens * shape.per_token // shape.experts)

    def product(level: str, rows: int, cols: int, pairs: int, matrices: int = 1) -> float:
        work = Tiles(level, rows, cols, pairs, matrices)
        return 1e6 * matmul_seconds(find("matmul_nested", card.target), card, work)

    # Rows see half of the prompt on average.
    attention = Attention(
        shape.heads // shape.kv_heads, shape.head_dim, -(-(tokens // 2 + 32) // 64), shape.kv_heads * tokens
    )
    return {
        "qkv": product("6", attended + 2 * kv, shape.hidden, tokens),
        "attention": 1e6 * attend_seconds(find("attend_f16", card.target), card, attention),
        "o": product("6", shape.hidden, attended, tokens),
        "gate and up": product("4", shape.inner, shape.hidden, pairs, 2 * shape.experts),
        "down": product("4", shape.hidden, shape.inner, pairs, shape.experts),
    }
