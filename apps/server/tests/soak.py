"""A server under hours of hostile and honest requests at once.

    python soak.py PROGRAM [SECONDS]

Three models take turns within memory for fewer, each for a short time. Every request that was sent whole must be answered,
with a status and, where it is an error, an object. At the end nothing runs and no page is held by anybody; memory, once all
models have been open, may grow by GROWTH at most: the medians of the first and of the last fifth are compared, so that a
moment in which one more model is open decides nothing.
"""

import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent / "clients"))
from program import BUNDLED, Served, tool_model

# Of memory at the start that may come to it, in parts and in bytes.
GROWTH, SLACK = 0.10, 48 << 20
MODELS = ["story", "story-two", "tools"]
# The bundled model takes some 60 MB, so that not all three are open at a time.
MEMORY, KEEP_ALIVE = "140MB", "2s"
TIMEOUT = 180
WORKERS = 8

WORDS = "ship harbour wind rope storm captain lantern island gull anchor".split()
STATUSES = {200, 400, 404, 405, 408, 409, 413, 415, 429, 431, 500, 501, 503, 529}


def text(draw, least, most):
    return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))


def honest(draw):
    """A request that is right: path and body."""
    model, count, stream = draw.choice(MODELS), draw.randint(1, 40), draw.random() < 0.6
    asked = {"model": model, "stream": stream}
    talk = [{"role": "user", "content": text(draw, 1, 120)}]
    return draw.choice([
        ("/v1/chat/completions", asked | {"messages": talk, "max_tokens": count, "n": draw.choice([1, 1, 3])}),
        ("/v1/completions", asked | {"prompt": text(draw, 1, 200), "max_tokens": count, "logprobs": 2}),
        ("/v1/responses", asked | {"input": talk, "max_output_tokens": count + 16, "store": False}),
        ("/v1/messages", asked | {"messages": talk, "max_tokens": count}),
        ("/api/chat", asked | {"messages": talk, "options": {"num_predict": count}}),
        ("/api/generate", asked | {"prompt": text(draw, 1, 50), "options": {"num_predict": count}}),
        ("/tokenize", {"model": model, "prompt": text(draw, 1, 500)}),
        ("/v1/messages/count_tokens", {"model": model, "messages": talk}),
    ])


def schema(depth):
    inner = {"type": "string"}
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": inner, "b": {"type": "integer"}}, "required": ["a"]}
    return inner


def hostile(draw):
    """A body that is wrong, or costs much for its length."""
    path, body = honest(draw)
    chat = "/v1/chat/completions"
    asked = {"model": draw.choice(MODELS), "messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
    whole = json.dumps(body)
    form = lambda schema: {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 100} for i in range(400)}}
    bodies = [
        lambda: (path, "[" * 100_000),
        lambda: (path, '{"a":' * 5_000 + "1" + "}" * 5_000),
        lambda: (path, whole[: draw.randint(0, len(whole) - 1)]),
        lambda: (path, bytes(draw.getrandbits(8) for _ in range(draw.randint(0, 3000)))),
        lambda: (path, json.dumps(body | {"unheard_of": 1})),
        lambda: (path, json.dumps(body | {"model": "../../etc/passwd"})),
        lambda: (path, json.dumps(body | {draw.choice(list(body)): draw.choice([None, -1, [], {}, 1e308, "x" * 9999])})),
        lambda: (chat, json.dumps(asked | {"response_format": form(schema(draw.randint(1, 60)))})),
        lambda: (chat, json.dumps(asked | {"response_format": form(wide)})),
        lambda: (chat, json.dumps(asked | {"messages": [{"role": "user", "content": text(draw, 3000, 60_000)}]})),
        lambda: (chat, json.dumps(asked | {"stop": ["a", "b" * 1000], "logit_bias": {"2": -100, "3": 100}})),
        lambda: (chat, json.dumps(asked | {"messages": asked["messages"] * 4000})),
    ]
    return draw.choice(bodies)()


