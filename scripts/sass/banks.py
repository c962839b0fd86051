"""How often lanes of a warp meet in a bank of shared memory, by the address formulas of the hot kernels.

An access names the text of the kernel that its formula repeats, and takes numbers from there: a change of the text is
noticed, and so is one that makes lanes meet more often than `most` says.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent.parent / "kernels" / "cu"
LANES = 32
BANKS = 32
WORD_BYTES = 4
# Draws of random codes, from one seed: figures are the same on every machine.
DRAWS = 4000
SEED = 1


def passes_of(addresses: list[int], size: int) -> int:
    banks: dict[int, set[int]] = {}
    for address in addresses:
        for word in range(address // WORD_BYTES, (address + size - 1) // WORD_BYTES + 1):
            banks.setdefault(word % BANKS, set()).add(word)
    return max((len(words) for words in banks.values()), default=0)


def wavefronts(addresses: list[int], size: int) -> int:
    """Passes that one access of a warp takes: `size` bytes a lane at these addresses."""
    together = passes_of(addresses, size)
    if together == 1:
        return 1
    # 8 bytes a lane go by half a warp, 16 by a quarter.
    lanes = {8: LANES // 2, 16: LANES // 4}.get(size, LANES)
    return sum(passes_of(addresses[first : first + lanes], size) for first in range(0, len(addresses), lanes))


class Constants:
    """Numbers that a kernel's text defines, by name, with what they are made of put in."""

    def __init__(self, *files: str):
        self.text = "\n".join((KERNELS / file).read_text() for file in files)

    def __getitem__(self, name: str) -> int:
        found = re.search(rf"^#define {name} (.+?)\s*$", self.text, re.MULTILINE)
        if not found:
            raise KeyError(f"{name} is not defined")
        body = re.sub(r"\b([A-Z][A-Z_]+)\b", lambda other: str(self[other[1]]), found[1])
        body = re.sub(r"(?<=\d)u\b", "", body)
        if not re.fullmatch(r"[\d+*/() -]+", body):
            raise ValueError(f"{name} is not a number: {body}")
        return int(eval(body.replace("/", "//")))  # noqa: S307: digits and operators alone


@dataclass(frozen=True)
class Access:
    name: str
    file: str
    texts: tuple[str, ...]  # what the formula repeats
    most: float  # passes of a warp, on average
    passes: Callable[[], float]


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def lookups(codes: int) -> Callable[[], float]:
    """Codes of weights in a table of 16-bit digits that lies several times. Codes are a bell, six standard
    deviations wide; were they all as likely, passes would be 2.99 at level 6 and 3.22 at level 8."""

    def passes() -> float:
        copies = Constants("nested.cuh")["FINE_COPIES"]
        draw = random.Random(SEED)
        total = 0
        for _ in range(DRAWS):
            bell = [min(codes - 1, max(0, int(draw.gauss(codes / 2, codes / 6)))) for _ in range(LANES)]
            total += wavefronts([2 * (code * copies + lane % copies) for lane, code in enumerate(bell)], 2)
        return total / DRAWS

    return passes


def fixed(size: int, address: Callable[[int], int]) -> Callable[[], float]:
    return lambda: float(wavefronts([address(lane) for lane in range(LANES)], size))


