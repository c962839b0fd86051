"""What the openai package makes of the server's answers, where it checks every field of them.

    python openai_client.py PROGRAM

Every reply and every event must have the types of the package (`_strict_response_validation`), and errors must
arrive as its exceptions.
"""

import json
import sys
import tempfile
from pathlib import Path

import openai
from openai import OpenAI
from program import BUNDLED, KEY, SCHEMA, STORY, Served, tool_model


def client(served, key=KEY):
    return OpenAI(
        base_url=served.url, api_key=key, max_retries=0, timeout=60, _strict_response_validation=True
    )


def raises(kind, call, **expected):
    try:
        call()
    except kind as error:
        for name, value in expected.items():
            found = getattr(error, name)
            assert found == value, f"{name}: expected {value!r}, found {found!r}"
        assert error.body is None or isinstance(error.body["message"], str)
        return
    raise AssertionError(f"no {kind.__name__}")


def models(api):
    assert [model.id for model in api.models.list()] == ["story"]
    assert api.models.retrieve("story").object == "model"
    raises(openai.NotFoundError, lambda: api.models.retrieve("other"), code="model_not_found")


def chats(api):
    ask = api.chat.completions.create
    same = dict(model="story", messages=STORY, max_tokens=24, temperature=0)
    whole = ask(**same)
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.system_fingerprint

    chunks = list(ask(**same, stream=True, stream_options={"include_usage": True}))
    assert [chunk.choices[0].delta.role for chunk in chunks[:2]] == ["assistant", None]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == choice.message.content, (text, choice.message.content)
    assert chunks[-1].choices == [] and all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1

    several = ask(**{**same, "temperature": 1, "n": 3, "seed": 7, "max_tokens": 8})
    again = ask(**{**same, "temperature": 1, "n": 3, "seed": 7, "max_tokens": 8})
    texts = [choice.message.content for choice in several.choices]
    assert len(set(texts)) == 3 and texts == [choice.message.content for choice in again.choices]

    likely = ask(**same, logprobs=True, top_logprobs=3)
    tokens = likely.choices[0].logprobs.content
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in tokens)
    assert bytes(b for token in tokens for b in token.bytes).decode() == choice.message.content

    parts = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert ask(**{**same, "messages": parts, "stop": ["."]}).choices[0].message.content is not None


def schemas(api, model):
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}
    ask = api.chat.completions.create
    same = dict(model=model, messages=STORY, max_tokens=120, temperature=0)
    whole = ask(**same, response_format=form)
    person = json.loads(whole.choices[0].message.content)
    assert set(person) == {"name", "age"} and 1 <= person["age"] <= 99
    chunks = ask(**same, response_format=form, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert json.loads(text) == person
    broken = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "colour"}}}
    raises(
        openai.BadRequestError,
        lambda: ask(**same, response_format=broken),
        param="response_format.json_schema.schema",
    )


