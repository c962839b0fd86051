"""What PTX for later devices must hold: the way for the architecture that it was made for."""

# What a kernel's text has from an architecture on, and before it.
TENSOR_CORES = (80, "mma.sync.aligned.m16n8k32", "mma.sync.aligned.m8n8k16")
WAYS = {"matmul_nested": TENSOR_CORES}
# What it has everywhere.
ALWAYS = {
    kernel: "ld.global.nc.L1::no_allocate.v4.u32"
    for kernel in ("matvec_nested", "matvec_nested_rows", "matvec_gated_quantize")
}


def faults(kernel: str, target: str, data: bytes) -> list[str]:
    text = data.rstrip(b"\0").decode("ascii", "replace")
    number = int(target.removeprefix("compute_"))
    name, found = f"{kernel} {target}", []
    if f".target sm_{number}" not in text:
        found.append(f"{name}: is not for sm_{number}")
    if f".entry {kernel}(" not in text:
        found.append(f"{name}: has no such kernel")
    if kernel in WAYS:
        first, newer, older = WAYS[kernel]
        wanted, other = (newer, older) if number >= first else (older, newer)
        if wanted not in text:
            found.append(f"{name}: does not use {wanted}")
        if other in text:
            found.append(f"{name}: uses {other}")
    if ALWAYS.get(kernel, "") not in text:
        found.append(f"{name}: does not use {ALWAYS[kernel]}")
    return found
