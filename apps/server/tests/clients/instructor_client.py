"""Tests the server with instructor: pydantic models by a tool or a schema, under OpenAI's two APIs and Anthropic's.

    python instructor_client.py PROGRAM
"""

import sys

import instructor
from anthropic import Anthropic
from instructor import Mode
from openai import OpenAI
from person import NOTED, QUESTION, Person
from program import each_model

ASKED = [{"role": "user", "content": QUESTION}]
SAME = dict(messages=ASKED, max_tokens=200, temperature=0)


def chats(model, name):
    same = dict(model=name, messages=ASKED, max_tokens=16, temperature=0, response_model=None)
    whole = model.create(**same).choices[0].message.content
    pieces = [chunk.choices[0].delta.content or "" for chunk in model.create(**same, stream=True)]
    assert whole and "".join(pieces) == whole and len(pieces) > 2, (whole, pieces)


def schemas(model, name):
    person = model.create(response_model=Person, model=name, max_retries=0, **SAME)
    assert isinstance(person, Person), person
    parts = list(model.create_partial(response_model=Person, model=name, max_retries=0, **SAME))
    # The class of partial results has another name, and so has the tool in the prompt: values may differ.
    assert len(parts) > 1 and Person.model_validate(parts[-1].model_dump()), parts


def tools(model, name):
    person, raw = model.create_with_completion(response_model=Person, model=name, max_retries=0, **SAME)
    message = raw.choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "Person", raw
    assert Person.model_validate_json(call.function.arguments).model_dump() == person.model_dump(), raw
    result = {"role": "tool", "tool_call_id": call.id, "content": NOTED}
    turns = [*ASKED, message.model_dump(), result]
    after = model.create(response_model=None, model=name, messages=turns, max_tokens=8, temperature=0)
    assert after.choices[0].message.content, after
    again = model.create(response_model=Person, model=name, max_retries=0, **{**SAME, "messages": turns})
    assert isinstance(again, Person), again


def main(program):
    for served, name in each_model(program):
        api = OpenAI(base_url=served.url, api_key="none", max_retries=0, timeout=120)
        for mode in [Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA, Mode.RESPONSES_TOOLS]:
            model = instructor.from_openai(api, mode=mode)
            schemas(model, name)
            print("ok instructor", mode, name)
        model = instructor.from_openai(api)
        chats(model, name)
        tools(model, name)
        print("ok instructor chats, tools", name)
        root = served.url.removesuffix("/v1")
        anthropic = Anthropic(base_url=root, api_key="none", max_retries=0, timeout=120)
        model = instructor.from_anthropic(anthropic)
        schemas(model, name)
        print("ok instructor anthropic", name)


if __name__ == "__main__":
    main(sys.argv[1])
