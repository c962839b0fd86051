"""Starts Dynamo's frontend and two workers, and checks what clients see.

    python replicas.py --program PATH_OF_NESTLING [--speed]

Nothing but loopback is used: discovery is a folder, and there is neither etcd nor NATS.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "models" / "nestling-storyteller.nest"
NAME = "nestling-storyteller"
PROMPT = "The ship went down into"
CHAT = [{"role": "user", "content": "Tell me a story about a ship and a storm."}]
#: Seconds until a process is ready, on a busy machine.
PATIENCE = 180
#: Tokens of an answer that is long enough to be interrupted.
LONG = 900


@dataclass
class Reply:
    """A streamed answer as its client saw it."""

    status: int
    text: str = ""
    reason: str | None = None
    #: Number of chunks with text.
    chunks: int = 0
    error: dict[str, Any] | None = None
    is_done: bool = False
    usage: dict[str, Any] = field(default_factory=dict)


def free_port() -> int:
    """Returns a free port below 32768, the largest that Dynamo 1.6.1 takes as DYN_SYSTEM_PORT."""
    while True:
        port = random.randrange(20000, 32768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_until(what: str, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.05)


class Stand:
    """A frontend and its workers, in a folder of their own."""

    def __init__(self, folder: Path, migrations: int) -> None:
        self.folder = folder
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ports: list[int] = []
        self.environment = os.environ | {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(folder / "discovery"),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_EVENT_PLANE_HOST": "127.0.0.1",
            "DYN_SYSTEM_HOST": "127.0.0.1",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "DYN_LOG": "warn",
        }
        arguments = ["--http-host", "127.0.0.1", "--http-port", str(self.port), "--router-mode", "round-robin"]
        self.start("dynamo.frontend", *arguments, "--migration-limit", str(migrations))

    def start(self, module: str, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{len(self.processes)}-{module}.log").open("wb")
        command = [sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(command, env=self.environment | more, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def add_worker(self) -> subprocess.Popen[bytes]:
        """Starts a worker and waits until it answers requests."""
        port = free_port()
        process = self.start("nestling_dynamo", str(MODEL), "--threads", "1", DYN_SYSTEM_PORT=str(port))
        self.ports.append(port)
        before = len(self.ports) - 1
        wait_until("a worker's metrics", lambda: process.poll() is not None or "nestling_" in self.metrics(before))
        assert process.poll() is None, "the worker ended"
        wait_until("the frontend knows the model", lambda: NAME in self.get(self.port, "/v1/models"))
        wait_until("the frontend knows the worker", lambda: self.reaches(before))
        return process

    def reaches(self, worker: int) -> bool:
        self.ask(max_tokens=1)
        return self.counter(worker, "nestling_completions_total") > 0

    def get(self, port: int, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
                return str(reply.read().decode())
        except OSError:
            return ""

    def metrics(self, worker: int) -> str:
        return self.get(self.ports[worker], "/metrics")

    def counter(self, worker: int, name: str, label: str = "") -> float:
        """Sum of a metric's samples that have the label."""
        lines = re.findall(rf"^{name}{{(.*)}} (\S+)$", self.metrics(worker), re.M)
        return sum(float(value) for labels, value in lines if label in labels)

    def running(self) -> float:
        return sum(self.counter(worker, "nestling_requests_running") for worker in range(len(self.ports)))

    def ask(self, on_chunk: Callable[[int], None] | None = None, **fields: Any) -> Reply:
        return ask(self.port, on_chunk, **fields)

    def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def logs(self) -> Iterator[str]:
        for path in sorted(self.folder.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()
            yield "\n".join([f"--- {path.name}", *(line[:300] for line in lines[-20:])])


def ask(port: int, on_chunk: Callable[[int], None] | None = None, **fields: Any) -> Reply:
    """Sends a request and reads the streamed answer; `on_chunk` is called after each chunk with text."""
    path = "/v1/completions" if "prompt" in fields else "/v1/chat/completions"
    if "prompt" not in fields:
        fields = {"messages": CHAT, **fields}
    body = {"model": NAME, "stream": True, "temperature": 0, **fields}
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        reply = Reply(answer.status)
        if answer.status != 200:
            reply.error = json.loads(answer.read())
            return reply
        for raw in answer:
            line = raw.decode().strip()
            if line == "data: [DONE]":
                reply.is_done = True
                break
            if line.startswith("data: "):
                take(reply, line.removeprefix("data: "), on_chunk)
    return reply


def take(reply: Reply, data: str, on_chunk: Callable[[int], None] | None) -> None:
    # An error in a stream has the prefix twice in Dynamo 1.6.1.
    event = json.loads(data.removeprefix("data: "))
    reply.error = event.get("error", reply.error)
    reply.usage = event.get("usage") or reply.usage
    for choice in event.get("choices", ()):
        text = choice.get("text") or choice.get("delta", {}).get("content") or ""
        reply.text += text
        reply.reason = choice.get("finish_reason") or reply.reason
        if text:
            reply.chunks += 1
            if on_chunk is not None:
                on_chunk(reply.chunks)


def run_program(program: str, *arguments: str, model: Path = MODEL) -> str:
    command = [program, "run", str(model), "--temp", "0", "--quiet", "--threads", "1", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check_texts(stand: Stand, program: str) -> None:
    reply = stand.ask(prompt=PROMPT, max_tokens=80)
    expected = run_program(program, "-n", "80", "-p", PROMPT)
    assert (reply.status, reply.reason, reply.is_done) == (200, "length", True), reply
    assert reply.text.strip() == expected.strip(), (reply.text, expected)
    assert reply.usage["completion_tokens"] == 80, reply.usage
    assert reply.chunks > 20, f"{reply.chunks} chunks"
    chat = stand.ask(max_tokens=80)
    expected = run_program(program, "-n", "80", "--chat", "-p", CHAT[0]["content"])
    assert chat.text.strip() == expected.strip(), (chat.text, expected)
    print(f"texts: those of `nestling run`, in {reply.chunks} chunks of 80 tokens; conversations too")


def is_answered(stand: Stand, request: dict[str, Any]) -> bool:
    return stand.ask(**request).reason is not None


def check_models(stand: Stand, program: str) -> None:
    """A checkpoint and a GGUF file, each with a worker of its own behind the same frontend."""
    data = ROOT / "engine" / "runtime" / "tests" / "data"
    checkpoint = data / "tiny-qwen3-moe"
    gguf = data / "gguf" / "qwen3-moe.gguf"
    workers = [
        stand.start("nestling_dynamo", str(checkpoint), "--component", "checkpoint"),
        stand.start("nestling_dynamo", str(gguf), "--component", "gguf", "--tokenizer", str(checkpoint)),
    ]
    for name, path in (("tiny-qwen3-moe", checkpoint), ("qwen3-moe", gguf)):
        request: dict[str, Any] = {"model": name, "prompt": PROMPT, "max_tokens": 5, "ignore_eos": True}
        wait_until(f"{name} is served", functools.partial(is_answered, stand, request))
        expected = run_program(program, "-n", "5", "-p", PROMPT, model=path)
        text = stand.ask(**request).text
        # Tokens of these random models need not be whole characters, which the program prints otherwise at the end.
        assert text.rstrip("\ufffd") == expected.rstrip("\ufffd\n"), (name, text, expected)
    for worker in workers:
        worker.kill()
    print("models: a checkpoint and a GGUF file have the texts of `nestling run`, too")


def check_fields(stand: Stand) -> None:
    refused: list[tuple[str, dict[str, Any]]] = [
        ("min_tokens", {"min_tokens": 3}),
        ("include_stop_str_in_output", {"include_stop_str_in_output": True}),
        ("prompt_logprobs", {"prompt_logprobs": 1}),
        ("max_thinking_tokens", {"nvext": {"max_thinking_tokens": 4}}),
        ("`n` of 2", {"n": 2, "temperature": 1}),
        ("backend", {"guided_regex": "a+", "guided_decoding_backend": "xgrammar"}),
        ("seed", {"seed": -1}),
        ("regular expression", {"guided_regex": "a("}),
        ("context", {"messages": [{"role": "user", "content": "a ship " * 2000}]}),
    ]
    for words, fields in refused:
        reply = stand.ask(stream=False, **fields)
        assert reply.status == 400 and words in str(reply.error), (fields, reply)
        # A stream has begun when the worker refuses the request.
        reply = stand.ask(**fields)
        code = (reply.error or {}).get("code")
        assert code == 400 and words in str(reply.error) and not reply.text, (fields, reply)
    stop = stand.ask(max_tokens=80, stop=["the"])
    assert stop.reason == "stop" and "the" not in stop.text and stop.text, stop
    one, other = (stand.ask(max_tokens=20, temperature=1, seed=7).text for _ in range(2))
    assert one == other and one != stand.ask(max_tokens=20, temperature=1, seed=8).text, (one, other)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["bb", "cc"]}}}
    assert json.loads(stand.ask(response_format=form).text) in ("bb", "cc")
    assert stand.ask(guided_choice=["storm", "calm"]).text in ("storm", "calm")
    assert re.fullmatch("a+b", stand.ask(guided_regex="a{1,9}b").text)
    salted = stand.ask(max_tokens=5, nvext={"cache_salt": "a"})
    assert salted.status == 200, salted
    check_logprobs(stand)
    print(f"fields: {len(refused)} refused by name; stop, seed, schema, choice, regex, salt and log-probabilities honoured")


