"""What the ollama package makes of the server's answers.

    python ollama_client.py PROGRAM
"""

import json
import sys
import tempfile
from pathlib import Path

import ollama
from program import BUNDLED, Served, tool_model

STORY = [{"role": "user", "content": "Tell me a story about a ship."}]
OPTIONS = {"temperature": 0, "num_predict": 24}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


ASKED = [{"role": "user", "content": "Who are you?"}]


def client(served):
    return ollama.Client(host=served.url.removesuffix("/v1"), timeout=60)


def raises(status, words, call):
    try:
        call()
    except ollama.ResponseError as error:
        assert error.status_code == status, (error.status_code, error.error)
        assert words in error.error, error.error
        return
    raise AssertionError("no error")


def models(api):
    (model,) = api.list().models
    assert model.model == "story" and model.size > 1 << 20 and model.modified_at.year > 2000
    (running,) = api.ps().models
    assert running.model == "story" and running.context_length == 1024 and running.expires_at
    shown = api.show("story")
    assert "completion" in shown.capabilities and "<|im_start|>" in shown.template
    assert shown.modelinfo["general.architecture"] == shown.details.family


def chats(api):
    whole = api.chat("story", STORY, options=OPTIONS)
    assert whole.done and whole.done_reason in ("stop", "length") and whole.message.role == "assistant"
    assert whole.total_duration > 0 and whole.eval_count <= 24 and whole.prompt_eval_count > 0
    parts = list(api.chat("story", STORY, options=OPTIONS, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts[:-1]] == [False] * (len(parts) - 1) and parts[-1].done
    assert parts[-1].eval_count == whole.eval_count
    # What the client has of an answer goes back into the conversation as it is.
    turns = [*STORY, whole.message, {"role": "user", "content": "And then?"}]
    assert api.chat("story", turns, options=OPTIONS).prompt_eval_count > whole.prompt_eval_count
    seeded = [api.chat("story", STORY, options={"temperature": 1, "seed": 7, "num_predict": 8}) for _ in range(2)]
    assert seeded[0].message.content == seeded[1].message.content


def generates(api):
    whole = api.generate("story", "The ship left the", options=OPTIONS, raw=True)
    assert whole.response and whole.done
    parts = list(api.generate("story", "The ship left the", options=OPTIONS, raw=True, stream=True))
    assert "".join(part.response for part in parts) == whole.response
    assert api.generate("story").done_reason == "load"
    person = api.generate("story", "Who?", format=SCHEMA, options={"temperature": 0, "num_predict": 120})
    person = json.loads(person.response)
    assert set(person) == {"name", "age"} and 1 <= person["age"] <= 99


def errors(api):
    raises(404, "other", lambda: api.chat("other", STORY))
    raises(400, "options.mirostat", lambda: api.chat("story", STORY, options={"mirostat": 1}))
    raises(400, "options.tfs_z", lambda: api.chat("story", STORY, options={"tfs_z": 0.5}))
    api.chat("story", STORY, options={"num_ctx": 1 << 20, "num_gpu": 1, "num_predict": 2})
    raises(400, "images", lambda: api.chat("story", [{**STORY[0], "images": [b"x"]}]))
    raises(400, "options.temperature", lambda: list(api.chat("story", STORY, options={"temperature": -1}, stream=True)))
    raises(501, "/api/embed", lambda: api.embed("story", "x"))
    raises(501, "/api/pull", lambda: api.pull("story"))
    raises(501, "/api/delete", lambda: api.delete("story"))


def person(name: str, age: int) -> str:
    """Notes a person.

    Args:
      name: The name
      age: The age
    """
    return f"{name} {age}"


def is_person(fields):
    return set(fields) == {"name", "age"} and 1 <= fields["age"] <= 99 and len(fields["name"]) <= 12


def schemas(api, model):
    same = dict(model=model, messages=STORY, format=SCHEMA, options={"temperature": 0, "num_predict": 120})
    person = json.loads(api.chat(**same).message.content)
    assert is_person(person), person
    assert json.loads("".join(part.message.content for part in api.chat(**same, stream=True))) == person


def called(api, model, seed):
    """Returns a message with a call, after comparing it with its stream, or None if there is no call."""
    options = {"temperature": 1, "seed": seed, "num_predict": 200}
    # The package describes functions by their types and comments, and drops bounds from schemas of tools.
    same = dict(model=model, messages=ASKED, tools=[person], format=SCHEMA, options=options)
    whole = api.chat(**same).message
    for call in whole.tool_calls or []:
        fields = call.function.arguments
        assert call.function.name == "person" and isinstance(fields["name"], str), whole
        assert isinstance(fields["age"], int), whole
    parts = [part.message for part in api.chat(**same, stream=True)] if whole.tool_calls else []
    assert [call for part in parts for call in part.tool_calls or []] == list(whole.tool_calls or []), parts
    return whole if parts else None


def tools(api, model):
    # Ollama has no tool choice. With a schema the model can only call the tool or answer in that form, depending on the
    # seed.
    calls = (called(api, model, seed) for seed in range(256))
    message = next(message for message in calls if message)
    results = [{"role": "tool", "tool_name": "person", "content": "Noted."} for _ in message.tool_calls]
    turns = [*ASKED, message, *results]
    options = {"temperature": 0, "num_predict": 8}
    first = api.chat(model, ASKED, tools=[person], options=options)
    after = api.chat(model, turns, tools=[person], options=options)
    assert after.message.content and after.prompt_eval_count > first.prompt_eval_count
    assert first.prompt_eval_count > api.chat(model, ASKED, options=options).prompt_eval_count


def main(program):
    with Served(program, BUNDLED, "story") as served:
        api = client(served)
        for check in [models, chats, generates, errors]:
            check(api)
            print("ok", check.__name__)
        for check in [schemas, tools]:
            check(api, "story")
            print("ok", check.__name__)
    with tempfile.TemporaryDirectory() as folder:
        with Served(program, tool_model(Path(folder) / "tools"), "tools") as served:
            for check in [schemas, tools]:
                check(client(served), "tools")
                print("ok", check.__name__, "natively")


if __name__ == "__main__":
    main(sys.argv[1])
