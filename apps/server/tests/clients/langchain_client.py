"""What langchain-openai makes of the server: chats, streams, tools that must be called, answers by a schema.

    python langchain_client.py PROGRAM
"""

import sys
import tempfile
from pathlib import Path

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from program import BUNDLED, SCHEMA, Served, tool_model

QUESTION = "Tell me a story about a ship."


def chats(served):
    model = ChatOpenAI(base_url=served.url, api_key="none", model="story", temperature=0, max_tokens=24, max_retries=0)
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
    likely = model.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    assert all(len(one["top_logprobs"]) == 2 for one in likely.response_metadata["logprobs"]["content"])


def texts(served):
    model = OpenAI(base_url=served.url, api_key="none", model="story", temperature=0, max_tokens=16, max_retries=0)
    assert model.invoke("Once upon a time") == "".join(model.stream("Once upon a time"))


# Random weights end a text only where its schema does.
PERSON = {"type": "function", "function": {"name": "person", "description": "Notes a person.", "parameters": SCHEMA}}


def tools(served):
    model = ChatOpenAI(base_url=served.url, api_key="none", model="tools", max_tokens=512, max_retries=0, seed=3)
    for choice in ["person", "required"]:
        called = model.bind_tools([PERSON], tool_choice=choice, parallel_tool_calls=False).invoke("Who are you?")
        (call,) = called.tool_calls
        assert call["name"] == "person" and 1 <= call["args"]["age"] <= 99, call
        assert not called.invalid_tool_calls
    replied = [HumanMessage("Who are you?"), called, ToolMessage("noted", tool_call_id=call["id"])]
    assert model.bind(max_tokens=8).invoke(replied).response_metadata["finish_reason"] in ("stop", "length")
    chunks = None
    for chunk in model.bind_tools([PERSON], tool_choice="person").stream("Who are you?"):
        chunks = chunk if chunks is None else chunks + chunk
    assert chunks.tool_calls[0]["name"] == "person" and 1 <= chunks.tool_calls[0]["args"]["age"] <= 99
    schema = {"title": "person", **SCHEMA}
    for method in ["json_schema", "function_calling"]:
        person = model.with_structured_output(schema, method=method, strict=True).invoke("Who are you?")
        assert 1 <= person["age"] <= 99 and len(person["name"]) <= 12, person


def main(program):
    with Served(program, BUNDLED, "story") as served:
        chats(served)
        texts(served)
    with tempfile.TemporaryDirectory() as folder:
        with Served(program, tool_model(Path(folder) / "tools"), "tools") as served:
            tools(served)
    print("langchain: chats, streams, batches, completions, tools, schemas")


if __name__ == "__main__":
    main(sys.argv[1])
