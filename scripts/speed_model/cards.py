"""Published limits of cards.

SMs, clocks, bandwidths and sizes: NVIDIA's data sheets of each card. Rates of instructions: "Arithmetic Instructions"
of the CUDA C++ Programming Guide. Latencies in cycles: Luo et al., arXiv 2402.13499, as measured on an H100 PCIe and an
RTX 4090; those of an RTX 3060 are taken to be an A100's. Int8 rates: data sheets, dense; a Hopper reaches some 62 % of
its own by `mma.sync` (the same paper), where `wgmma` reaches all.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Card:
    name: str
    target: str  # whose machine code it runs
    sms: int
    ghz: float  # under load
    bandwidth: float  # bytes a second
    # Cycles until a load is there.
    l1: int
    l2: int
    memory: int
    shared: int
    # Cycles that one scheduler's fourth of a multiprocessor is taken by an instruction of a warp.
    float_cycles: int  # FFMA, FADD, FMUL
    tensor_cycles: float  # mma of m16n8k32, int8
    int8_tops: float
    warps: int  # resident on a multiprocessor
    shared_bytes: int  # of a multiprocessor
    system_shared_bytes: int = 1024  # of each block
    registers: int = 65536
    blocks: int = 32
    # What reads from memory reach of the bandwidth at best.
    efficiency: float = 0.92
    # Between the end of one kernel of a graph and the start of the next, microseconds: an estimate.
    gap: float = 1.1


H100 = Card(
    "H100 SXM", "sm_90", 132, 1.755, 3.35e12, 41, 263, 479, 29, 1, 6.5, 1979, 64, 228 << 10
)
H200 = replace(H100, name="H200", bandwidth=4.8e12)
RTX_4090 = Card(
    "RTX 4090", "sm_89", 128, 2.52, 1.008e12, 43, 273, 542, 30, 1, 16, 660, 48, 100 << 10, blocks=24
)
RTX_3060 = Card(
    "RTX 3060", "sm_80", 28, 1.777, 0.36e12, 38, 262, 466, 29, 1, 16, 102, 48, 100 << 10, blocks=16
)
CARDS = [H100, H200, RTX_4090, RTX_3060]

# Latency of memory that is busy, an estimate for all cards: loads wait for each other, for pages of addresses
# and for refreshes, which a pointer chase does not see.
BUSY_SECONDS = 0.65e-6


def busy(card: Card) -> Card:
    return replace(card, memory=round(BUSY_SECONDS * card.ghz * 1e9))
