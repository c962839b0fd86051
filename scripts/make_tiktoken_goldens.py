#!/usr/bin/env python3
"""A small tokenizer in the files of Kimi-K2, and what tiktoken and transformers make of it, in
formats/import/tests/data/tiktoken: ranks trained on data/calibration.txt (tiktoken.model), the class and special tokens
(tokenizer_config.json), and golden.json, {pattern, vocab, merges: of transformers' TikTokenConverter,
texts: [{text, ids: of tiktoken}]}. Fails where the converted tokenizer has other ids than tiktoken.

usage: make_tiktoken_goldens.py        needs: pip install transformers tokenizers tiktoken regex
"""
import base64
import collections
import json
import pathlib

import regex
import tiktoken
from make_split_goldens import KIMI_K2, MORE
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "formats/import/tests/data/tiktoken"
TOKENS = 600
SPECIAL = {600: ("[BOS]", True), 601: ("[EOS]", True), 607: ("<|tool_call_begin|>", False)}


def trained(text: str) -> dict:
    """Ranks of the most frequent pairs, as byte-level BPE finds them."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    counts = collections.Counter(found.group().encode() for found in regex.finditer(KIMI_K2, text, flags=regex.V1))
    words = {word: [bytes([byte]) for byte in word] for word in counts}
    while len(ranks) < TOKENS:
        pairs = collections.Counter()
        for word, parts in words.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += counts[word]
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        ranks[best[0] + best[1]] = len(ranks)
        for word, parts in words.items():
            joined, at = [], 0
            while at < len(parts):
                if tuple(parts[at:at + 2]) == best:
                    joined.append(best[0] + best[1])
                    at += 2
                else:
                    joined.append(parts[at])
                    at += 1
            words[word] = joined
    return ranks


def main() -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    text = (ROOT / "data/calibration.txt").read_text(encoding="utf-8")[:60_000] + " 漢字とかな 漢字 don't".join("" for _ in range(40))
    ranks = trained(text)
    model = DATA / "tiktoken.model"
    model.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()))
    decoder = {str(id): {"content": text, "special": special} for id, (text, special) in SPECIAL.items()}
    config = {"added_tokens_decoder": decoder, "tokenizer_class": "TikTokenTokenizer"}
    (DATA / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")

    special = {SPECIAL.get(id, (f"<|reserved_token_{id}|>",))[0]: id for id in range(TOKENS, TOKENS + 256)}
    theirs = tiktoken.Encoding("kimi", pat_str=KIMI_K2, mergeable_ranks=ranks, special_tokens=special)
    converted = TikTokenConverter(vocab_file=str(model), pattern=KIMI_K2, extra_special_tokens=list(special)).converted()
    assert isinstance(converted, Tokenizer)
    texts = [*MORE, text[:2000], "a[BOS]b<|reserved_token_699|><|tool_call_begin|>f:0", "漢字kanji漢 éa\u0301 ｶﾅ"]
    cases = []
    for text in texts:
        ids = theirs.encode(text, allowed_special="all")
        assert converted.encode(text, add_special_tokens=False).ids == ids, text
        cases.append({"text": text, "ids": ids})
    parts = json.loads(converted.to_str())["model"]
    golden = {"pattern": KIMI_K2, "vocab": parts["vocab"], "merges": parts["merges"], "texts": cases}
    (DATA / "golden.json").write_text(json.dumps(golden, ensure_ascii=True) + "\n")
    print(len(ranks), len(parts["merges"]), sum(len(case["ids"]) for case in cases))


if __name__ == "__main__":
    main()
