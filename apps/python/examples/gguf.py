"""Runs a GGUF file in place, and prints the tokens that it chooses: gguf.py FILE."""

import sys

import nestling

model = nestling.open(sys.argv[1])
answer = model.generate(
    [3, 1, 4, 1, 5], temperature=0, max_tokens=8, token_events=True, ignore_end=True
)
for event in answer.events():
    if isinstance(event, nestling.Token):
        print(event.token)
