"""A server of one folder, with range requests, and with faults for the addresses below /fault/."""

import contextlib
import threading
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# Headers by which pages of the site may share memory with their workers.
ISOLATED = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm"}
# Every third request for bytes of the model has the fault of its address.
EVERY = 3


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        with contextlib.suppress(ConnectionError):
            self.answer(True)

    def answer(self, has_body):
        site = self.server.site
        path, fault = self.path.split("?")[0], ""
        if path.startswith("/fault/"):
            fault, path = path.removeprefix("/fault/").split("/", 1)
            path = "/" + path
        file = site.folder / (path.lstrip("/") or "index.html")
        if not file.is_file() or fault == "missing":
            return self.reply(404, b"", {}, has_body)
        data = file.read_bytes()
        headers = {"Content-Type": TYPES.get(file.suffix, "application/octet-stream"), "ETag": f'"{len(data)}"'}
        if file.suffix not in (".nest", ".gguf"):
            return self.reply(200, data, headers, has_body)
        if site.is_down:
            return self.reply(503, b"", {}, has_body)
        with site.lock:
            if has_body:
                site.requests[self.path] += 1
            count = site.requests[self.path]
            # A file that was replaced stays so.
            is_due = count >= EVERY if fault == "replaced" else has_body and count % EVERY == 0
        return self.answer_model(data, headers, fault, is_due, has_body)

    def answer_model(self, data, headers, fault, is_due, has_body):
        site, status, body, start = self.server.site, 200, data, 0
        if fault == "replaced" and is_due:
            headers["ETag"] = '"other"'
        asked = self.headers.get("Range")
        # Chromium's own cache sends If-Range, and shows the tag that it knows unless the server replies with the whole file.
        is_same = self.headers.get("If-Range") in (None, headers["ETag"])
        if asked and is_same and fault != "ignores":
            first, last = asked.removeprefix("bytes=").split("-")
            start, end = int(first), min(int(last) + 1, len(data))
            status, body = 206, data[start:end]
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        if fault == "refuses" and is_due:
            return self.reply(503, b"", {}, has_body)
        if fault == "moved" and is_due:
            headers["Content-Range"] = f"bytes {start + 1}-{start + len(body)}/{len(data)}"
        if (fault == "damages" and is_due) or fault == "rots":
            body = bytearray(body)
            body[len(body) // 2] ^= 64
        if fault == "slow":
            site.pause.wait(0.05)
        sent = body[: len(body) // 2] if fault == "cuts" and is_due else body
        if has_body:
            with site.lock:
                site.ranges[self.path].append((start, start + len(sent)))
        return self.reply(status, body, headers, has_body, sent)

    def reply(self, status, body, headers, has_body, sent=None):
        self.send_response(status)
        for name, value in {**headers, **self.server.site.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if has_body:
            self.wfile.write(body if sent is None else sent)
            if sent is not None and len(sent) < len(body):
                self.close_connection = True


class Server(ThreadingHTTPServer):
    def handle_error(self, *_):
        """Ignores connections that a closed tab resets."""


class Site:
    """A running server, and what it sent of the model by path."""

    def __init__(self, folder, is_isolated=False):
        self.folder = Path(folder)
        self.headers = ISOLATED if is_isolated else {}
        self.lock = threading.Lock()
        self.pause = threading.Event()
        self.requests = Counter()
        self.ranges = defaultdict(list)
        self.is_down = False
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.site = self
        self.url = f"http://localhost:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def sent_bytes(self, path):
        with self.lock:
            return sum(end - start for start, end in self.ranges[path])

    def sent_twice(self, path):
        """Returns the bytes that were sent more than once."""
        twice, reached = 0, 0
        with self.lock:
            for start, end in sorted(self.ranges[path]):
                twice += max(0, min(end, reached) - start)
                reached = max(reached, end)
        return twice
