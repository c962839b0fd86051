"""Tests the server with litellm, by its providers openai, anthropic and ollama_chat.

    python litellm_client.py PROGRAM
"""

import os
import sys

# Otherwise the import downloads prices of models.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from person import NOTED, QUESTION, TOOL, Person, person_of
from program import each_model


def asker(served, api, name):
    """Returns litellm's `completion` with the model and provider filled in."""
    root = served.url.removesuffix("/v1")
    base = served.url if api == "openai" else root

    def ask(content, **options):
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        same = dict(model=f"{api}/{name}", api_base=base, api_key="none", temperature=0, num_retries=0, timeout=120)
        return litellm.completion(**{**same, "messages": messages, **options})

    return ask


def chats(ask):
    whole = ask(QUESTION, max_tokens=16)
    choice = whole.choices[0]
    assert choice.message.content and choice.finish_reason in ("stop", "length"), whole
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert 0 < whole.usage.completion_tokens <= 16
    chunks = list(ask(QUESTION, max_tokens=16, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == choice.message.content, (text, choice.message.content)
    assert chunks[-1].choices[0].finish_reason == choice.finish_reason
    assert litellm.stream_chunk_builder(chunks).choices[0].message.content == text
    turns = [{"role": "user", "content": QUESTION}, choice.message, {"role": "user", "content": "And then?"}]
    assert ask(turns, max_tokens=8).usage.prompt_tokens > whole.usage.prompt_tokens


def schemas(ask):
    whole = ask(QUESTION, max_tokens=120, response_format=Person)
    person = person_of(whole.choices[0].message.content)
    chunks = ask(QUESTION, max_tokens=120, response_format=Person, stream=True)
    assert person_of("".join(chunk.choices[0].delta.content or "" for chunk in chunks)) == person


def call_of(message):
    """Returns the call of a message, or None unless there is exactly one."""
    calls = message.tool_calls or []
    assert all(call.function.name == "person" for call in calls), calls
    return calls[0] if len(calls) == 1 else None


def call(ask, **options):
    """Returns a message with one call, after comparing it with its stream, or None if there are no or several."""
    same = dict(tools=[TOOL], max_tokens=200, **options)
    choice = ask(QUESTION, **same).choices[0]
    called = call_of(choice.message)
    if not called:
        return None
    person = person_of(called.function.arguments)
    built = litellm.stream_chunk_builder(list(ask(QUESTION, **same, stream=True))).choices[0]
    streamed = call_of(built.message)
    assert streamed and person_of(streamed.function.arguments) == person, built
    assert choice.finish_reason == built.finish_reason == "tool_calls", (choice, built)
    return choice.message


def tools(ask, api):
    if api == "ollama_chat":
        # Ollama has no tool choice. With a schema the model can only call the tool or answer in that form, depending on
        # the seed.
        formed = dict(response_format=Person, temperature=1)
        tried = (call(ask, **formed, seed=seed) for seed in range(64))
        called = next(message for message in tried if message)
    else:
        named = {"type": "function", "function": {"name": "person"}}
        assert call(ask, tool_choice=named)
        called = call(ask, tool_choice="required", parallel_tool_calls=False)
        assert called
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "name": "person", "content": NOTED}
    turns = [{"role": "user", "content": QUESTION}, called, result]
    before = ask(QUESTION, tools=[TOOL], max_tokens=8)
    after = ask(turns, tools=[TOOL], max_tokens=8)
    assert after.choices[0].message.content and after.usage.prompt_tokens > before.usage.prompt_tokens


def main(program):
    # Otherwise every call prints that the price of the model is unknown.
    litellm.suppress_debug_info = True
    for served, name in each_model(program):
        for api in ["openai", "anthropic", "ollama_chat"]:
            ask = asker(served, api, name)
            chats(ask)
            schemas(ask)
            tools(ask, api)
            print("ok litellm", api, name)


if __name__ == "__main__":
    main(sys.argv[1])
