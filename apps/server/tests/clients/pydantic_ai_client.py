"""Tests the server with pydantic-ai, by its models of OpenAI's two APIs, Anthropic and Ollama.

    python pydantic_ai_client.py PROGRAM
"""

import sys

from person import DESCRIPTION, NOTED, QUESTION, Person
from program import each_model
from pydantic_ai import Agent, NativeOutput, Tool, ToolOutput
from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.ollama import OllamaModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider


def models(served, name):
    """Yields a model of each API."""
    openai = OpenAIProvider(base_url=served.url, api_key="none")
    yield OpenAIChatModel(name, provider=openai)
    yield OpenAIResponsesModel(name, provider=openai)
    yield OllamaModel(name, provider=OllamaProvider(base_url=served.url))
    yield AnthropicModel(name, provider=AnthropicProvider(base_url=served.url.removesuffix("/v1"), api_key="none"))


def settings(tokens, **others):
    return {"max_tokens": tokens, "temperature": 0, "timeout": 120, **others}


def chats(model):
    agent = Agent(model, model_settings=settings(16))
    whole = agent.run_sync(QUESTION)
    assert whole.output and whole.usage.output_tokens <= 16, whole
    stream = agent.run_stream_sync(QUESTION)
    pieces = list(stream.stream_text(delta=True, debounce_by=None))
    assert "".join(pieces) == stream.get_output() == whole.output and len(pieces) > 1, (pieces, whole.output)
    again = agent.run_sync("And then?", message_history=whole.all_messages())
    assert again.output and again.usage.input_tokens > whole.usage.input_tokens


def schemas(model):
    # The package sends schemas to Anthropic's API only for known Claude models.
    for form in [ToolOutput] if isinstance(model, AnthropicModel) else [ToolOutput, NativeOutput]:
        agent = Agent(model, output_type=form(Person), model_settings=settings(200), retries=0)
        person = agent.run_sync(QUESTION).output
        assert isinstance(person, Person), person
        stream = agent.run_stream_sync(QUESTION)
        assert list(stream.stream_output(debounce_by=None))[-1] == stream.get_output() == person, form


def tools(model):
    noted = []

    def person(person: Person) -> str:
        noted.append(person)
        return NOTED

    def first_calls(run):
        # Only the first request requires the tool: the second one is for the final answer.
        return settings(200, parallel_tool_calls=False, **({} if run.messages[1:] else {"tool_choice": "required"}))

    agent = Agent(model, tools=[Tool(person, name="person", description=DESCRIPTION)], model_settings=first_calls)
    whole = agent.run_sync(QUESTION)
    assert len(noted) == 1 and isinstance(noted[0], Person), noted
    parts = [part for message in whole.all_messages() for part in message.parts]
    (call,) = [part for part in parts if isinstance(part, ToolCallPart)]
    (result,) = [part for part in parts if isinstance(part, ToolReturnPart)]
    assert result.content == NOTED and result.tool_call_id == call.tool_call_id, parts
    first, last = [message for message in whole.all_messages() if isinstance(message, ModelResponse)]
    assert whole.output and last.usage.input_tokens > first.usage.input_tokens, (first, last)
    stream = agent.run_stream_sync(QUESTION)
    text = "".join(stream.stream_text(delta=True, debounce_by=None))
    assert noted[1:] == noted[:1] and text == whole.output, (noted, text, whole.output)


def main(program):
    for served, name in each_model(program):
        for model in models(served, name):
            for check in [chats, schemas, tools]:
                check(model)
                print("ok pydantic-ai", type(model).__name__, name, check.__name__)


if __name__ == "__main__":
    main(sys.argv[1])
