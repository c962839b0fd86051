"""Tests the server with langchain-openai: chats, streams, required tools and structured output.

    python langchain_client.py PROGRAM
"""

import sys

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from person import DESCRIPTION, NOTED, QUESTION, Person, person_of
from program import SCHEMA, each_model


def chat_model(served, name, tokens, **options):
    same = dict(base_url=served.url, api_key="none", model=name, temperature=0, max_retries=0, timeout=120)
    return ChatOpenAI(**same, max_tokens=tokens, **options)


def chats(served, name):
    model = chat_model(served, name, 24)
    whole = model.invoke(QUESTION)
    assert whole.content and whole.response_metadata["finish_reason"] in ("stop", "length")
    assert whole.usage_metadata["total_tokens"] == sum(
        whole.usage_metadata[name] for name in ("input_tokens", "output_tokens")
    )
    pieces = list(model.stream(QUESTION))
    assert "".join(piece.content for piece in pieces) == whole.content and len(pieces) > 5
    again = model.invoke([HumanMessage(QUESTION), AIMessage(whole.content), HumanMessage("And then?")])
    assert again.content and again.content != whole.content
    both = model.batch([QUESTION, QUESTION])
    assert [one.content for one in both] == [whole.content] * 2
    responses = chat_model(served, name, 24, use_responses_api=True)
    assert "".join(piece.text for piece in responses.stream(QUESTION)) == responses.invoke(QUESTION).text == whole.content
    likely = model.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    assert all(len(one["top_logprobs"]) == 2 for one in likely.response_metadata["logprobs"]["content"])


def texts(served, name):
    model = OpenAI(base_url=served.url, api_key="none", model=name, temperature=0, max_tokens=16, max_retries=0)
    whole = model.invoke("Once upon a time")
    assert whole and whole == "".join(model.stream("Once upon a time"))


PERSON = {"type": "function", "function": {"name": "person", "description": DESCRIPTION, "parameters": SCHEMA}}


def joined(chunks):
    chunks = iter(chunks)
    return sum(chunks, next(chunks))


def tools(model):
    for choice in ["person", "required"]:
        bound = model.bind_tools([PERSON], tool_choice=choice, parallel_tool_calls=False)
        called = bound.invoke(QUESTION)
        (call,) = called.tool_calls
        assert call["name"] == "person" and not called.invalid_tool_calls, called
        person = person_of(call["args"])
        (streamed,) = joined(bound.stream(QUESTION)).tool_calls
        assert streamed["name"] == "person" and person_of(streamed["args"]) == person, (streamed, call)
    replied = [HumanMessage(QUESTION), called, ToolMessage(NOTED, tool_call_id=call["id"])]
    free = model.bind_tools([PERSON])
    before, after = free.invoke(QUESTION, max_tokens=8), free.invoke(replied, max_tokens=8)
    assert after.text and after.usage_metadata["input_tokens"] > before.usage_metadata["input_tokens"], (before, after)


def schemas(model):
    for method in ["json_schema", "function_calling"]:
        formed = model.with_structured_output(Person, method=method)
        person = formed.invoke(QUESTION)
        assert isinstance(person, Person), person
        assert list(formed.stream(QUESTION))[-1] == person, method
        formed = model.with_structured_output({"title": "person", **SCHEMA}, method=method, strict=True)
        assert person_of(formed.invoke(QUESTION))


def main(program):
    for served, name in each_model(program):
        chats(served, name)
        texts(served, name)
        for responses in [False, True]:
            model = chat_model(served, name, 200, use_responses_api=responses)
            tools(model)
            schemas(model)
            print("ok langchain", name, "responses" if responses else "chat completions")


if __name__ == "__main__":
    main(sys.argv[1])
