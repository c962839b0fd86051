"""Sends the requests that coding agents are known to send, and reports each one that the server refuses.

    python agents_client.py PROGRAM
    python agents_client.py --url http://127.0.0.1:8080/v1 --model NAME

The requests are the files in `../agents`, recorded from the default configuration of Claude Code, Codex CLI, opencode
and aider. Their texts are placeholders. A prompt that is too long for the bundled model counts as accepted.
"""

import argparse
import http.client
import json
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from program import BUNDLED, Served, tool_model

FIXTURES = Path(__file__).resolve().parents[1] / "agents"
CONTEXT = 32768
# Requests that only a server with a web search can answer, and the field that the error names.
REFUSED = {"claude_code_web_search": "tools[0].type"}
# Lines of a stream to read before the connection is closed, which cancels the generation.
LINES = 40
STREAM_ERRORS = ('"type":"error"', '"type":"response.failed"', '{"error":')
# Parts of the error messages and codes that agents take for a context overflow.
OVERFLOW = ("context_length_exceeded", "prompt is too long", "exceed context limit", "maximum context length")


class Outcome(NamedTuple):
    """Status, names of the ignored fields and text of a response."""

    status: int
    ignored: str
    text: str


def fixtures() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(FIXTURES.glob("*.json")):
        yield path.stem, json.loads(path.read_text())


def with_model(body: dict[str, Any] | None, model: str) -> bytes | None:
    return None if body is None else json.dumps({**body, "model": model}).encode()


def read_text(reply: http.client.HTTPResponse) -> str:
    """Returns the body, or the first lines of a stream."""
    if reply.headers.get_content_type() != "text/event-stream":
        return reply.read().decode()
    lines = (reply.readline().decode() for _ in range(LINES))
    return "".join(lines)


def send(base: str, model: str, fixture: dict[str, Any]) -> Outcome:
    request = urllib.request.Request(
        base.removesuffix("/v1") + fixture["path"],
        data=with_model(fixture["body"], model),
        headers=fixture["headers"],
        method=fixture["method"],
    )
    try:
        reply = urllib.request.urlopen(request, timeout=300)
    except urllib.error.HTTPError as error:
        return Outcome(error.code, "", error.read().decode())
    with reply:
        return Outcome(reply.status, reply.headers.get("x-nestling-ignored", ""), read_text(reply))


def is_overflow(outcome: Outcome) -> bool:
    return outcome.status in (400, 413) and any(part in outcome.text for part in OVERFLOW)


def is_accepted(outcome: Outcome) -> bool:
    compact = outcome.text.replace('": ', '":')
    return outcome.status == 200 and not any(error in compact for error in STREAM_ERRORS)


def check(base: str, model: str, overflow_allowed: bool) -> list[str]:
    """Sends all requests and returns a line for each failure."""
    failures = []
    for name, fixture in fixtures():
        outcome = send(base, model, fixture)
        if is_accepted(outcome):
            print("ok", name, f"(ignored: {outcome.ignored})" if outcome.ignored else "")
        elif outcome.status == 400 and REFUSED.get(name, "-") in outcome.text:
            print("ok", name, f"(refused: {REFUSED[name]})")
        elif overflow_allowed and is_overflow(outcome):
            print("ok", name, "(longer than the context)")
        else:
            failures.append(f"{name}: {outcome.status} {outcome.text.strip()}")
    return failures


def long_model(folder: Path) -> Path:
    """Creates the model with tools, with a context that has room for each request."""
    path = tool_model(folder) / "config.json"
    config = json.loads(path.read_text())
    config["max_position_embeddings"] = CONTEXT
    path.write_text(json.dumps(config))
    return folder


def check_program(program: str) -> list[str]:
    with Served(program, BUNDLED, "story") as served:
        failures = check(served.url, "story", overflow_allowed=True)
    with tempfile.TemporaryDirectory() as folder:
        with Served(program, long_model(Path(folder) / "tools"), "tools") as served:
            failures += check(served.url, "tools", overflow_allowed=False)
    return failures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="?")
    parser.add_argument("--url")
    parser.add_argument("--model", default="MODEL")
    chosen = parser.parse_args()
    if chosen.url:
        failures = check(chosen.url, chosen.model, overflow_allowed=False)
    elif chosen.program:
        failures = check_program(chosen.program)
    else:
        parser.error("a program or --url is required")
    if failures:
        sys.exit("refused:\n" + "\n".join(failures))


if __name__ == "__main__":
    main()
