"""Two sessions in two threads, which write what each writes alone: threads.py MODEL."""

import sys
from concurrent.futures import ThreadPoolExecutor

import nestling

model = nestling.open(sys.argv[1])
prompts = ["The captain said", "In the forest there was"]


def write(prompt: str) -> str:
    return model.generate(prompt, temperature=0, max_tokens=32).text()


alone = [write(prompt) for prompt in prompts]
with ThreadPoolExecutor(2) as pool:
    together = list(pool.map(write, prompts))
for prompt, text in zip(prompts, together, strict=True):
    print(prompt + text)
sys.exit(0 if together == alone else 1)
