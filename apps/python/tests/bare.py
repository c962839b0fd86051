"""Two lines give an answer, with nothing installed but the package and its model."""

import nestling

model = nestling.open(progress=True)
text = model.chat().ask("Tell me a story about a ship and a storm.", max_tokens=40, temperature=0)
assert len(text) > 40, text
assert model.loglikelihood("The ship", " sank").logprob < 0
try:
    model.logprobs("The ship")
except ImportError as error:
    assert "nestling[numpy]" in str(error)
else:
    raise AssertionError("NumPy is there")
