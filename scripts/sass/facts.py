"""What budgets are about: resources of a kernel, and what its hot loops do."""

from collections import Counter

from .cubin import Control, Cubin
from .flow import Block, Loop, loops_of, path_through
from .listing import LOCAL_ACCESSES, Instruction

# Levels of weights by the number of planes that a pass loads.
LEVEL_OF_PLANES = {1: "2", 2: "3", 3: "4", 4: "6", 5: "8"}
# Shared memory that the system takes of each block, which newer cubins count.
SYSTEM_SHARED_BYTES = 1024
# Named barriers of a multiprocessor's block; one that is named by a register takes all.
BARRIERS_ALL = 16


def resources(cubin: Cubin, target: str) -> dict[str, int]:
    number = int(target.removeprefix("sm_"))
    system = SYSTEM_SHARED_BYTES if number >= 90 and cubin.shared_bytes else 0
    return {
        "registers": cubin.registers,
        "stack_bytes": cubin.stack_bytes,
        "shared_bytes": cubin.shared_bytes - system,
        "barriers": cubin.barriers,
        "code_bytes": len(cubin.code),
    }


def barriers_of(code: list[Instruction]) -> int:
    """Barriers that a block takes, by the code: cubins for newer devices do not say."""
    named = set()
    for one in code:
        if one.base == "BAR" and "SYNC" in one.opcode:
            name = one.operands.split(",")[0].strip()
            if not name.startswith("0x"):
                return BARRIERS_ALL
            named.add(name)
    return len(named)


def in_flight(code: list[Instruction], controls: list[Control], places: list[int]) -> int:
    """The most global loads of a warp that are under way together, pass after pass."""
    under_way: list[int | None] = []
    most = 0
    for place in places + places:
        waits = controls[place].waits
        under_way = [counter for counter in under_way if counter is None or not waits >> counter & 1]
        if code[place].is_global_load:
            under_way.append(controls[place].written)
            most = max(most, len(under_way))
    return most


def waits_before(code: list[Instruction], controls: list[Control], places: list[int], end: int) -> int:
    """How often a warp waits for loads of the same pass before it comes to `end` of the path."""
    taken: set[int] = set()
    count = 0
    for place in places[:end]:
        waited = {counter for counter in taken if controls[place].waits >> counter & 1}
        count += bool(waited)
        taken -= waited
        if code[place].is_global_load and controls[place].written is not None:
            taken.add(controls[place].written)
    return count


def awaited_after(code: list[Instruction], controls: list[Control], places: list[int]) -> int:
    """Instructions from the last load of weights of a pass to the first that waits for these loads. A counter is
    waited for as a whole: that wait may be meant for another load that has the same."""
    loads = [at for at, place in enumerate(places) if code[place].is_weight_load]
    counters = sum({1 << (controls[places[at]].written or 0) for at in loads})
    for after in range(1, len(places) + 1):
        if controls[places[(loads[-1] + after) % len(places)]].waits & counters:
            return after
    return len(places)


def loop_facts(code: list[Instruction], controls: list[Control], blocks: dict[int, Block], loop: Loop) -> dict[str, int]:
    """Of one pass. `instructions` is the path of the fewest, planes merged; `instructions_apart` of the most."""
    short, long = (path_through(code, blocks, loop, longest) for longest in (False, True))
    listed = [code[place] for place in short]
    units = Counter(one.unit for one in listed)
    loads = [one for one in listed if one.is_global_load]
    planes = [at for at, one in enumerate(listed) if one.is_weight_load]
    products = [at for at, one in enumerate(listed) if one.base in ("IDP", "IMMA")]
    facts = {
        "instructions": len(short),
        "instructions_apart": len(long),
        "alu": units["alu"],
        "fma": units["fma"],
        "xu": units["xu"],
        "lsu": units["lsu"],
        "tensor": units["tensor"],
        "shared_loads": sum(one.base == "LDS" for one in listed),
        "loads": len(loads) - len(planes),
        "local": sum(one.base in LOCAL_ACCESSES for one in listed),
        "weight_loads": len(planes),
        "in_flight": in_flight(code, controls, short),
    }
    if planes:
        facts["waits_before_weights"] = waits_before(code, controls, short, planes[0])
        facts["weights_awaited_after"] = awaited_after(code, controls, short)
        facts["weights_behind_products"] = sum(at > products[0] for at in planes) if products else 0
    return facts


def kind_of(facts: dict[str, int], listed: list[Instruction]) -> str | None:
    """What a loop is for; None where no budget watches it."""
    if facts["weight_loads"] in LEVEL_OF_PLANES or facts["tensor"]:
        return "level"
    has_products = any(one.base == "FFMA" for one in listed)
    if has_products and facts["loads"]:
        return "products"
    if has_products and facts["shared_loads"]:
        return "sums"
    return "copies" if facts["loads"] else None


def level_names(found: list[dict[str, int]]) -> dict[str, dict[str, int]]:
    """Loops that decode weights, by their level."""
    by_planes = {f"level {LEVEL_OF_PLANES[one['weight_loads']]}": one for one in found if one["weight_loads"]}
    if by_planes:
        return by_planes
    # Tensor cores take both digits of levels 6 and 8, so twice the products; a higher level decodes more.
    ordered = sorted(found, key=lambda one: (one["tensor"], one["instructions_apart"]))
    return {f"level {level}": one for level, one in zip(LEVEL_OF_PLANES.values(), ordered)}


def kernel_loops(cubin: Cubin, code: list[Instruction]) -> dict[str, dict[str, int]]:
    """Hot loops by name. Of sums and copies, which do not decide, the longest."""
    controls = cubin.controls()
    blocks, loops = loops_of(code, cubin.jump_targets)
    by_kind: dict[str, list[dict[str, int]]] = {}
    for loop in loops:
        if loop.is_innermost:
            facts = loop_facts(code, controls, blocks, loop)
            listed = [code[place] for place in path_through(code, blocks, loop, False)]
            by_kind.setdefault(kind_of(facts, listed) or "", []).append(facts)
    found = level_names(by_kind.get("level", []))
    found |= {f"products {n}": one for n, one in enumerate(by_kind.get("products", []), 1)}
    for kind in ("sums", "copies"):
        if kind in by_kind:
            found[kind] = max(by_kind[kind], key=lambda one: one["instructions"])
    return found
