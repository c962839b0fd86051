"""Programs of kernels, made of the paths of their machine code."""

import tempfile
from collections import deque
from dataclasses import dataclass, replace

from sass.budgets import Image
from sass.cubin import Control, Cubin, read_cubin
from sass.facts import LEVEL_OF_PLANES, kind_of, loop_facts, resources
from sass.flow import Block, Loop, by_table, loops_of, path_through
from sass.listing import Instruction, disassemble

from . import machine
from .cards import Card
from .machine import Where, wait

BARRIER = 25
EPILOGUE = 120
LEVELS = list(LEVEL_OF_PLANES.values())
# Passes of a look-up in shared memory; `sass.banks` reckons them.
PASSES = {"6": 2.78, "8": 3.17}


class NoImage(LookupError):
    """A kernel that was not compiled for a target."""


@dataclass
class Compiled:
    """A kernel's machine code, taken apart."""

    cubin: Cubin
    code: list[Instruction]
    controls: list[Control]
    blocks: dict[int, Block]
    loops: list[Loop]
    resources: dict[str, int]

    def path(self, loop: Loop, is_longest: bool) -> list[int]:
        return path_through(self.code, self.blocks, loop, is_longest)

    def of_kind(self, kind: str) -> list[Loop]:
        found = []
        for loop in self.loops:
            if loop.is_innermost:
                facts = loop_facts(self.code, self.controls, self.blocks, loop)
                if kind_of(facts, [self.code[place] for place in self.path(loop, False)]) == kind:
                    found.append(loop)
        return found

    def level(self, level: str) -> Loop:
        """The loop that decodes a level."""
        found = self.of_kind("level")
        planes = {LEVELS[self.weight_loads(loop) - 1]: loop for loop in found if self.weight_loads(loop)}
        if planes:
            return planes[level]
        facts = {loop.header: loop_facts(self.code, self.controls, self.blocks, loop) for loop in found}
        found.sort(key=lambda loop: (facts[loop.header]["tensor"], facts[loop.header]["instructions_apart"]))
        return found[LEVELS.index(level)]

    def weight_loads(self, loop: Loop) -> int:
        return sum(self.code[place].is_weight_load for place in self.path(loop, False))

    def steps(self, places: list[int], card: Card, where: Where) -> list[machine.Step]:
        return [machine.step_of(self.code[at], self.controls[at], card, where) for at in places]

    def way_to(self, loop: Loop) -> list[int]:
        """The fewest blocks from the kernel's beginning to a loop."""
        targets = by_table(self.code, self.cubin.jump_targets)
        before: dict[int, int | None] = {0: None}
        left = deque([0])
        while left:
            at = left.popleft()
            if at == loop.header:
                break
            is_table = self.code[self.blocks[at].end - 1].base == "BRX"
            for following in self.blocks[at].next + (targets if is_table else []):
                if following in self.blocks and following not in before:
                    before[following] = at
                    left.append(following)
        way, at = [], before.get(loop.header)
        while at is not None:
            way = [*range(self.blocks[at].first, self.blocks[at].end), *way]
            at = before[at]
        return way


def take_apart(image: Image, nvdisasm: str) -> Compiled:
    cubin = read_cubin(image.data)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image.data)
        file.flush()
        code = disassemble(nvdisasm, file.name)
    blocks, loops = loops_of(code, cubin.jump_targets)
    return Compiled(cubin, code, cubin.controls(), blocks, loops, resources(cubin, image.target))


@dataclass(frozen=True)
class Product:
    """One launch of products with one row of activations."""

    kernel: str
    level: str
    is_apart: bool
    rows: int
    cols: int
    matrices: int = 1
    is_cold: bool = False  # nothing but the row of activations is in a cache

    @property
    def is_gated(self) -> bool:
        return self.kernel == "matvec_gated_quantize"

    @property
    def bytes(self) -> float:
        """Planes; steps, ten bytes for each cell of 16 by 32; scales of rows. Level 3 of merged planes reads level 4's."""
        bits = {"2": 2, "3": 3 if self.is_apart else 4, "4": 4, "6": 6, "8": 8}[self.level]
        return self.matrices * self.rows * (self.cols * (bits / 8 + 10 / (16 * 32)) + 2)


