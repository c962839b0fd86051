"""Blocks, loops, and paths through loop bodies of a kernel."""

from dataclasses import dataclass, field

from .listing import Instruction


@dataclass
class Block:
    first: int  # place of the first instruction
    end: int  # behind the last one
    next: list[int] = field(default_factory=list)  # first instructions of blocks that may follow


@dataclass(frozen=True)
class Loop:
    header: int
    blocks: frozenset[int]
    latches: frozenset[int]
    depth: int  # 1 for what is in no other loop
    is_innermost: bool


def blocks_of(code: list[Instruction]) -> dict[int, Block]:
    place_of = {one.address: place for place, one in enumerate(code)}
    starts = {0}
    for place, one in enumerate(code):
        if one.is_jump or one.is_diverging:
            starts.add(place + 1)
            if one.target is not None and one.target in place_of:
                starts.add(place_of[one.target])
    ordered = sorted(start for start in starts if start < len(code))
    blocks = {}
    for first, end in zip(ordered, ordered[1:] + [len(code)]):
        last, following = code[end - 1], []
        if last.is_jump and last.target in place_of:
            following.append(place_of[last.target])
        if (not last.is_jump or last.is_conditional) and end < len(code):
            following.append(end)
        blocks[first] = Block(first, end, following)
    return blocks


def by_table(code: list[Instruction], targets) -> list[int]:
    """Of what may be addresses for a branch by table, those that are: the table lies among other constants, and what
    such a branch leads to stands behind a jump."""
    if not any(one.base == "BRX" for one in code):
        return []
    place_of = {one.address: place for place, one in enumerate(code)}
    places = [place_of[target] for target in targets if target in place_of]
    return sorted({at for at in places if at and code[at - 1].is_jump and not code[at - 1].is_conditional})


def split_at(blocks: dict[int, Block], places: list[int]) -> dict[int, Block]:
    """The same with blocks that begin at these places, too."""
    for place in places:
        if place in blocks:
            continue
        around = next(b for b in blocks.values() if b.first < place < b.end)
        blocks[place] = Block(place, around.end, around.next)
        around.end, around.next = place, [place]
    return blocks


def reachable(blocks: dict[int, Block], roots) -> set[int]:
    seen, left = set(), [root for root in roots if root in blocks]
    while left:
        at = left.pop()
        if at not in seen:
            seen.add(at)
            left.extend(blocks[at].next)
    return seen


def dominators(blocks: dict[int, Block], roots: set[int], live: set[int]) -> dict[int, set[int]]:
    before: dict[int, list[int]] = {at: [] for at in live}
    for at in live:
        for following in blocks[at].next:
            before[following].append(at)
    found = {at: {at} if at in roots else set(live) for at in live}
    changed = True
    while changed:
        changed = False
        for at in sorted(live):
            if at in roots:
                continue
            fresh = {at} | (set.intersection(*(found[b] for b in before[at])) if before[at] else set())
            if fresh != found[at]:
                found[at], changed = fresh, True
    return found


def loops_of(code: list[Instruction], targets=()) -> tuple[dict[int, Block], list[Loop]]:
    """Blocks that run, and natural loops in the order of their headers.

    `targets` are addresses that branches by table may lead to.
    """
    entries = by_table(code, targets)
    blocks = split_at(blocks_of(code), entries)
    roots = {0, *entries}
    live = reachable(blocks, roots)
    over = dominators(blocks, roots, live)
    before: dict[int, list[int]] = {at: [] for at in live}
    for at in live:
        for following in blocks[at].next:
            before[following].append(at)
    bodies: dict[int, set[int]] = {}
    latches: dict[int, set[int]] = {}
    for at in live:
        for header in blocks[at].next:
            if header not in over[at]:
                continue
            body, left = bodies.setdefault(header, {header}), [at]
            latches.setdefault(header, set()).add(at)
            while left:
                one = left.pop()
                if one not in body:
                    body.add(one)
                    left.extend(before[one])
    bodies = {header: body for header, body in bodies.items() if not is_meeting(code, blocks, body)}
    loops = []
    for header, body in sorted(bodies.items()):
        around = [other for other in bodies if other != header and header in bodies[other]]
        inside = [other for other in bodies if other != header and other in body]
        loops.append(Loop(header, frozenset(body), frozenset(latches[header]), 1 + len(around), not inside))
    return blocks, loops


def is_meeting(code: list[Instruction], blocks: dict[int, Block], body: set[int]) -> bool:
    """Lanes of a warp that wait for each other, as Turing does it: no loop of the kernel's own."""
    places = [place for at in body for place in range(blocks[at].first, blocks[at].end)]
    return len(places) < 10 and all(code[place].unit in ("alu", "control", "uniform") for place in places)


# What a pass through a loop is there for, beside loads of weights: paths that leave any of it out are others.
WORK = {"IMMA", "IDP", "FFMA", "STS", "HMMA"}


def is_work(one: Instruction) -> bool:
    return one.base in WORK or one.is_weight_load


def path_through(code: list[Instruction], blocks: dict[int, Block], loop: Loop, is_longest: bool) -> list[int]:
    """The places of the instructions of one pass that does all the work, in the most instructions or the fewest."""
    sign = 1 if is_longest else -1
    best: dict[int, tuple[tuple[int, int], list[int]]] = {}

    def visit(at: int, on_way: frozenset[int]) -> tuple[tuple[int, int], list[int]] | None:
        if at in best:
            return best[at]
        own = range(blocks[at].first, blocks[at].end)
        weight = sum(is_work(code[place]) for place in own), sign * len(own)
        found = ((0, 0), []) if at in loop.latches else None
        for following in blocks[at].next:
            if following == loop.header or following not in loop.blocks or following in on_way:
                continue
            rest = visit(following, on_way | {following})
            if rest is not None and (found is None or rest[0] > found[0]):
                found = rest
        if found is None:
            return None
        total = (found[0][0] + weight[0], found[0][1] + weight[1]), [*own, *found[1]]
        best[at] = total
        return total

    found = visit(loop.header, frozenset({loop.header}))
    return found[1] if found else []