def check_logprobs(stand: Stand) -> None:
    body = {"model": NAME, "messages": CHAT, "max_tokens": 3, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    request = urllib.request.Request(
        f"http://127.0.0.1:{stand.port}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        content = json.load(reply)["choices"][0]["logprobs"]["content"]
    assert len(content) == 3, content
    for token in content:
        assert token["logprob"] <= 0 and len(token["top_logprobs"]) == 2, token
        assert token["top_logprobs"][0]["token"] == token["token"], token


def check_distribution(stand: Stand) -> None:
    def completions() -> list[float]:
        return [stand.counter(worker, "nestling_completions_total") for worker in range(2)]

    before = completions()
    texts = {stand.ask(max_tokens=10).text for _ in range(10)}
    # A worker counts an answer after its last chunk.
    wait_until("all are counted", lambda: sum(completions()) == sum(before) + 10, 20)
    counts = [after - was for after, was in zip(completions(), before, strict=True)]
    assert min(counts) >= 4, counts
    assert len(texts) == 1, texts
    print(f"replicas: 10 requests, {counts[0]:.0f} and {counts[1]:.0f}, one text")


def check_cancellation(stand: Stand, last: int) -> None:
    def left() -> float:
        return sum(stand.counter(worker, "nestling_completions_total", 'reason="cancelled"') for worker in range(2))

    def generated() -> float:
        return sum(stand.counter(worker, "nestling_generation_tokens_total") for worker in range(2))

    class Leave(Exception):
        pass

    def leave(chunk: int) -> None:
        if chunk == last:
            raise Leave

    before, tokens = left(), generated()
    try:
        stand.ask(leave, max_tokens=LONG, ignore_eos=True)
        raise AssertionError("the client did not leave")
    except Leave:
        pass
    wait_until("the worker stops", lambda: left() == before + 1 and stand.running() == 0, 20)
    computed = generated() - tokens
    assert last <= computed < LONG, computed
    time.sleep(0.3)
    assert generated() - tokens == computed
    print(f"cancellation: the client left after {last} chunks of {LONG} tokens, the worker stopped after {computed:.0f} tokens")


def kill_while_running(stand: Stand, **fields: Any) -> tuple[Reply, int]:
    """Asks for a long answer and kills the worker that computes it. Returns the reply and the worker's number."""
    killed: list[int] = []

    def kill(chunk: int) -> None:
        if chunk != 3:
            return
        for worker in range(len(stand.ports)):
            if stand.counter(worker, "nestling_requests_running") == 1:
                stand.processes[worker + 1].send_signal(signal.SIGKILL)
                killed.append(worker)

    reply = stand.ask(kill, ignore_eos=True, **fields)
    assert len(killed) == 1, f"killed {killed}; the answer had ended before: {reply.chunks} chunks"
    return reply, killed[0]


def check_migration(stand: Stand) -> None:
    whole = stand.ask(max_tokens=LONG, ignore_eos=True)
    assert whole.usage["completion_tokens"] == LONG, whole.usage
    reply, killed = kill_while_running(stand, max_tokens=LONG)
    survivor = 1 - killed
    assert reply.error is None and reply.is_done and reply.reason == "length", reply
    assert reply.text == whole.text
    for _ in range(4):
        assert stand.ask(max_tokens=10).reason == "length"
    assert stand.counter(survivor, "nestling_completions_total") > 0
    print("a worker killed in mid-answer: the other one continued, the client saw the same text; 4 further requests succeeded")


def check_loss(stand: Stand) -> None:
    """Without migration."""
    reply, killed = kill_while_running(stand, max_tokens=LONG)
    stand.processes[killed + 1].wait()
    assert reply.error is not None and reply.error["code"] == 503 and reply.reason is None, reply
    print(f"the same without migration: {reply.chunks} chunks, then {json.dumps(reply.error)}")
    failed = -1
    reason = None
    while reason != "length":
        failed += 1
        assert failed < 5, "requests fail for good"
        reason = stand.ask(max_tokens=5).reason
    print(f"the next request succeeded after {failed} failed ones")


def check_shutdown(stand: Stand) -> None:
    """The last worker is told to end while it computes."""
    (alive,) = [worker for worker in range(2) if stand.processes[worker + 1].poll() is None]
    process = stand.processes[alive + 1]

    def end(chunk: int) -> None:
        if chunk == 3:
            process.send_signal(signal.SIGTERM)

    reply = stand.ask(end, max_tokens=LONG, ignore_eos=True)
    assert reply.error is None and reply.usage["completion_tokens"] == LONG, reply
    wait_until("the worker ends", lambda: process.poll() is not None, 60)
    assert process.returncode == 0, process.returncode
    print("a worker told to end (SIGTERM) in mid-answer: the answer was completed, then the worker ended")


def check_metrics(stand: Stand) -> None:
    text = stand.metrics(0)
    names = """nestling_prompt_tokens_total nestling_prompt_tokens_cached_total nestling_generation_tokens_total
        nestling_completions_total nestling_requests_running nestling_requests_waiting nestling_kv_pages
        nestling_kv_cache_usage_ratio nestling_memory_used_bytes nestling_memory_budget_bytes nestling_weight_bytes
        nestling_level_bits dynamo_component_requests_total dynamo_component_total_blocks""".split()
    for name in names:
        assert re.search(rf"^{name}{{", text, re.M), f"no {name}"
    assert stand.counter(0, "nestling_level_bits") == 8
    assert stand.counter(0, "nestling_kv_pages", 'state="used"') == 0
    print(f"metrics: {len(names)} of a worker; of the frontend: {len(stand.get(stand.port, '/metrics').splitlines())} lines")


def measure(stand: Stand, program: str) -> None:
    """Prints the speed of one client through Dynamo beside that of `nestling serve`, interleaved."""
    port = free_port()
    command = [program, "serve", str(MODEL), "--port", str(port), "--threads", "1"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until("nestling serve", lambda: NAME in stand.get(port, "/v1/models"))
        speeds: dict[str, list[float]] = {"dynamo": [], "serve": []}
        for round_ in range(6):
            for name, at in (("dynamo", stand.port), ("serve", port)):
                start = time.perf_counter()
                reply = ask(at, max_tokens=400, ignore_eos=True)
                assert reply.usage["completion_tokens"] == 400, reply
                if round_ > 0:
                    speeds[name].append(400 / (time.perf_counter() - start))
    finally:
        server.kill()
        server.wait()
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    print(f"tokens/s: {medians}, ratio {medians['dynamo'] / medians['serve']:.2f}, all {speeds}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--speed", action="store_true")
    arguments = parser.parse_args()
    for migrations in (3, 0):
        with tempfile.TemporaryDirectory() as folder:
            stand = Stand(Path(folder), migrations)
            try:
                stand.add_worker()
                stand.add_worker()
                if migrations == 0:
                    check_loss(stand)
                    check_shutdown(stand)
                    continue
                check_texts(stand, arguments.program)
                check_models(stand, arguments.program)
                check_fields(stand)
                check_distribution(stand)
                # The worker is told in several ways, by how far it is when the client leaves.
                for chunk in (1, 2, 3, 5, 8, 13, 21, 34):
                    check_cancellation(stand, chunk)
                check_metrics(stand)
                if arguments.speed:
                    measure(stand, arguments.program)
                check_migration(stand)
            except BaseException:
                print(*stand.logs(), sep="\n", file=sys.stderr)
                raise
            finally:
                stand.close()


if __name__ == "__main__":
    main()
