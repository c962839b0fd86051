"""One fourth of a multiprocessor: a scheduler with its warps, in order, as the compiler scheduled them.

An instruction issues when the cycles that the one before it asked for are over, the counters that it waits for are
zero, its unit is free and no other warp is served. Loads from memory share the bandwidth that is this fourth's.
"""

from dataclasses import dataclass

from sass.cubin import Control
from sass.listing import Instruction

from .cards import Card

# Cycles until results that are not from memory are there.
SHUFFLE, CONVERSION, CONSTANT, OPERANDS_READ = 24, 22, 30, 12
FULL_RATE = {"FFMA", "FADD", "FMUL"}
LANES = 32
# Of memory, for a load of a byte or two: a warp's four cells have ten bytes of steps each, in two loads.
STEP_BYTES = 20


@dataclass(frozen=True)
class Step:
    """An instruction as the machine sees it."""

    unit: str
    taken: float  # cycles of its unit
    stall: int
    written: int | None
    read: int | None
    waits: int
    latency: int
    memory_bytes: int = 0


@dataclass(frozen=True)
class Where:
    """Where loads of a path find what they read."""

    weights: str = "memory"
    halves: str = "memory"  # 1 and 2 bytes: steps of cells
    words: str = "l1"
    pointers: str = "l1"
    shared_passes: float = 1  # of an access to shared memory of 2 bytes


def place_of(one: Instruction, where: Where) -> str:
    if one.is_weight_load:
        return where.weights
    if one.bits <= 16:
        return where.halves
    return where.pointers if one.bits == 64 else where.words


def step_of(one: Instruction, control: Control, card: Card, where: Where) -> Step:
    unit, taken, latency, memory_bytes = one.unit, 1.0, CONVERSION, 0
    if unit == "alu":
        taken = 2
    elif unit == "fma":
        taken = card.float_cycles if one.base in FULL_RATE else 2
    elif unit == "xu":
        taken = 8
    elif unit == "tensor":
        taken = card.tensor_cycles
    elif unit == "constant":
        latency = CONSTANT
    elif unit == "uniform":
        taken = 2
    elif unit == "lsu":
        # Four fourths share what passes 32 words a cycle.
        passes = max(1, one.bits // 32)
        latency = SHUFFLE
        if one.base == "LDS":
            passes = where.shared_passes if one.bits == 16 else 1
            latency = card.shared
        if one.is_global_load:
            place = place_of(one, where)
            latency = getattr(card, place)
            if place == "memory":
                memory_bytes = LANES * one.bits // 8 if one.bits > 16 else STEP_BYTES
        taken = 4 * passes
    return Step(unit, taken, control.stall, control.written, control.read, control.waits, latency, memory_bytes)


class Warp:
    def __init__(self, program, start: float):
        self.program = program  # (steps, how often), one after another
        self.part = self.turn = self.at = 0
        self.ready = start
        self.counters = [0.0] * 6
        self.skip_empty()

    def skip_empty(self):
        while self.part < len(self.program) and not (self.program[self.part][0] and self.program[self.part][1]):
            self.part += 1

    @property
    def is_done(self) -> bool:
        return self.part >= len(self.program)

    @property
    def step(self) -> Step:
        return self.program[self.part][0][self.at]

    def advance(self):
        steps, times = self.program[self.part]
        self.at += 1
        if self.at == len(steps):
            self.at, self.turn = 0, self.turn + 1
            if self.turn == times:
                self.turn, self.part = 0, self.part + 1
                self.skip_empty()


def wait(cycles: int) -> Step:
    """Nothing but time: barriers, and what is not looked at closely."""
    return Step("wait", 0, cycles, None, None, 63, 0)


def cycles_of(program, card: Card, resident: int, blocks: int, warps: int = 1, active_sms: int | None = None) -> float:
    """Cycles of so many blocks, some of them resident at a time, with so many warps of each here."""
    share = card.bandwidth * card.efficiency / (4 * (active_sms or card.sms) * card.ghz * 1e9)
    share = min(share, 16.0)  # a multiprocessor takes 64 bytes a cycle from its second-level cache
    left = blocks - min(resident, blocks)
    running = [[Warp(program, 0.0) for _ in range(warps)] for _ in range(min(resident, blocks))]
    port = memory = end = 0.0
    units: dict[str, float] = {}
    while running:
        best, best_at = None, 0.0
        for block in running:
            for warp in block:
                if warp.is_done:
                    continue
                step = warp.step
                at = max(warp.ready, port, units.get(step.unit, 0.0))
                waits = step.waits
                if waits:
                    for counter in range(6):
                        if waits >> counter & 1 and warp.counters[counter] > at:
                            at = warp.counters[counter]
                if best is None or at < best_at:
                    best, best_at = warp, at
        step = best.step
        port = best_at + 1
        units[step.unit] = best_at + step.taken
        done = best_at + step.latency
        if step.memory_bytes:
            memory = max(memory, best_at) + step.memory_bytes / share
            done = max(done, memory)
        if step.written is not None:
            best.counters[step.written] = max(best.counters[step.written], done)
        if step.read is not None:
            best.counters[step.read] = max(best.counters[step.read], best_at + OPERANDS_READ)
        best.ready = best_at + max(step.stall, 1)
        best.advance()
        if best.is_done:
            end = max(end, best.ready)
            for place, block in enumerate(running):
                if all(warp.is_done for warp in block):
                    finished = max(warp.ready for warp in block)
                    if left:
                        left -= 1
                        running[place] = [Warp(program, finished) for _ in range(warps)]
                    else:
                        running.pop(place)
                    break
    return end


def cycles_of_many(
    program, card: Card, resident: int, blocks: int, warps: int, active_sms: int, waves: int = 6
) -> float:
    """As `cycles_of`, of however many blocks: so many waves of resident ones are looked at, and others go on as the
    later half of these."""
    seen = waves * resident
    if blocks <= seen:
        return cycles_of(program, card, resident, blocks, warps, active_sms)
    half, all_seen = (cycles_of(program, card, resident, n, warps, active_sms) for n in (seen // 2, seen))
    return all_seen + (blocks - seen) * (all_seen - half) / (seen - seen // 2)


def resident_blocks(card: Card, registers: int, shared_bytes: int, threads: int) -> int:
    warps = threads // LANES
    # Registers are given to warps by 256.
    by_registers = card.registers // (-(-registers * LANES // 256) * 256 * warps)
    by_shared = card.shared_bytes // (shared_bytes + card.system_shared_bytes)
    return max(1, min(by_registers, by_shared, card.warps // warps, card.blocks))
