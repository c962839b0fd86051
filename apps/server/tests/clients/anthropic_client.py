"""What the anthropic package makes of the server's answers, where it checks every field of them.

    python anthropic_client.py PROGRAM

Every reply and every event must have the types of the package (`_strict_response_validation`), and errors must
arrive as its exceptions.
"""

import json
import sys
import tempfile
from pathlib import Path

import anthropic
from anthropic import Anthropic
from program import BUNDLED, KEY, SCHEMA, STORY, Served, tool_model


def client(served, **key):
    url = served.url.removesuffix("/v1")
    key = key or {"api_key": KEY}
    return Anthropic(base_url=url, max_retries=0, timeout=60, _strict_response_validation=True, **key)


def raises(kind, call, word, error_type):
    try:
        call()
    except kind as error:
        body = error.body
        assert body["type"] == "error" and body["error"]["type"] == error_type, body
        assert word in body["error"]["message"], body
        assert error.request_id == body["request_id"], (error.request_id, body)
        return
    raise AssertionError(f"no {kind.__name__}")


def prompt(usage):
    return usage.input_tokens + (usage.cache_read_input_tokens or 0)


def messages(api):
    ask = api.messages.create
    same = dict(model="story", messages=STORY, max_tokens=24, extra_body={"temperature": 0})
    whole = ask(**same)
    assert whole._request_id and whole.role == "assistant" and whole.stop_reason in ("end_turn", "max_tokens")
    (block,) = whole.content
    assert block.type == "text" and block.text

    events = list(ask(**same, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"], kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds
    text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    assert text == block.text, (text, block.text)
    assert events[0].message.usage.input_tokens == prompt(whole.usage)

    with api.messages.stream(**same) as stream:
        assert "".join(stream.text_stream) == block.text
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert prompt(final.usage) == prompt(whole.usage)

    word = block.text.split()[2]
    stopped = ask(**same, stop_sequences=[word])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word)
    assert stopped.content[0].text == block.text[: block.text.index(word)]

    count = api.messages.count_tokens(model="story", messages=STORY)
    assert count.input_tokens == prompt(whole.usage)
    # What the client has of an answer goes back into the conversation as it is.
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    turns = [*STORY, whole.to_param(), {"role": "user", "content": "Go on."}]
    assert ask(**{**same, "messages": turns}, system=system).content


def schemas(api, model):
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    same = dict(model=model, messages=STORY, max_tokens=120, extra_body={"temperature": 0})
    whole = api.messages.create(**same, output_config=form)
    person = json.loads(whole.content[0].text)
    assert whole.stop_reason == "end_turn" and set(person) == {"name", "age"} and 1 <= person["age"] <= 99
    with api.messages.stream(**same, output_config=form) as stream:
        assert json.loads("".join(stream.text_stream)) == person


def errors(api, served):
    ask = api.messages.create
    same = dict(model="story", messages=STORY, max_tokens=4)
    bad, invalid = anthropic.BadRequestError, "invalid_request_error"
    raises(bad, lambda: ask(**same, extra_body={"temperature": 9}), "temperature", invalid)
    raises(bad, lambda: ask(**same, extra_body={"container": "x"}), "container", invalid)
    image = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]
    raises(bad, lambda: ask(**{**same, "messages": image}), "messages[0].content[0].type", invalid)
    long = [{"role": "user", "content": "word " * 5000}]
    raises(bad, lambda: ask(**{**same, "messages": long}), "prompt is too long", invalid)
    raises(anthropic.NotFoundError, lambda: ask(**{**same, "model": "claude"}), "model", "not_found_error")
    raises(
        anthropic.AuthenticationError,
        lambda: client(served, api_key="sk-wrong").messages.create(**same),
        "key",
        "authentication_error",
    )
    assert client(served, auth_token=KEY).messages.create(**same).usage.output_tokens == 4


def tools(api, model):
    offered = [
        {"name": "person", "description": "d", "input_schema": SCHEMA, "strict": True},
        {"name": "now", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}},
    ]
    named = {"type": "tool", "name": "person"}
    same = dict(model=model, messages=STORY, tools=offered, max_tokens=400, extra_body={"temperature": 0})
    whole = api.messages.create(**same, tool_choice=named)
    assert whole.stop_reason == "tool_use", whole
    (call,) = whole.content
    assert (call.type, call.name, set(call.input)) == ("tool_use", "person", {"name", "age"})

    with api.messages.stream(**same, tool_choice=named) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert "input_json" in kinds, kinds
    (streamed,) = final.content
    assert (final.stop_reason, streamed.input) == ("tool_use", call.input)

    alone = {"type": "any", "disable_parallel_tool_use": True}
    assert len(api.messages.create(**same, tool_choice=alone).content) == 1
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "{}"}
    turns = [*STORY, whole.to_param(), {"role": "user", "content": [result]}]
    after = api.messages.create(**{**same, "messages": turns, "max_tokens": 4}, tool_choice={"type": "none"})
    assert after.usage.output_tokens <= 4


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text(KEY + "\n")
        with Served(program, BUNDLED, "story", "--api-key-file", str(keys)) as served:
            api = client(served)
            messages(api)
            print("ok anthropic messages")
            for check in [schemas, tools]:
                check(api, "story")
                print("ok anthropic", check.__name__)
            errors(api, served)
            print("ok anthropic errors")
        with Served(program, tool_model(Path(folder) / "tools"), "tools") as served:
            for check in [schemas, tools]:
                check(client(served), "tools")
                print("ok anthropic", check.__name__, "natively")


if __name__ == "__main__":
    main(sys.argv[1])
