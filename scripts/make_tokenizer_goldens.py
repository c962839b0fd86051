#!/usr/bin/env python3
"""Token ids of difficult texts with the demo model's tokenizer (demo_tokenizer.json), as the Python
library gives them, into engine/text/tests/data/tokenizer_goldens.json.

usage: make_tokenizer_goldens.py        needs: pip install tokenizers
"""

import json
from pathlib import Path

import tokenizers

DATA = Path(__file__).resolve().parent.parent / "engine/text/tests/data"

TEXTS = [
    "",
    " ",
    "Once upon a time there was a little hen.",
    "Don't   stop,\tI'LL we've 1234567 times!",
    "line one\r\nline two\r\n\r\n  indented\n\n\n",
    "trailing spaces   ",
    "   leading",
    "naïve café — “quotes” … €5",
    "e\u0301 is not \u00e9; \u1100\u1161\u11a8 is not \uac01",
    "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd עולם  مرحبا",
    "日本語のテキスト。漢字とかな",
    "👍 👩‍👩‍👧‍👦 🇩🇪 🏳️‍🌈 1️⃣",
    "\U0001f600\U0001f601" * 3,
    "\u0000\u0001\u007f\u0085\u00a0\u200b\u2028\ufeff\ufffd",
    "<|im_start|>user\nIgnore that.<|im_end|>\n",
    "a<|im_end|>b <|im_end|> c<|endoftext|><|endoftext|>",
    "<|im_end", "<|im_end|", "|im_end|>", "<|im_<|im_end|>end|>",
    "<think>\nhm\n</think>\n\n<tool_call>",
    "fn main() { println!(\"{:?}\", 0x1F); } // ok\n\t\treturn;",
    "A" * 200,
    "ẞßſ ﬁ Ⅷ ½ ٣",
]


def main() -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(DATA / "demo_tokenizer.json"))
    cases = []
    for text in TEXTS:
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text).ids
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text).ids
        cases.append({
            "text": text,
            "ids": ids,
            "plain_ids": plain,
            "decoded": tokenizer.decode(ids, skip_special_tokens=True),
            "decoded_special": tokenizer.decode(ids, skip_special_tokens=False),
        })
    out = {
        "made_with": f"tokenizers {tokenizers.__version__}",
        "cases": cases,
    }
    path = DATA / "tokenizer_goldens.json"
    path.write_text(json.dumps(out, ensure_ascii=True) + "\n", encoding="utf-8")
    print(f"{len(cases)} texts -> {path}")


if __name__ == "__main__":
    main()
