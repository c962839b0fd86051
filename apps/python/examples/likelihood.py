"""How likely endings are, and the distribution of the next token: likelihood.py MODEL."""

import sys

import numpy as np

import nestling

model = nestling.open(sys.argv[1])
for ending in [" the sea.", " the Xylophone."]:
    likelihood = model.loglikelihood("The ship went down into", ending)
    print(f"{likelihood.logprob:8.3f} {likelihood.is_greedy} {ending}")
rows = model.logprobs("The ship went down into")
best = int(np.argmax(rows[-1]))
print(f"most likely next: {model.decode([best])!r} with {np.exp(rows[-1, best]):.3f}")