class Soak:
    def __init__(self, served, seconds):
        place = urlsplit(served.url)
        self.address = (place.hostname, place.port)
        self.process = served.process
        self.end = time.monotonic() + seconds
        self.counts, self.wrong, self.lock = Counter(), [], threading.Lock()

    def note(self, what):
        with self.lock:
            self.counts[what] += 1

    def fail(self, what):
        with self.lock:
            self.wrong.append(what)

    def ask(self, method, path, body=None, headers=()):
        """The status and the whole body of an answer."""
        connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT)
        try:
            sent = {"Content-Type": "application/json", "Host": "localhost"} | dict(headers)
            connection.request(method, path, body, sent)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def whole(self, kind, path, body):
        """Sends all of a request, and looks whether it is answered."""
        try:
            status, said = self.ask("POST", path, body)
        except (OSError, http.client.HTTPException) as error:
            self.fail(f"{kind} {path} was not answered: {error!r}; {body[:300]!r}")
            return
        self.note(f"{kind} {status}")
        if status not in STATUSES or (kind == "honest" and status not in (200, 503, 529)):
            self.fail(f"{kind} {path}: {status} {said[:300]!r}; {body[:300]!r}")
        if status == 500:
            self.fail(f"{kind} {path}: {said[:300]!r}; {body[:300]!r}")
        if status != 200:
            error = json.loads(said).get("error")
            if not (isinstance(error, str) or isinstance(error.get("message"), str)):
                self.fail(f"{kind} {path}: no error in {said[:300]!r}")

    def raw(self, draw):
        """What is not HTTP as clients speak it: slow, cut, too many lines, or gone before the answer."""
        path, body = honest(draw)
        body = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
        kind = draw.choice(["gone", "gone", "cut", "slow", "lines", "line", "noise", "lies"])
        with socket.create_connection(self.address, timeout=TIMEOUT) as stream:
            length = b"Content-Length: %d\r\n\r\n" % len(body)
            if kind == "gone":
                stream.sendall(head + length + body)
                time.sleep(draw.random() * 0.5)
                if draw.random() < 0.5:
                    stream.recv(300)
            elif kind == "cut":
                stream.sendall((head + length + body)[: draw.randint(1, len(head) + len(body))])
            elif kind == "slow":
                for at in range(0, len(body), max(1, len(body) // 5)):
                    stream.sendall((head + length if at == 0 else b"") + body[at : at + max(1, len(body) // 5)])
                    time.sleep(draw.random() * 0.3)
                if not stream.recv(12).startswith(b"HTTP/1.1 "):
                    self.fail(f"slow {path} was not answered")
            elif kind == "lines":
                stream.sendall(head + b"".join(b"X-%d: 1\r\n" % i for i in range(3000)) + b"\r\n")
                stream.recv(100)
            elif kind == "line":
                stream.sendall(head + b"X: " + b"y" * 200_000 + b"\r\n\r\n")
                stream.recv(100)
            elif kind == "noise":
                stream.sendall(bytes(draw.getrandbits(8) for _ in range(2000)))
            else:
                stream.sendall(head + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + body)
                stream.recv(100)
        self.note(kind)

    def flood(self, draw):
        """Many connections at once that say nothing."""
        streams = []
        try:
            for _ in range(draw.randint(20, 200)):
                streams.append(socket.create_connection(self.address, timeout=TIMEOUT))
            time.sleep(draw.random())
        finally:
            for stream in streams:
                stream.close()
        self.note("flood")

    def work(self, seed):
        draw = random.Random(seed)
        while time.monotonic() < self.end:
            dice = draw.random()
            try:
                if dice < 0.5:
                    path, body = honest(draw)
                    self.whole("honest", path, json.dumps(body))
                elif dice < 0.75:
                    self.whole("hostile", *hostile(draw))
                elif dice < 0.98:
                    self.raw(draw)
                else:
                    self.flood(draw)
            except OSError:
                # The server may close what is wrong before all of it is sent.
                self.note("closed")
            except Exception as error:
                self.fail(f"{error!r}")

    def bytes_held(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) << 10

    def status(self):
        code, body = self.ask("GET", "/status")
        assert code == 200, body
        return [one["value"] for one in json.loads(body)["models"]]

    def is_at_rest(self):
        names = ["running", "waiting", "promised"]
        return all(
            one["running"] == 0 and one["waiting"] == 0 and one["requests_free"] == 256
            and all(one["pages"][name] == 0 for name in names)
            for one in self.status()
        )


def run(served, seconds):
    soak = Soak(served, seconds)
    seed = int(os.environ.get("SOAK_SEED", "1"))
    workers = [threading.Thread(target=soak.work, args=(seed * 1000 + n,)) for n in range(WORKERS)]
    for worker in workers:
        worker.start()
    held = []
    # The first tenth is for all that is allocated once.
    warm = time.monotonic() + seconds / 10
    while time.monotonic() < soak.end:
        time.sleep(min(1.0, seconds / 100))
        assert served.process.poll() is None, f"the server ended: {served.process.returncode}"
        if time.monotonic() > warm:
            held.append(soak.bytes_held())
    for worker in workers:
        worker.join()
    rest = time.monotonic() + 60
    while not soak.is_at_rest() and time.monotonic() < rest:
        time.sleep(0.1)
    fifths = [held[len(held) * n // 5 : len(held) * (n + 1) // 5] for n in range(5)]
    medians = [statistics.median(part or held) for part in fifths]
    first, last = medians[0], medians[-1]
    for what, count in sorted(soak.counts.items()):
        print(f"{what:>14}: {count}")
    told = ", ".join(f"{median / 1e6:.0f}" for median in medians)
    print(f"memory by fifths: {told} MB, at most {max(held) / 1e6:.0f} MB")
    _, metrics = soak.ask("GET", "/metrics")
    print(next(line for line in metrics.decode().splitlines() if line.startswith("nestling_model_loads_total")))
    assert not soak.wrong, f"{len(soak.wrong)} wrong:\n" + "\n".join(soak.wrong[:20])
    assert soak.is_at_rest(), soak.status()
    assert last <= first * (1 + GROWTH) + SLACK, "memory grew"


def main(program, seconds="60"):
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        models.mkdir()
        for name in MODELS[:2]:
            (models / f"{name}.nest").symlink_to(BUNDLED)
        tools = tool_model(Path(folder) / "tools")
        convert = [program, "convert", str(tools), "-o", str(models / "tools.nest"), "--calibration", "none", "--quiet"]
        subprocess.run(convert, check=True)
        with Served(program, None, None, "--models", str(models), "--memory", MEMORY, "--keep-alive", KEEP_ALIVE) as served:
            # What it says is read, or it would wait for a reader.
            reader = threading.Thread(target=lambda: [None for _ in served.process.stderr], daemon=True)
            reader.start()
            run(served, float(seconds))
    print("soak: all was answered, and nothing is left")


if __name__ == "__main__":
    main(*sys.argv[1:])
