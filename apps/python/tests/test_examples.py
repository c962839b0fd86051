"""The examples as programs, against what the Rust program says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BUNDLED, DENSE_GGUF, EXAMPLES, GGUF

import nestling


def run(name: str, *arguments: str | Path) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{name}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def rust(program: str, prompt: str, tokens: int, *more: str) -> str:
    """What the program `nestling` writes after a prompt."""
    command = [program, "run", "-m", str(BUNDLED), "--device", "cpu", "-p", prompt]
    command += ["-n", str(tokens), "--temp", "0", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def test_chat(program: str) -> None:
    said = ["Tell me a story about a ship.", "And what did the captain say?"]
    out = run("chat.py", BUNDLED)
    transcript = json.loads(out.splitlines()[-1])
    texts = [message["content"] for message in transcript]
    assert [texts[0], texts[2]] == said
    assert out.startswith(f"{texts[1]}\n{texts[3]}\n") and texts[1] and texts[3]
    # What the program says to the first message.
    assert texts[1] == rust(program, said[0], 40, "--chat").removesuffix("\n")


def test_cancel() -> None:
    assert run("cancel.py", BUNDLED).splitlines()[-1].startswith("cancelled, ")


def test_tools(tool_folder: Path) -> None:
    call, arguments, result, end = run("tools.py", tool_folder).splitlines()
    values = json.loads(arguments)
    assert call == "calls weather" and set(values) == {"city", "days"}
    assert values["city"] in ("Bergen", "Lisbon") and values["days"] in (1, 2, 3)
    assert result == f"{values['city']}: rain for {values['days']} days"
    assert end in ("length", "stop")


def test_threads(program: str) -> None:
    out = run("threads.py", BUNDLED)
    assert out.startswith("The captain said" + rust(program, "The captain said", 32).rstrip("\n"))


def test_budget(program: str) -> None:
    out = run("budget.py", BUNDLED)
    assert "1 byte: a memory budget of 1 byte" in out
    assert out.startswith(rust(program, "The captain said", 40).rstrip("\n"))


def test_snapshot(tmp_path: Path, program: str) -> None:
    file = tmp_path / "session"
    begun = run("snapshot.py", BUNDLED, "save", file).removesuffix("\n")
    rest = run("snapshot.py", BUNDLED, "restore", file).removesuffix("\n")
    assert begun + rest == rust(program, "The captain said", 32).removesuffix("\n")


@pytest.mark.parametrize("file", [GGUF, DENSE_GGUF], ids=lambda file: file.stem)
def test_gguf(file: Path) -> None:
    tokens = [int(line) for line in run("gguf.py", file).split()]
    assert len(tokens) == 8
    # Each is the likeliest after those before it, as they are computed all at once.
    rows = nestling.open(file, device="cpu").logprobs([3, 1, 4, 1, 5, *tokens])
    assert rows[4:12].argmax(axis=1).tolist() == tokens


def test_asynchronous() -> None:
    assert run("asynchronous.py", BUNDLED) == run("threads.py", BUNDLED)


def test_form() -> None:
    assert run("form.py", BUNDLED).startswith("Ship(name=")


def test_likelihood() -> None:
    sea, xylophone, best = run("likelihood.py", BUNDLED).splitlines()
    assert float(sea.split()[0]) > float(xylophone.split()[0])
    assert best.startswith("most likely next: ")
