"""Tools that are coroutine functions, and results that have no JSON."""

import asyncio
import datetime
import functools
import json
from pathlib import Path
from typing import Any, Literal

import pytest

import nestling

City = Literal["Bergen", "Lisbon"]


async def weather(city: City) -> dict[str, str]:
    """Tells the weather."""
    await asyncio.sleep(0)
    return {"weather": "rain"}


def test_coroutine_functions_are_refused_by_run(tool_model: nestling.Model) -> None:
    class Weather:
        __name__ = "weather"

        async def __call__(self, city: City) -> str:
            return "rain"

    for function in (weather, functools.partial(weather), Weather()):
        one = nestling.Tool(function, "weather", "", nestling.tool(weather).parameters)
        chat = tool_model.chat(tools=[one])
        with pytest.raises(TypeError, match="weather.*run_async"):
            chat.run("Hello", max_tokens=1)
        assert not chat.transcript
        with pytest.raises(TypeError, match="await"):
            chat.call("weather", '{"city": "Bergen"}')
    with pytest.raises(TypeError, match="await"):
        nestling.tool(lambda: weather("Bergen")).call({})


def test_coroutine_functions_are_awaited(tool_model: nestling.Model) -> None:
    def double(number: int) -> int:
        return 2 * number

    chat = tool_model.chat(tools=[weather, double])
    asyncio.run(
        chat.run_async("Hello", tool_choice="weather", rounds=1, max_tokens=120, temperature=0)
    )
    said = chat.transcript
    assert [message["role"] for message in said] == ["user", "assistant", "tool", "assistant"]
    assert json.loads(said[2]["content"]) == {"weather": "rain"}
    assert asyncio.run(chat.call_async("double", '{"number": 3}')) == "6"
    assert asyncio.run(chat.call_async("absent", "{}")).startswith("error: ")


def test_a_question_may_be_awaited(model: nestling.Model) -> None:
    async def ask() -> str:
        return await model.chat().ask_async("Hello", temperature=0, max_tokens=8)

    assert asyncio.run(ask()) == model.chat().ask("Hello", temperature=0, max_tokens=8)


@pytest.mark.parametrize("result", [object(), b"rain", float("nan"), {"when": object()}, {(1, 2): 3}, len])
def test_results_without_json_are_errors(result: Any) -> None:
    def give() -> Any:
        return result

    with pytest.raises(TypeError, match="give.*JSON"):
        nestling.tool(give).call({})


def test_results_of_common_types_have_json() -> None:
    def give() -> Any:
        return [datetime.date(2026, 1, 2), Path("a"), {3}]

    assert json.loads(nestling.tool(give).call({})) == ["2026-01-02", "a", [3]]