def matmul_x(lane: int) -> int:
    return 4 * ((lane // 4) * Constants("nested.cuh", "matmul.cuh")["X_STRIDE"] + lane % 4)


def matmul_x_stored(lane: int) -> int:
    numbers = Constants("nested.cuh", "matmul.cuh")
    words = 8 * numbers["MATMUL_GROUPS"]
    return 4 * (lane // (words // 4) * numbers["X_STRIDE"] + lane % (words // 4) * 4)


def matmul_scales_stored(lane: int) -> int:
    numbers = Constants("nested.cuh", "matmul.cuh")
    return 4 * (lane % numbers["MATMUL_GROUPS"] * numbers["MATMUL_PAIRS"] + lane // numbers["MATMUL_GROUPS"])


def matvec_part(lane: int) -> int:
    vector, quad = lane // 4 % 2, lane % 4
    return 8 * ((lane // 8) * 16 + 4 * quad + 2 * vector)


def gathered(each: int) -> Callable[[int], int]:
    return lambda lane: 4 * each * lane


FINE_TEXTS = (
    "u16 digits[256 * FINE_COPIES];",
    "u32 copy = lane_of_thread() % FINE_COPIES;",
    "table.digits[(codes & 0xff) * FINE_COPIES + copy]",
)
GATHERED_TEXTS = (
    "float* gathered = block.gathered + (first + h) * params.value_dim + word * each;",
    "gathered[i] = fused(gathered[i], factors.x, sums[h][i] * factors.y);",
)
FLOAT_TEXTS = (
    "float weights[ROWS][COLS];",
    "u32 own = threadIdx.x / 16, lane = threadIdx.x % 16;",
    "float weight = shared.weights[own][col];",
)

ACCESSES = [
    Access("level 6: digits of a code", "nested.cuh", FINE_TEXTS, 2.8, lookups(64)),
    Access("level 8: digits of a code", "nested.cuh", FINE_TEXTS, 3.19, lookups(256)),
    Access(
        "matvec: parts of a row are stored",
        "matvec.cuh",
        (
            "float2 parts[PAIRS][CELLS][16];",
            "u32 row = 4 * quad + 2 * vector;",
            "float2* part = &shared.parts[r][place][row];",
            "place = warp * 4 + lane / 8;",
        ),
        4,
        fixed(16, matvec_part),
    ),
    Access(
        "matvec: parts of a row are added up",
        "matvec.cuh",
        ("u32 part = thread / 16, row = thread % 16;", "float2 next = parts[group][row];"),
        2,
        # Tiles lie behind one another, a whole number of 128 bytes apart.
        fixed(8, lambda lane: lane // 16 * 128 * 8 + lane % 16 * 8),
    ),
    Access(
        "matmul: activations for mma",
        "matmul.cuh",
        ("u32 x[MATMUL_PAIRS][X_STRIDE];", "&shared.x[8 * n + lane / 4][8 * group + lane % 4];"),
        1,
        fixed(4, matmul_x),
    ),
    Access(
        "matmul: activations are brought",
        "matmul.cuh",
        (
            "u32 row = at / (words / 4), word = at % (words / 4) * 4;",
            "*reinterpret_cast<uint4*>(&shared.x[row][word]) = value;",
        ),
        4,
        fixed(16, matmul_x_stored),
    ),
    Access(
        "matmul: scales of activations are brought",
        "matmul.cuh",
        (
            "float x_scales[MATMUL_GROUPS][MATMUL_PAIRS];",
            "u32 row = at / MATMUL_GROUPS, group = at % MATMUL_GROUPS;",
        ),
        4,
        fixed(4, matmul_scales_stored),
    ),
    Access(
        "matmul: scales of activations",
        "matmul.cuh",
        ("shared.x_scales[group][8 * n + 2 * (lane % 4) + i % 2];",),
        1,
        fixed(4, lambda lane: 4 * (2 * (lane % 4))),
    ),
    Access(
        "attention: a score is stored",
        "attend.cuh",
        ("float weights[HEADS_MAX][PAGE_POSITIONS];", "shared.weights[first + h][position] = is_seen"),
        1,
        fixed(4, lambda lane: 4 * lane),
    ),
    Access(
        "attention: elements of a query",
        "attend.cuh",
        ("const float* query = block.queries + (first + h) * params.head_dim + word * each;",),
        1,
        # One word of all positions: every lane reads the same.
        fixed(16, lambda _: 0),
    ),
    Access(
        "attention: weight of a position",
        "attend.cuh",
        ("float weight = shared.weights[first + h][position];",),
        1,
        fixed(4, lambda _: 0),
    ),
    Access("attention, f32: what was gathered", "attend.cuh", GATHERED_TEXTS, 1, fixed(4, gathered(1))),
    Access("attention, f16: what was gathered", "attend.cuh", GATHERED_TEXTS, 2, fixed(4, gathered(2))),
    Access("attention, int8: what was gathered", "attend.cuh", GATHERED_TEXTS, 4, fixed(4, gathered(4))),
    Access(
        "router: weights of two rows",
        "matvec_float.cu",
        FLOAT_TEXTS,
        2,
        fixed(4, lambda lane: 4 * (lane // 16 * Constants("matvec_float.cu")["COLS"] + lane % 16)),
    ),
]


def faults(accesses: list[Access] = ACCESSES) -> list[str]:
    """Formulas whose kernel reads otherwise by now, and accesses that meet more often than they may."""
    found = []
    for access in accesses:
        text = squeezed((KERNELS / access.file).read_text())
        missing = [line for line in access.texts if squeezed(line) not in text]
        if missing:
            found += [f"{access.name}: {access.file} has no longer: {line}" for line in missing]
            continue
        passes = access.passes()
        if passes > access.most:
            found.append(f"{access.name}: {passes:.2f} passes of a warp, at most {access.most:g} before")
    return found


def table(accesses: list[Access] = ACCESSES) -> str:
    lines = ["| access | passes of a warp |", "|---|---:|"]
    return "\n".join(lines + [f"| {access.name} | {access.passes():.2f} |" for access in accesses])
