#!/usr/bin/env python3
"""Cuts data/validation.txt and data/calibration.txt from the texts beside the demo model.

    python3 scripts/make_texts.py DIR      # DIR holds valid.txt and calibration.txt

Takes eight spans, evenly spread, each from one paragraph break to another, so that several books
take part. Needs nothing but Python.
"""
import pathlib
import sys

SPANS = 8
ROOT = pathlib.Path(__file__).resolve().parent.parent


def cut(text: str, characters: int) -> str:
    """About `characters` of `text`, as whole paragraphs of SPANS places."""
    pieces = []
    for span in range(SPANS):
        start = text.index("\n\n", len(text) * span // SPANS) + 2 if span else 0
        end = text.index("\n\n", start + characters // SPANS)
        pieces.append(text[start:end].strip())
    return "\n\n".join(pieces) + "\n"


def main() -> None:
    source = pathlib.Path(sys.argv[1])
    for name, out, characters in [
        ("valid.txt", "validation.txt", 160_000),
        ("calibration.txt", "calibration.txt", 200_000),
    ]:
        text = cut((source / name).read_text(encoding="utf-8"), characters)
        (ROOT / "data" / out).write_text(text, encoding="utf-8")
        print(f"data/{out}: {len(text.encode())} bytes")


if __name__ == "__main__":
    main()
