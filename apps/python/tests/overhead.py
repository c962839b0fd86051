"""Processor time that Python costs for each token, beside the same answer read in Rust: overhead.py MODEL [ROUNDS].

Rounds are interleaved; the figure is the median of their differences.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable

import nestling
from nestling import _answer

TOKENS = 400
model = nestling.open(sys.argv[1], device="cpu", threads=1)
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 15


def answer() -> nestling.Answer:
    return model.generate("The captain said", temperature=0, max_tokens=TOKENS, ignore_end=True)


def in_rust() -> None:
    answer()._generation.gather(0)


def in_a_loop() -> None:
    for _ in answer():
        pass


def asynchronously() -> None:
    async def read() -> None:
        async for _ in answer():
            pass

    asyncio.run(read())


def by_a_thread() -> None:
    """Reads as event loops do that cannot wait for a socket."""
    wakeups_of = _answer._wakeups_of
    _answer._wakeups_of = lambda loop: None
    try:
        asynchronously()
    finally:
        _answer._wakeups_of = wakeups_of


ways: list[Callable[[], None]] = [in_rust, in_a_loop, asynchronously, by_a_thread]
times: dict[str, list[float]] = {way.__name__: [] for way in ways}
for way in ways:
    way()
for _ in range(rounds):
    for way in ways:
        started = time.process_time()
        way()
        times[way.__name__].append((time.process_time() - started) / TOKENS * 1e6)
rust = times["in_rust"]
for name, found in times.items():
    more = statistics.median(a - b for a, b in zip(found, rust, strict=True))
    share = more / statistics.median(rust)
    print(f"{name:15} {statistics.median(found):8.1f} us a token, {more:+6.1f} ({share:+.1%}) beside Rust")
