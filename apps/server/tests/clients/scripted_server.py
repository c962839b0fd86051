"""A stand-in for a model server that drives a coding agent through a fixed task and records its requests.

    python scripted_server.py --record FOLDER --work FOLDER [--port N] [--fail STATUS:FILE] [--through URL]

The script has three steps: list the files, write `GREETING` to a file, answer with a text. The step is the number of
tool results in the conversation. The server chooses the first tool offered that it knows, and answers a request
without tools with a text. Each request is stored as `NNN.json` in the recording folder. `--fail` answers every
generation request with a status and the body in a file, which shows what an agent does with an error. `--through`
lets a real server write the answers, under constraints that leave it no choice but the script's.
"""

import argparse
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

Json = dict[str, Any]

FILE = "greeting.txt"
GREETING = "hello from the agent\n"
FINAL = "The file greeting.txt was written."
PATCH = f"*** Begin Patch\n*** Add File: {FILE}\n+{GREETING}*** End Patch\n"
# A whole file as aider reads it from a text.
BLOCK = f"{FILE}\n```\n{GREETING}```\n"


class Call(NamedTuple):
    """A tool call: function arguments as an object, or the input of a custom tool as a text."""

    name: str
    arguments: Json | str


def shell(command: str) -> list[Call]:
    """Calls that run a command, for the shell tool of each agent."""
    return [
        Call("Bash", {"command": command, "description": "Run a command"}),
        Call("bash", {"command": command, "description": "Run a command"}),
        Call("exec_command", {"cmd": command}),
        Call("shell_command", {"command": command}),
        Call("shell", {"command": ["bash", "-lc", command]}),
    ]


def edits(work: Path) -> list[Call]:
    """Calls that write the file, for the editing tool of each agent."""
    path = str(work / FILE)
    heredoc = f"apply_patch <<'EOF'\n{PATCH}EOF\n"
    return [
        Call("Write", {"file_path": path, "content": GREETING}),
        Call("write", {"filePath": path, "content": GREETING}),
        Call("apply_patch", PATCH),
        *shell(heredoc),
    ]


def choose(calls: list[Call], offered: set[str]) -> Call | None:
    return next((call for call in calls if call.name in offered), None)


def tool_names(body: Json) -> set[str]:
    names = set()
    for tool in body.get("tools") or []:
        function = tool.get("function") or tool
        names.add(function.get("name") or tool["type"])
    return names


def tool_results(body: Json) -> int:
    """Number of tool results in a conversation of any of the three protocols."""
    found = 0
    for message in body.get("messages") or []:
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        found += message.get("role") == "tool"
        found += sum(part.get("type") == "tool_result" for part in parts)
    items = body.get("input")
    if isinstance(items, list):
        found += sum(str(item.get("type")).endswith("_call_output") for item in items)
    return found


def next_call(body: Json, work: Path) -> Call | None:
    """Returns the tool call of the current step, or None if the answer is a text."""
    steps = [shell("ls -a"), edits(work)]
    done = tool_results(body)
    return choose(steps[done], tool_names(body)) if done < len(steps) else None


def final_text(body: Json) -> str:
    return FINAL if body.get("tools") else BLOCK


def arguments_text(call: Call) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def chat_message(body: Json, call: Call | None, number: int) -> Json:
    if call is None:
        return {"role": "assistant", "content": final_text(body)}
    function = {"name": call.name, "arguments": arguments_text(call)}
    return {
        "role": "assistant",
        "content": "I call a tool.",
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
    }


def chat_reply(body: Json, call: Call | None, number: int) -> Json:
    choice = {
        "index": 0,
        "message": chat_message(body, call, number),
        "finish_reason": "tool_calls" if call else "stop",
    }
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [choice],
        "usage": usage,
    }


def chat_events(body: Json, call: Call | None, number: int) -> Iterator[str]:
    reply = chat_reply(body, call, number)
    choice, usage = reply["choices"][0], reply.pop("usage")
    reply["object"] = "chat.completion.chunk"
    delta = choice["message"]
    delta["tool_calls"] = [{"index": 0, **item} for item in delta.get("tool_calls", [])]
    first = {"index": 0, "delta": delta, "finish_reason": None}
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    for event in [{"choices": [first]}, {"choices": [last]}, {"choices": [], "usage": usage}]:
        yield f"data: {json.dumps({**reply, **event})}\n\n"
    yield "data: [DONE]\n\n"