def completions(api):
    ask = api.completions.create
    lenient = api.with_options(_extra_kwargs={"_strict_response_validation": False})
    same = dict(model="story", prompt="The ship left the", max_tokens=12, temperature=0)
    whole = ask(**same, logprobs=2)
    choice = whole.choices[0]
    lists = choice.logprobs
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == len(lists.text_offset)
    assert "".join(lists.tokens).startswith(choice.text)
    # Pieces of a stream end with null until the last, as OpenAI's own do; the package's type knows no null.
    pieces = list(lenient.completions.create(**same, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == choice.text
    reasons = [piece.choices[0].finish_reason for piece in pieces]
    assert reasons[-1] == choice.finish_reason and set(reasons[:-1]) == {None}
    # What evaluations ask for: log-probabilities of a prompt's own tokens, of which the first has none: null again.
    echo = lenient.completions.create(**{**same, "max_tokens": 1}, echo=True, logprobs=1).choices[0]
    assert echo.text.startswith("The ship left the") and echo.logprobs.token_logprobs[0] is None
    assert all(number <= 0 for number in echo.logprobs.token_logprobs[1:])
    both = ask(**{**same, "prompt": ["The ship left the", "Once upon a"]}, echo=True)
    assert [c.index for c in both.choices] == [0, 1]
    assert both.choices[0].text == "The ship left the" + choice.text
    tokens = api.post("/../tokenize", cast_to=object, body={"prompt": "The ship left the"})["tokens"]
    assert ask(**{**same, "prompt": tokens}).choices[0].text == choice.text


def errors(api, served):
    ask = api.chat.completions.create
    same = dict(model="story", messages=STORY, max_tokens=4)
    bad = openai.BadRequestError
    raises(bad, lambda: ask(**same, temperature=9), param="temperature", type="invalid_request_error")
    raises(bad, lambda: ask(**same, extra_body={"mirostat": 1}), param="mirostat")
    raises(bad, lambda: ask(**same, extra_body={"grammar": "x"}), param="grammar", type="invalid_request_error")
    raises(bad, lambda: ask(**same, n=500), param="n")
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    raises(bad, lambda: ask(**{**same, "messages": image}), code="unsupported_parameter")
    long = [{"role": "user", "content": "word " * 5000}]
    raises(bad, lambda: ask(**{**same, "messages": long}), code="context_length_exceeded")
    raises(openai.NotFoundError, lambda: ask(**{**same, "model": "gpt"}), param="model")
    raises(openai.InternalServerError, lambda: api.embeddings.create(model="story", input="x"), status_code=501)
    for key in ["sk-wrong", KEY[:-1]]:
        wrong = client(served, key)
        raises(openai.AuthenticationError, wrong.models.list, code="invalid_api_key", status_code=401)


def tools(api, model):
    parameters = {**SCHEMA, "properties": SCHEMA["properties"]}
    offered = [
        {"type": "function", "function": {"name": "person", "description": "d", "parameters": parameters}},
        {"type": "function", "function": {"name": "now", "strict": True, "parameters": {
            "type": "object", "properties": {}, "additionalProperties": False}}},
    ]
    ask = api.chat.completions.create
    named = {"type": "function", "function": {"name": "person"}}
    same = dict(model=model, messages=STORY, tools=offered, max_tokens=400, temperature=0)
    whole = ask(**same, tool_choice=named).choices[0]
    assert whole.finish_reason == "tool_calls", whole
    (call,) = whole.message.tool_calls
    assert call.function.name == "person" and set(json.loads(call.function.arguments)) == {"name", "age"}

    arguments, names, ids, reason = "", [], [], None
    for chunk in ask(**same, tool_choice=named, stream=True):
        reason = chunk.choices[0].finish_reason or reason
        for part in chunk.choices[0].delta.tool_calls or []:
            assert part.index == 0
            arguments += part.function.arguments or ""
            names += [part.function.name] if part.function.name else []
            ids += [part.id] if part.id else []
    assert (arguments, names, reason) == (call.function.arguments, ["person"], "tool_calls")
    assert len(ids) == 1

    forced = ask(**same, tool_choice="required", parallel_tool_calls=False).choices[0]
    assert len(forced.message.tool_calls) == 1
    # What the client has of an answer goes back into the conversation as it is.
    result = {"role": "tool", "tool_call_id": call.id, "content": "{}"}
    turns = [*STORY, whole.message.model_dump(), result]
    assert ask(**{**same, "messages": turns, "max_tokens": 4}, tool_choice="none").usage.completion_tokens <= 4


def responses(api):
    ask = api.responses.create
    same = dict(model="story", input="Tell me a story about a ship.", max_output_tokens=24, temperature=0)
    whole = ask(**same, instructions="Be brief.", metadata={"a": "b"}, store=False)
    assert whole.output_text and whole.status in ("completed", "incomplete") and whole.metadata == {"a": "b"}
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    plain = ask(**same)
    events = list(ask(**same, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == plain.output_text == events[-1].response.output_text
    assert events[-1].type == f"response.{plain.status}"
    with api.responses.stream(**same) as stream:
        for event in stream:
            pass
        assert event.type == f"response.{plain.status}" and event.response.output_text == text

    form = {"format": {"type": "json_schema", "name": "person", "strict": True, "schema": SCHEMA}}
    person = json.loads(ask(**{**same, "max_output_tokens": 120}, text=form).output_text)
    assert set(person) == {"name", "age"}
    likely = ask(**same, include=["message.output_text.logprobs"], top_logprobs=2)
    tokens = likely.output[0].content[0].logprobs
    assert "".join(token.token for token in tokens) == text and all(len(t.top_logprobs) == 2 for t in tokens)
    # What the client has of an answer goes back into the conversation as it is.
    turns = [{"role": "user", "content": "Hi"}, *plain.output, {"role": "user", "content": "Go on."}]
    assert ask(**{**same, "input": turns}).output_text
    bad = openai.BadRequestError
    raises(bad, lambda: ask(**same, previous_response_id="resp_1"), param="previous_response_id")
    raises(bad, lambda: ask(**same, tools=[{"type": "web_search"}]), code="unsupported_parameter")
    raises(openai.NotFoundError, lambda: api.responses.retrieve("resp_1"), code="response_not_found")


def stored_responses(api):
    def ask(**more):
        return api.responses.create(model="story", temperature=0, max_output_tokens=12, **more)

    first = ask(input=STORY)
    second = ask(input="Go on.", previous_response_id=first.id)
    turns = [*STORY, *first.output, {"role": "user", "content": "Go on."}]
    assert second.output_text == ask(input=turns, store=False).output_text
    assert api.responses.retrieve(first.id) == first
    items = list(api.responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.content[0].text for item in items] == [STORY[0]["content"], first.output_text, "Go on."]
    api.responses.delete(first.id)
    raises(openai.NotFoundError, lambda: api.responses.retrieve(first.id), code="response_not_found")
    lost = {"input": "Go on.", "previous_response_id": second.id}
    raises(openai.BadRequestError, lambda: ask(**lost), code="previous_response_not_found")


def response_tools(api, model):
    offered = [{"type": "function", "name": "person", "parameters": SCHEMA, "strict": True}]
    named = {"type": "function", "name": "person"}
    same = dict(model=model, input=STORY, tools=offered, max_output_tokens=400, temperature=0)
    whole = api.responses.create(**same, tool_choice=named)
    (call,) = whole.output
    assert (whole.status, call.type, call.name) == ("completed", "function_call", "person"), whole
    assert set(json.loads(call.arguments)) == {"name", "age"}
    with api.responses.stream(**same, tool_choice=named) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds.count("response.function_call_arguments.delta") > 2, kinds
    assert final.output[0].arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "{}"}
    turns = {**same, "input": [*STORY, call, result], "max_output_tokens": 4}
    assert api.responses.create(**turns, tool_choice="none").usage.output_tokens <= 4


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text(KEY + "\n")
        with Served(program, BUNDLED, "story", "--api-key-file", str(keys)) as served:
            api = client(served)
            for check in [models, chats, completions, responses, stored_responses]:
                check(api)
                print("ok", check.__name__)
            for check in [schemas, tools, response_tools]:
                check(api, "story")
                print("ok", check.__name__)
            errors(api, served)
            print("ok errors")
        with Served(program, tool_model(Path(folder) / "tools"), "tools") as served:
            for check in [schemas, tools, response_tools]:
                check(client(served), "tools")
                print("ok", check.__name__, "natively")


if __name__ == "__main__":
    main(sys.argv[1])
