"""Halves the memory of a streamed model while it writes: budget.py MODEL."""

import sys

import nestling

model = nestling.open(
    sys.argv[1], residence="streamed", context_length=256, memory_budget=64 << 20
)
alone = model.generate("The captain said", temperature=0, max_tokens=40).text()
answer = model.generate("The captain said", temperature=0, max_tokens=40)
pieces = iter(answer)
text = next(pieces)
before = model.status().memory_used
model.set_memory_budget(before // 2)
text += "".join(pieces)
after = model.status().memory_used
print(text)
print(f"{before / 1e6:.1f} MB in use before, {after / 1e6:.1f} MB after")
try:
    # What does not fit is refused, and nothing has changed.
    model.set_memory_budget(1)
except nestling.NoRoomError as error:
    print(f"1 byte: {error}")
sys.exit(0 if text == alone and after <= before // 2 else 1)
