"""The program under test: started on a free port, ended with SIGTERM."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
BUNDLED = ROOT / "models/nestling-storyteller.nest"
TINY = ROOT / "engine/runtime/tests/data/tiny-qwen3-moe"

# What clients ask, and with which key.
KEY = "sk-clients-test"
STORY = [{"role": "user", "content": "Tell me a story about a ship."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}

TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n"
    'Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tool_model(folder, context=4096, source=TINY):
    """Random weights with a longer context and a template that knows tools."""
    shutil.copytree(source, folder)
    for file, name, value in [
        ("config.json", "max_position_embeddings", context),
        ("tokenizer_config.json", "chat_template", TEMPLATE),
    ]:
        path = Path(folder) / file
        fields = json.loads(path.read_text())
        fields[name] = value
        path.write_text(json.dumps(fields))
    return Path(folder)


class Served:
    """A running server of a model, or of what the options say; `url` is what clients take for their base."""

    def __init__(self, program, model, name, *options):
        chosen = ["-m", str(model), "--alias", name] if model else []
        command = [program, "serve", "--port", "0", "-t", "2", *chosen]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("NESTLING_", "HF_"))}
        environment["NESTLING_DEVICE"] = "cpu"
        self.process = subprocess.Popen(
            [*command, *options], stderr=subprocess.PIPE, text=True, env=environment
        )
        self.said = []
        for line in self.process.stderr:
            self.said.append(line)
            if found := re.search(r"(?:is|are) served at (http://\S+/v1)", line):
                self.url = found.group(1)
                return
        sys.exit("the server ended before it served:\n" + "".join(self.said))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=30)
        assert code == 0, f"the server ended with {code}: {self.process.stderr.read()}"


def each_model(program):
    """Yields a server of the bundled model, whose template has no tools, and then one of a model with native tools."""
    with tempfile.TemporaryDirectory() as folder:
        for path, name in [(BUNDLED, "story"), (tool_model(Path(folder) / "tools"), "tools")]:
            with Served(program, path, name) as served:
                yield served, name