def anthropic_blocks(body: Json, call: Call | None, number: int) -> list[Json]:
    if call is None:
        return [{"type": "text", "text": final_text(body)}]
    tool = {"type": "tool_use", "id": f"toolu_{number}", "name": call.name, "input": call.arguments}
    return [
        {"type": "thinking", "thinking": "A thought.", "signature": "c2lnbmF0dXJl"},
        {"type": "text", "text": "I call a tool."},
        tool,
    ]


def anthropic_reply(body: Json, call: Call | None, number: int) -> Json:
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": anthropic_blocks(body, call, number),
        "stop_reason": "tool_use" if call else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 10},
    }


def anthropic_deltas(block: Json) -> tuple[Json, list[Json]]:
    """Returns a block as it starts, and the deltas that complete it."""
    if block["type"] == "tool_use":
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        return {**block, "input": {}}, [delta]
    if block["type"] == "thinking":
        deltas = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
        return {**block, "thinking": "", "signature": ""}, deltas
    return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]


def anthropic_events(body: Json, call: Call | None, number: int) -> Iterator[str]:
    reply = anthropic_reply(body, call, number)
    start = {**reply, "content": [], "stop_reason": None}
    events: list[Json] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(reply["content"]):
        empty, deltas = anthropic_deltas(block)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        for delta in deltas:
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": end, "usage": reply["usage"]})
    events.append({"type": "message_stop"})
    for event in events:
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


def response_items(body: Json, call: Call | None, number: int) -> list[Json]:
    if call is None:
        part = {"type": "output_text", "text": final_text(body), "annotations": []}
        kind = {"type": "message", "role": "assistant", "content": [part]}
        return [{"id": f"msg_{number}", "status": "completed", **kind}]
    reasoning = {
        "type": "reasoning",
        "id": f"rs_{number}",
        "summary": [{"type": "summary_text", "text": "A thought."}],
        "content": [{"type": "reasoning_text", "text": "A thought."}],
    }
    custom = isinstance(call.arguments, str)
    item = {
        "type": "custom_tool_call" if custom else "function_call",
        "id": f"{'ctc' if custom else 'fc'}_{number}",
        "call_id": f"call_{number}",
        "name": call.name,
        "status": "completed",
        "input" if custom else "arguments": arguments_text(call),
    }
    return [reasoning, item]


def response_reply(body: Json, call: Call | None, number: int) -> Json:
    usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": body["model"],
        "output": response_items(body, call, number),
        "usage": usage,
    }


def response_events(body: Json, call: Call | None, number: int) -> Iterator[str]:
    reply = response_reply(body, call, number)
    start = {**reply, "status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [{"type": "response.created", "response": start}]
    for index, item in enumerate(reply["output"]):
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": reply})
    for sequence, event in enumerate(events):
        data = json.dumps({**event, "sequence_number": sequence})
        yield f"event: {event['type']}\ndata: {data}\n\n"


PROTOCOLS = {
    "/chat/completions": (chat_reply, chat_events),
    "/responses": (response_reply, response_events),
    "/messages": (anthropic_reply, anthropic_events),
}
MODEL = {"id": "MODEL", "object": "model", "created": 1, "owned_by": "nestling"}


# Headers of one connection, which are not forwarded.
PER_CONNECTION = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "expect"}
# Characters of a text that is forwarded.
TEXT_MAX = 200


def only(value: Any) -> Json:
    """Schema that admits one value."""
    if not isinstance(value, dict):
        return {"const": value}
    return {
        "type": "object",
        "properties": {name: only(item) for name, item in value.items()},
        "required": list(value),
        "additionalProperties": False,
    }


def shortened(value: Any) -> Any:
    """Cuts long texts. The vocabulary of the model has few words, so that prompts would take minutes."""
    if isinstance(value, str):
        return value[:TEXT_MAX]
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if isinstance(value, dict):
        return {name: shortened(item) for name, item in value.items()}
    return value


def is_anthropic(body: Json) -> bool:
    return any("input_schema" in tool for tool in body.get("tools") or [])


