#!/usr/bin/env python3
"""Renders engine/template/tests/data/published/*.jinja with jinja2 as transformers sets it up, over
the conversations below and every option that a template names, and writes published_goldens.json
beside the folder: for every case a hash of the output, or null where jinja2 raises.

usage: make_published_goldens.py [FOLDER OUTPUT]        needs: pip install transformers jinja2
"""

import hashlib
import json
import sys
from datetime import datetime, timezone
from pathlib import Path

import jinja2.meta
import transformers
from transformers.utils import chat_template_utils

DATA = Path(__file__).resolve().parent.parent / "engine/template/tests/data"
NOW = datetime(2026, 11, 21, 4, 5, 6, tzinfo=timezone.utc)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a <place> & its \"surroundings\".",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "City"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": ["integer", "null"], "description": "How many"},
                "places": {"type": "array", "items": {"type": "object", "properties": {"lat": {"type": "number"}}}},
            },
            "required": ["location"],
        },
        "return": {"type": "string"},
    },
}
CLOCK = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}


def call(number, name, arguments):
    return {"id": f"call{number:05d}", "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def result(number, name, text):
    return {"role": "tool", "tool_call_id": f"call{number:05d}", "name": name, "content": text}


SYSTEM = {"role": "system", "content": "You are <b>terse</b>. "}
CALLS = [
    user("Weather in Oslo?"),
    assistant("", tool_calls=[call(1, "get_weather", {"location": "Oslo", "days": 3, "exact": True, "x": None, "f": 1.5, "nest": {"a": [1, "b"]}})]),
    result(1, "get_weather", '{"degrees": -3}'),
]
CONVERSATIONS = {
    "user": {"messages": [user("Hello, wörld 日本 🎉!")]},
    "system": {"messages": [SYSTEM, user("  Hi\n\n")]},
    "turns": {"messages": [SYSTEM, user("a"), assistant("b"), user("c"), assistant("d"), user("e")]},
    "answered": {"messages": [user("a"), assistant("  the answer \n")]},
    "reasoned": {"messages": [user("a"), assistant("b", reasoning_content="Because\n1 < 2."), user("c"), assistant("d", reasoning_content="So.")]},
    "think tags": {"messages": [user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c")]},
    "tools": {"messages": [SYSTEM, user("Weather?")], "tools": [WEATHER, CLOCK]},
    "call": {"messages": [SYSTEM, *CALLS], "tools": [WEATHER]},
    "call answered": {"messages": [*CALLS, assistant("Cold."), user("Thanks")], "tools": [WEATHER]},
    "call with words": {"messages": [user("q"), assistant("Let me look.", reasoning_content="I need it.", tool_calls=[call(2, "now", {})]), result(2, "now", "12:00")], "tools": [CLOCK]},
    "two calls": {"messages": [user("q"), assistant("", tool_calls=[call(3, "now", {}), call(4, "get_weather", {"location": "Rome"})]), result(3, "now", "12:00"), result(4, "get_weather", "{}"), assistant("Noon.")], "tools": [WEATHER, CLOCK]},
    "arguments as text": {"messages": [user("q"), assistant("", tool_calls=[call(5, "now", '{"zone": "UTC"}')]), result(5, "now", "1")], "tools": [CLOCK]},
    "null content": {"messages": [user("q"), assistant(None, tool_calls=[call(6, "now", {})]), result(6, "now", "1")], "tools": [CLOCK]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}]},
    "image": {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}]},
    "developer": {"messages": [{"role": "developer", "content": "Be kind."}, user("x")]},
    "two users": {"messages": [user("a"), user("b")]},
    "assistant first": {"messages": [assistant("b"), user("c")]},
    "unknown role": {"messages": [{"role": "narrator", "content": "x"}]},
    "no messages": {"messages": []},
}
# What is tried of an option that a template names; options that it does not name change nothing.
BOOLEANS = [True, False]
VALUES = {
    "reasoning_effort": ["low", "high"],
    "documents": [[{"title": "T", "text": "words", "content": "words", "doc_id": "1"}]],
    "date_string": ["01 Jan 2026"],
    "current_date": ["2026-01-01"],
    "model_identity": ["You are Nestling."],
    "builtin_tools": [["browser", "python"]],
    "custom_tools": [[WEATHER]],
    "xml_tools": [[WEATHER]],
    "python_tools": [["now"]],
    "system_message": ["Hello."],
    "thinking_budget": [0, 512],
    "functions": [[WEATHER["function"]]],
    "datetime": ["now"],
    "today": ["2026-01-01"],
    "controls": [{"length": "long"}],
    "available_tools": [[WEATHER]],
}
GIVEN = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}
GLOBALS = {"raise_exception", "strftime_now", "range", "dict", "namespace", "lipsum", "cycler", "joiner"}
WITH_OPTIONS = ["system", "reasoned", "call", "call answered"]


class Clock(datetime):
    @staticmethod
    def now():
        return NOW


def options_of(template: str) -> list:
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    environment.globals.clear()
    source = template.replace("endgeneration", "endif").replace(" generation ", " if true ")
    names = sorted(jinja2.meta.find_undeclared_variables(environment.parse(source)) - GIVEN - GLOBALS)
    return [{name: value} for name in names for value in VALUES.get(name, BOOLEANS)]


def render(compiled, conversation, generation, options):
    variables = {"messages": conversation["messages"], "tools": conversation.get("tools"), "documents": None}
    variables |= {"add_generation_prompt": generation, "bos_token": "<s>", "eos_token": "</s>", **options}
    try:
        return compiled.render(**json.loads(json.dumps(variables)))
    except Exception:
        return None


def cases_of(template: str) -> list:
    compiled = chat_template_utils._compile_jinja_template(template)
    cases = []
    for name, conversation in CONVERSATIONS.items():
        tried = [{}, *(options_of(template) if name in WITH_OPTIONS else [])]
        for options in tried:
            for generation in [True, False]:
                text = render(compiled, conversation, generation, options)
                digest = None if text is None else hashlib.sha256(text.encode()).hexdigest()[:16]
                cases.append([name, generation, options, digest])
    return cases


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA / "published"
    output = Path(sys.argv[2]) if len(sys.argv) > 2 else DATA / "published_goldens.json"
    chat_template_utils.datetime = Clock
    goldens = {}
    for path in sorted(folder.glob("*.jinja")):
        goldens[path.name] = cases_of(path.read_text(encoding="utf-8"))
    lines = [f' {json.dumps(name)}: [\n  ' + ",\n  ".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n ]" for name, cases in goldens.items()]
    head = f'"made_with": "transformers {transformers.__version__}, jinja2 {jinja2.__version__}"'
    conversations = json.dumps(CONVERSATIONS, ensure_ascii=False)
    output.write_text(f'{{{head},\n"conversations": {conversations},\n"rendered": {{\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")
    flat = [case for cases in goldens.values() for case in cases]
    print(f"{len(goldens)} templates, {len(flat)} cases, {sum(case[3] is None for case in flat)} raise -> {output}")


if __name__ == "__main__":
    main()
