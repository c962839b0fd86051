"""Runs Claude Code, Codex CLI, opencode and aider on a scripted task and checks the file that they write.

    python coding_agents.py AGENTS [AGENT…] [--program nestling | --url http://127.0.0.1:8080/v1 --model NAME]

AGENTS is a folder with the agents' programs, which this script does not install:

    npm install --prefix AGENTS @anthropic-ai/claude-code @openai/codex opencode-ai
    python -m venv AGENTS/aider && AGENTS/aider/bin/pip install aider-chat

`--program` serves a model of random weights with it, and constrains each answer to the next step of the task. A server
at `--url` must serve a model that is able to do the task. Without both the agents run against `scripted_server.py`
alone, which checks this script. Each agent has its default configuration, an empty home and an empty Git
repository. The exceptions are the flags that allow commands and edits without a question.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from program import Served, tool_model
from scripted_server import FILE, GREETING, Script

TASK = f"List the files here. Then write a file {FILE} with this line: {GREETING.strip()}"
TIMEOUT = 600
KEY = "unused"
MODEL = "agent-model"
# The model of random weights has few words, so that an agent's prompt takes some 100,000 tokens.
CONTEXT = 262144


class Task(NamedTuple):
    """Folders of one run, and the server that it uses."""

    agents: Path
    home: Path
    work: Path
    url: str
    model: str


class Command(NamedTuple):
    """Arguments and additional environment of an agent."""

    arguments: list[str]
    environment: dict[str, str]


def npm(task: Task, name: str) -> str:
    return str(task.agents / "node_modules/.bin" / name)


def claude(task: Task) -> Command:
    allowed = ["--permission-mode", "acceptEdits", "--allowedTools", "Bash"]
    environment = {"ANTHROPIC_BASE_URL": task.url.removesuffix("/v1"), "ANTHROPIC_AUTH_TOKEN": KEY}
    return Command([npm(task, "claude"), "-p", TASK, "--model", task.model, *allowed], environment)


def codex(task: Task) -> Command:
    folder = task.home / ".codex"
    folder.mkdir()
    provider = {"name": "Nestling", "base_url": task.url, "wire_api": "responses"}
    lines = [f"model = {json.dumps(task.model)}", 'model_provider = "nestling"', "[model_providers.nestling]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in provider.items()]
    (folder / "config.toml").write_text("\n".join(lines) + "\n")
    # The sandbox needs user namespaces, which containers often lack.
    return Command([npm(task, "codex"), "exec", "--sandbox", "danger-full-access", TASK], {})


def opencode(task: Task) -> Command:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Nestling",
        "options": {"baseURL": task.url},
        "models": {task.model: {"name": task.model}},
    }
    folder = task.home / ".config/opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.json").write_text(json.dumps({"provider": {"nestling": provider}}))
    return Command([npm(task, "opencode"), "run", "--model", f"nestling/{task.model}", TASK], {})


def aider(task: Task) -> Command:
    quiet = ["--yes-always", "--no-check-update", "--analytics-disable", "--no-show-model-warnings"]
    server = ["--openai-api-base", task.url, "--openai-api-key", KEY, "--model", f"openai/{task.model}"]
    return Command([str(task.agents / "aider/bin/aider"), *server, *quiet, "--message", TASK], {})


AGENTS: dict[str, Callable[[Task], Command]] = {
    "claude": claude,
    "codex": codex,
    "opencode": opencode,
    "aider": aider,
}


def environment(task: Task, added: dict[str, str]) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(task.home), "TERM": "xterm", **added}


def run(name: str, task: Task) -> str | None:
    """Runs an agent and returns its output if the file is missing or wrong."""
    subprocess.run(["git", "init", "--quiet", str(task.work)], check=True)
    command = AGENTS[name](task)
    try:
        done = subprocess.run(
            command.arguments,
            cwd=task.work,
            env=environment(task, command.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return f"no result after {TIMEOUT} s"
    file = task.work / FILE
    if not file.exists():
        return f"{FILE} is missing, exit status {done.returncode}:\n{done.stdout}"
    if file.read_text().strip() != GREETING.strip():
        return f"{FILE} has another text: {file.read_text()!r}\n{done.stdout}"
    return None if done.returncode == 0 else f"exit status {done.returncode}:\n{done.stdout}"


@contextmanager
def scripted(record: Path, work: Path, through: str | None) -> Iterator[str]:
    """Starts the scripted server and yields its base URL."""
    with Script(record, work, through=through) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def check(name: str, agents: Path, url: str | None, model: str, through: str | None = None) -> bool:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home, work = Path(folder) / "home", Path(folder) / "work"
        home.mkdir()
        work.mkdir()
        if url:
            failure = run(name, Task(agents, home, work, url, model))
        else:
            with scripted(Path(folder) / "requests", work, through) as own:
                failure = run(name, Task(agents, home, work, own, model))
    print(f"failed {name}: {failure}" if failure else f"ok {name}", flush=True)
    return failure is None


def check_program(program: str, agents: Path, names: list[str]) -> list[bool]:
    with tempfile.TemporaryDirectory() as folder:
        model = tool_model(Path(folder) / "model", CONTEXT)
        with Served(program, model, MODEL, "--ctx-size", "0") as served:
            return [check(name, agents, None, MODEL, served.url) for name in names]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("agents", type=Path)
    parser.add_argument("names", nargs="*", metavar="AGENT", help=", ".join(AGENTS))
    parser.add_argument("--program")
    parser.add_argument("--url")
    parser.add_argument("--model", default="MODEL")
    chosen = parser.parse_args()
    agents = chosen.agents.resolve()
    names = chosen.names or list(AGENTS)
    if chosen.program:
        results = check_program(chosen.program, agents, names)
    else:
        results = [check(name, agents, chosen.url, chosen.model) for name in names]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
