#!/usr/bin/env python3
"""Renders engine/text/tests/data/template_cases.json with transformers' own chat template code
(jinja2 with trim_blocks, lstrip_blocks, loop controls and a tojson that does not escape HTML), and
writes template_goldens.json beside it.

usage: make_template_goldens.py        needs: pip install transformers jinja2
"""

import json
from datetime import datetime, timezone
from pathlib import Path

import transformers
from transformers.utils import chat_template_utils
from transformers.utils.chat_template_utils import render_jinja_template

DATA = Path(__file__).resolve().parent.parent / "engine/text/tests/data"


def fixed_clock(seconds: int):
    """A datetime class whose present is that many seconds after 1970, UTC."""
    return type("Clock", (datetime,), {"now": staticmethod(lambda: datetime.fromtimestamp(seconds, timezone.utc))})


def main() -> None:
    cases = json.loads((DATA / "template_cases.json").read_text(encoding="utf-8"))
    goldens = {}
    for case in cases:
        template = case["template"]
        if template.endswith(".jinja"):
            template = (DATA / template).read_text(encoding="utf-8")
        chat_template_utils.datetime = fixed_clock(case["now"]) if "now" in case else datetime
        rendered = render_jinja_template(
            conversations=[case["messages"]],
            tools=case.get("tools"),
            chat_template=template,
            add_generation_prompt=case.get("add_generation_prompt", False),
            **case.get("arguments", {}),
        )
        text = rendered[0][0] if isinstance(rendered, tuple) else rendered[0]
        goldens[case["name"]] = text
    out = {"made_with": f"transformers {transformers.__version__}", "rendered": goldens}
    path = DATA / "template_goldens.json"
    path.write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{len(goldens)} cases -> {path}")


if __name__ == "__main__":
    main()
