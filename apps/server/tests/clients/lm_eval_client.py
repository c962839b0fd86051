"""What lm-evaluation-harness makes of the server: likelihoods of given texts and generated ones, without a network.

    python lm_eval_client.py PROGRAM
"""

import json
import math
import os
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from program import BUNDLED, Served

PAIRS = [
    ("The ship left the", " harbour"), ("The ship left the", " qqqq"), ("The captain went to the", " ship and said"),
]


def asked(kind, arguments):
    return [Instance(request_type=kind, doc={}, arguments=each, idx=at) for at, each in enumerate(arguments)]


def main(program):
    with Served(program, BUNDLED, "story") as served:
        model = LocalCompletionsAPI(
            base_url=f"{served.url}/completions", model="story", tokenizer_backend="remote", num_concurrent=1,
            max_retries=1, max_length=1024,
        )
        likely = model.loglikelihood(asked("loglikelihood", PAIRS), disable_tqdm=True)
        assert all(math.isfinite(one) and one < 0 and isinstance(greedy, bool) for one, greedy in likely), likely
        assert likely[0][0] > likely[1][0], likely
        text, = model.generate_until(
            asked("generate_until", [("Once upon a time", {"max_gen_toks": 16, "until": ["\n\n"], "temperature": 0})]),
            disable_tqdm=True,
        )
        assert text.strip(), text
        rolling, = model.loglikelihood_rolling(asked("loglikelihood_rolling", [("The ship left the harbour.",)]), disable_tqdm=True)
        assert math.isfinite(rolling) and rolling < 0
    print(f"lm-eval: likelihoods {[round(one, 2) for one, _ in likely]}, a text of {len(text)} bytes, {rolling:.2f} rolling")


if __name__ == "__main__":
    main(sys.argv[1])