def matvec_program(kernel: Compiled, card: Card, product: Product) -> tuple[list, int, int, int]:
    """What each warp does; blocks, resident blocks, and warps of a block on one scheduler."""
    loop = kernel.level(product.level)
    where = Where(shared_passes=PASSES.get(product.level, 1))
    path = kernel.path(loop, product.is_apart)
    weights = [at for at in path if kernel.code[at].is_weight_load]
    if product.is_apart or product.level != "4":
        loaded = weights
    else:
        # The plane that only stands alone is loaded by a predicate: merged, nothing comes.
        loaded = weights[:-1]
    body = kernel.steps(path, card, where)
    for place, at in enumerate(path):
        if at in weights and at not in loaded:
            body[place] = replace(body[place], memory_bytes=0, latency=1)
    last = [
        replace(step, memory_bytes=0, latency=1) if at in weights else step for at, step in zip(path, body)
    ]
    first = kernel.steps(loaded, card, where)
    place = "memory" if product.is_cold else "l2"
    inlet = kernel.steps(kernel.way_to(loop), card, Where(weights=place, halves=place, words=place, pointers=place))
    inlet = [replace(step, memory_bytes=0) for step in inlet]
    groups = -(-product.cols // 32)
    tiles = 2 if product.is_gated else max(1, min(8, 128 // groups))
    at_once = 128 // tiles
    sums = kernel.of_kind("sums")
    added = kernel.steps(kernel.path(sums[0], False), card, where)
    program = [(inlet, 1)]
    for start in range(0, groups, at_once):
        here = min(at_once, groups - start)
        turns = -(-here * tiles // 16)
        program += [(first, 1), (body, turns - 1), (last, 1), ([wait(BARRIER)], 1)]
        program += [(added, -(-here // 8)), ([wait(BARRIER)], 1)]
    program.append(([wait(EPILOGUE)], 1))
    across = -(-(-(-product.rows // 16)) // tiles)
    warps = 2 if product.is_gated else 1
    resident = machine.resident_blocks(
        card, kernel.resources["registers"], kernel.resources["shared_bytes"], 128 * warps
    )
    blocks = across * product.matrices // (2 if product.is_gated else 1)
    return program, blocks, resident, warps


def matvec_seconds(kernel: Compiled, card: Card, product: Product) -> float:
    program, blocks, resident, warps = matvec_program(kernel, card, product)
    of_one = -(-blocks // card.sms)
    cycles = machine.cycles_of_many(program, card, resident, of_one, warps, min(card.sms, blocks))
    return cycles / (card.ghz * 1e9)


@dataclass(frozen=True)
class Attention:
    """Rows of one head dimension, 16-bit keys and values, over so many pages each."""

    heads: int  # of queries, for each head of keys
    head_dim: int
    pages: int
    blocks: int


def attend_seconds(kernel: Compiled, card: Card, work: Attention) -> float:
    # The first two; what divides by the sum at the end is another.
    scores, values = kernel.of_kind("products")[:2]
    weigh = next(loop for loop in kernel.of_kind("sums") if has_shuffle(kernel, loop))
    there = Where(words="memory", pointers="l1")
    each = [
        (kernel.steps(kernel.path(scores, False), card, there), work.head_dim // 2 // loads_of(kernel, scores)),
        ([wait(BARRIER)], 1),
        (kernel.steps(kernel.path(weigh, False), card, there), -(-work.heads // 4)),
        ([wait(BARRIER)], 1),
        (kernel.steps(kernel.path(values, False), card, there), 64 // loads_of(kernel, values)),
        ([wait(BARRIER)], 1),
    ]
    inlet = kernel.steps(kernel.way_to(scores), card, Where(words="l2", pointers="l2"))
    program = [(inlet, 1), *each * work.pages, ([wait(EPILOGUE)], 1)]
    dynamic = 4 * work.heads * 3 * work.head_dim
    resident = machine.resident_blocks(
        card, kernel.resources["registers"], kernel.resources["shared_bytes"] + dynamic, 128
    )
    of_one = -(-work.blocks // card.sms)
    cycles = machine.cycles_of_many(program, card, resident, of_one, 1, min(card.sms, work.blocks))
    return cycles / (card.ghz * 1e9)


def has_shuffle(kernel: Compiled, loop: Loop) -> bool:
    return any(kernel.code[at].base == "SHFL" for at in kernel.path(loop, False))


def loads_of(kernel: Compiled, loop: Loop) -> int:
    return sum(kernel.code[at].is_global_load for at in kernel.path(loop, False))


def argmax_seconds(kernel: Compiled, card: Card, columns: int, threads: int = 256) -> float:
    """One block over a row that was just written."""
    loop = kernel.of_kind("copies")[0]
    body = kernel.steps(kernel.path(loop, False), card, Where(words="l2"))
    turns = -(-columns // (threads * loads_of(kernel, loop)))
    program = [(body, turns), ([wait(EPILOGUE)], 1)]
    return machine.cycles_of(program, card, 1, 1, threads // 128, 1) / (card.ghz * 1e9)


@dataclass(frozen=True)
class Tiles:
    """Products of so many rows of activations, 64 of them a block."""

    level: str
    rows: int
    cols: int
    pairs: int
    matrices: int = 1


def matmul_seconds(kernel: Compiled, card: Card, work: Tiles) -> float:
    loop = kernel.level(work.level)
    where = Where(words="memory", shared_passes=PASSES.get(work.level, 1))
    path = kernel.path(loop, False)
    filled = min(work.pairs, 64) / 64
    body = thinned(kernel, path, filled, card, where)
    inlet = kernel.steps(kernel.way_to(loop), card, Where(words="l2", pointers="l2", halves="l2"))
    inlet = [replace(step, memory_bytes=0) for step in inlet]
    # Rows of activations are brought by four groups: loads of the second level, and barriers around them.
    bring = [wait(2 * BARRIER + card.l2 + 4 * round(8 * filled))]
    program = [(inlet, 1), *[(bring, 1), (body, 4)] * (-(-work.cols // 128)), ([wait(EPILOGUE)], 1)]
    resident = machine.resident_blocks(card, kernel.resources["registers"], kernel.resources["shared_bytes"], 128)
    blocks = -(-work.rows // 64) * -(-work.pairs // 64) * work.matrices
    of_one = -(-blocks // card.sms)
    cycles = machine.cycles_of_many(program, card, resident, of_one, 1, min(card.sms, blocks), waves=2)
    return cycles / (card.ghz * 1e9)


def thinned(kernel: Compiled, path: list[int], filled: float, card: Card, where: Where) -> list[machine.Step]:
    """A path without the products of rows of activations that a block has not: what follows the first product."""
    steps = kernel.steps(path, card, where)
    first = next(place for place, at in enumerate(path) if kernel.code[at].unit == "tensor")
    return steps[: first + round((len(steps) - first) * filled)]
