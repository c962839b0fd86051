"""Stops an answer from another thread: cancel.py MODEL."""

import sys
import threading
import time

import nestling

model = nestling.open(sys.argv[1])
# It would write until its context is full.
answer = model.generate("The storm came up in the night, and", temperature=0, ignore_end=True)
asked = 0.0


def stop() -> None:
    global asked
    asked = time.monotonic()
    answer.cancel()


threading.Timer(0.3, stop).start()
for piece in answer:
    print(piece, end="", flush=True)
late = time.monotonic() - asked
assert answer.finished is not None
print(f"\n{answer.finished.reason}, {late * 1000:.1f} ms after it was asked")
sys.exit(0 if answer.finished.reason == "cancelled" and late < 0.25 else 1)
