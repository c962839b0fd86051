"""Tests the server with LlamaIndex: OpenAILike for chats and completions, OpenAILikeResponses for responses.

    python llama_index_client.py PROGRAM
"""

import sys

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from person import DESCRIPTION, NOTED, QUESTION, Person, person_of
from program import each_model

ASKED = [ChatMessage(role="user", content=QUESTION)]
TOOL = FunctionTool.from_defaults(lambda **_: NOTED, name="person", description=DESCRIPTION, fn_schema=Person)


def llm(served, name, **options):
    same = dict(api_base=served.url, api_key="none", model=name, temperature=0, max_retries=0, timeout=120)
    return OpenAILike(**{**same, "is_chat_model": True, "is_function_calling_model": True, **options})


def chats(served, name):
    model = llm(served, name, max_tokens=16)
    whole = model.chat(ASKED)
    assert whole.message.content and whole.message.role == "assistant"
    pieces = list(model.stream_chat(ASKED))
    assert pieces[-1].message.content == "".join(piece.delta for piece in pieces) == whole.message.content
    turns = [*ASKED, whole.message, ChatMessage(role="user", content="And then?")]
    assert model.chat(turns).raw.usage.prompt_tokens > whole.raw.usage.prompt_tokens
    text = llm(served, name, max_tokens=16, is_chat_model=False)
    whole = text.complete("Once upon a time")
    pieces = list(text.stream_complete("Once upon a time"))
    assert whole.text and pieces[-1].text == "".join(piece.delta for piece in pieces) == whole.text


def schemas(served, name):
    # By a required tool. In streams LlamaIndex does not require the tool, and these models do not call it on their own.
    person = llm(served, name, max_tokens=200).as_structured_llm(Person).chat(ASKED).raw
    assert isinstance(person, Person), person
    # By response_format.
    model = llm(served, name, max_tokens=200, should_use_structured_outputs=True).as_structured_llm(Person)
    person = model.chat(ASKED).raw
    assert isinstance(person, Person), person
    assert list(model.stream_chat(ASKED))[-1].raw == person


def responses(served, name):
    same = dict(api_base=served.url, api_key="none", model=name, temperature=0, max_retries=0, timeout=120)
    model = OpenAILikeResponses(**same, max_output_tokens=16)
    whole = model.chat(ASKED)
    text = "".join(piece.delta for piece in model.stream_chat(ASKED))
    assert whole.message.content and text == whole.message.content, (text, whole)
    # Without strict the schema that LlamaIndex sends allows other fields, and random weights add some.
    model = OpenAILikeResponses(**same, max_output_tokens=200, strict=True)
    called = model.chat_with_tools([TOOL], QUESTION, tool_required=True)
    call = model.get_tool_calls_from_response(called)[0]
    assert call.tool_name == "person"
    person = person_of(call.tool_kwargs)
    streamed = []
    for piece in model.stream_chat_with_tools([TOOL], QUESTION, tool_required=True):
        streamed += model.get_tool_calls_from_response(piece, error_on_no_tool_call=False)
    assert person_of(streamed[0].tool_kwargs) == person, (streamed, person)
    result = ChatMessage(role="tool", content=NOTED, additional_kwargs={"call_id": call.tool_id})
    after = OpenAILikeResponses(**same, max_output_tokens=8).chat([*ASKED, called.message, result])
    assert after.message.content, after


def tools(served, name):
    model = llm(served, name, max_tokens=200)
    for options in [dict(tool_required=True), dict(tool_choice="person")]:
        called = model.chat_with_tools([TOOL], QUESTION, **options)
        (call,) = model.get_tool_calls_from_response(called)
        assert call.tool_name == "person"
        person = person_of(call.tool_kwargs)
        last = list(model.stream_chat_with_tools([TOOL], QUESTION, **options))[-1]
        (streamed,) = model.get_tool_calls_from_response(last)
        assert person_of(streamed.tool_kwargs) == person, (streamed, person)
    noted = TOOL.call(**call.tool_kwargs).content
    result = ChatMessage(role="tool", content=noted, additional_kwargs={"tool_call_id": call.tool_id})
    before = model.chat_with_tools([TOOL], chat_history=ASKED, max_tokens=8)
    after = model.chat_with_tools([TOOL], chat_history=[*ASKED, called.message, result], max_tokens=8)
    assert after.message.content and after.raw.usage.prompt_tokens > before.raw.usage.prompt_tokens


def main(program):
    for served, name in each_model(program):
        for check in [chats, schemas, tools, responses]:
            check(served, name)
            print("ok llama-index", name, check.__name__)


if __name__ == "__main__":
    main(sys.argv[1])