def constrain(body: Json, call: Call | None) -> None:
    """Changes a request so that any model gives the answer of the script."""
    body.update(shortened(body))
    limit = "max_output_tokens" if "input" in body else "max_tokens"
    if call is None:
        body[limit] = 2 * len(BLOCK)
        body["guided_choice"] = [final_text(body)]
        if body.get("tools"):
            body["tool_choice"] = {"type": "none"} if is_anthropic(body) else "none"
        # Their schema excludes the text.
        for form in ["output_config", "response_format", "text"]:
            body.pop(form, None)
        return
    body[limit] = 4000
    arguments = {"input": call.arguments} if isinstance(call.arguments, str) else call.arguments
    for tool in body["tools"]:
        function = tool.get("function") or tool
        if function.get("name") == call.name:
            function["input_schema" if "input_schema" in function else "parameters"] = only(arguments)
    name = {"name": call.name}
    if "input" in body:
        body["tool_choice"] = {"type": "function", **name}
    elif is_anthropic(body):
        body["tool_choice"] = {"type": "tool", **name}
    else:
        body["tool_choice"] = {"type": "function", "function": name}


class Script(ThreadingHTTPServer):
    """The server: recording folder, work folder of the agent, and number of requests so far."""

    daemon_threads = True

    def __init__(
        self,
        record: Path,
        work: Path,
        port: int = 0,
        fail: tuple[int, str] | None = None,
        through: str | None = None,
    ):
        super().__init__(("127.0.0.1", port), Handler)
        self.record, self.work, self.fail, self.through = record, work, fail, through
        self.count = 0
        self.lock = threading.Lock()
        record.mkdir(parents=True, exist_ok=True)

    def store(self, request: Json) -> int:
        with self.lock:
            self.count += 1
            (self.record / f"{self.count:03}.json").write_text(json.dumps(request, indent=1) + "\n")
            return self.count


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Script

    def read_body(self) -> Json | None:
        length = int(self.headers.get("content-length") or 0)
        data = self.rfile.read(length)
        return json.loads(data) if data else None

    def send_json(self, value: Json, status: int = 200) -> None:
        self.send_text(status, json.dumps(value), "application/json")

    def send_text(self, status: int, text: str, kind: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def answer(self) -> None:
        body = self.read_body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = {"method": self.command, "path": self.path, "headers": headers, "body": body}
        number = self.server.store(request)
        if self.server.through:
            self.forward(self.server.through, headers, body)
            return
        path = self.path.split("?")[0].rstrip("/")
        found = next((p for end, p in PROTOCOLS.items() if path.endswith(end)), None)
        if path.endswith("/count_tokens"):
            self.send_json({"input_tokens": 100})
        elif path == "":
            self.send_json({})
        elif path.endswith("/models"):
            self.send_json({"object": "list", "data": [MODEL]})
        elif found is None or body is None:
            self.send_json({"error": {"message": "not found", "type": "not_found"}}, 404)
        elif self.server.fail:
            self.send_text(*self.server.fail, "application/json")
        else:
            self.generate(body, number, *found)

    def forward(self, base: str, headers: dict[str, str], body: Json | None) -> None:
        """Sends the request to a real server and its answer to the agent, piece by piece."""
        if body is not None and not self.path.split("?")[0].endswith("/count_tokens"):
            constrain(body, next_call(body, self.server.work))
        own = {name: value for name, value in headers.items() if name not in PER_CONNECTION}
        request = urllib.request.Request(
            base.removesuffix("/v1") + self.path,
            data=None if body is None else json.dumps(body).encode(),
            headers=own,
            method=self.command,
        )
        try:
            reply = urllib.request.urlopen(request, timeout=600)
        except urllib.error.HTTPError as error:
            reply = error
        with reply:
            self.send_response(reply.status)
            self.send_header("content-type", reply.headers.get("content-type", "application/json"))
            self.send_header("connection", "close")
            self.end_headers()
            try:
                while piece := reply.read1():
                    self.wfile.write(piece)
            except (BrokenPipeError, ConnectionResetError):
                # The agent cancelled its request.
                pass
        self.close_connection = True

    def generate(self, body: Json, number: int, reply: Any, events: Any) -> None:
        call = next_call(body, self.server.work)
        if body.get("stream"):
            text = "".join(events(body, call, number))
            self.send_text(200, text, "text/event-stream")
        else:
            self.send_json(reply(body, call, number))

    do_GET = do_POST = do_HEAD = answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--fail")
    parser.add_argument("--through")
    chosen = parser.parse_args()
    fail = None
    if chosen.fail:
        status, file = chosen.fail.split(":", 1)
        fail = (int(status), Path(file).read_text())
    server = Script(chosen.record, chosen.work, chosen.port, fail, chosen.through)
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
