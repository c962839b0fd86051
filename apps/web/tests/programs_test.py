"""The seven programs of `apps/web/examples` in a headless Chromium, against the programs of `examples/embed` in Rust.

    python programs_test.py TARGET SITE

TARGET has the native `nestling` and `examples/embed`. SITE is the folder that build.sh wrote.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from served import Site

ROOT = Path(__file__).parents[3]
DATA = ROOT / "engine/runtime/tests/data"
PAGE = '<script type="importmap">{"imports": {"nestling": "/nestling/index.js"}}</script>'
TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n"
    'Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RUN = """async ([name, action, url, bytes]) => {
  const program = await import(`/examples/${name}.js`);
  let printed = "";
  const given = bytes === null ? [] : [new Uint8Array(bytes)];
  const result = await program[action]((text) => (printed += text), url, ...given);
  return { printed, bytes: result === undefined ? null : Array.from(result) };
}"""


def tool_model(target, folder):
    """Writes a store of a random model with a longer context and a template that knows tools."""
    checkpoint = folder / "tools"
    shutil.copytree(DATA / "tiny-qwen3-moe", checkpoint)
    for name, field, value in [
        ("config.json", "max_position_embeddings", 4096),
        ("tokenizer_config.json", "chat_template", TEMPLATE),
    ]:
        path = checkpoint / name
        path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    command = [target / "nestling", "convert", checkpoint, "--output", folder / "tools.nest"]
    subprocess.run(command, check=True, capture_output=True)


def native(target, *arguments):
    command = [target / "examples/embed", *arguments]
    environment = {"VK_DRIVER_FILES": "none", "VK_ICD_FILENAMES": "none", "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    # As bytes, since text mode would replace a carriage return.
    return subprocess.run(command, check=True, capture_output=True, env=environment).stdout.decode()


def main(target, site_folder):
    target = Path(target)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as play:
        folder = Path(temporary)
        shutil.copytree(Path(site_folder) / "nestling", folder / "nestling")
        shutil.copytree(ROOT / "apps/web/examples", folder / "examples")
        (folder / "programs.html").write_text(PAGE)
        shutil.copy(ROOT / "models/nestling-storyteller.nest", folder / "story.nest")
        shutil.copy(DATA / "gguf/llama.gguf", folder / "llama.gguf")
        tool_model(target, folder)
        site = Site(folder)
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        context = play.chromium.launch_persistent_context(
            folder / "profile", executable_path=chromium, args=["--no-sandbox"]
        )
        page = context.new_page()
        page.goto(site.url + "/programs.html")
        models = {name: "story.nest" for name in ["chat", "cancel", "threads", "budget"]}
        for name, model in {**models, "tool": "tools.nest", "gguf": "llama.gguf"}.items():
            expected = native(target, name, folder / model)
            printed = page.evaluate(RUN, [name, "run", "/" + model, None])["printed"]
            assert expected and printed == expected, f"{name}: expected {expected!r}, found {printed!r}"
            print(f"{name}: the same text as in Rust")
        story = folder / "story.nest"
        begun = native(target, "snapshot", story, "save", folder / "of-rust")
        saved = page.evaluate(RUN, ["snapshot", "save", "/story.nest", None])
        assert saved["printed"] == begun, (saved["printed"], begun)
        (folder / "of-page").write_bytes(bytes(saved["bytes"]))
        rest = native(target, "snapshot", story, "restore", folder / "of-rust")
        for file in ["of-rust", "of-page"]:
            assert native(target, "snapshot", story, "restore", folder / file) == rest, file
            found = page.evaluate(RUN, ["snapshot", "restore", "/story.nest", list((folder / file).read_bytes())])
            assert found["printed"] == rest, (file, found["printed"], rest)
        print("snapshot: read by the page and by Rust")
        context.close()
    listed = (ROOT / "docs/embed/javascript.md").read_text()
    for example in sorted((ROOT / "apps/web/examples").glob("*.js")):
        assert f"(../../apps/web/examples/{example.name})" in listed, f"docs/embed/javascript.md does not name {example.name}"
    print("the seven programs: all passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
