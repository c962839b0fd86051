"""Schemas of types and functions, and answers that keep to them."""

import enum
import json
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

import pydantic
import pytest

import nestling


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(TypedDict):
    city: str


@dataclass
class Trip:
    places: list[Place]
    colour: Colour
    days: int | None = None


class Ship(pydantic.BaseModel):
    name: Literal["Swan", "Albatross"]
    masts: int = pydantic.Field(ge=1, le=3)


def travel(trip: Trip, fast: bool = False, *, note: Annotated[str, "What to say."] = "") -> Trip:
    """Books a trip.

    It takes a while.

    Args:
        trip (Trip): Where to,
            and when.
        fast: Whether to hurry.

    Returns:
        The trip.
    """
    return trip


PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def test_a_signature_is_a_schema() -> None:
    tool = nestling.tool(travel)
    assert tool.schema()["function"] == {
        "name": "travel",
        "description": "Books a trip.\n\nIt takes a while.",
        "parameters": {
            "type": "object",
            "properties": {
                "trip": {
                    "type": "object",
                    "properties": {
                        "places": {"type": "array", "items": PLACE},
                        "colour": {"enum": ["red", "blue"]},
                        "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    },
                    "required": ["places", "colour"],
                    "additionalProperties": False,
                    "description": "Where to, and when.",
                },
                "fast": {"type": "boolean", "description": "Whether to hurry."},
                "note": {"type": "string", "description": "What to say."},
            },
            "required": ["trip"],
            "additionalProperties": False,
        },
    }
    trip = {"places": [{"city": "Bergen"}], "colour": "red"}
    assert json.loads(tool.call({"trip": trip})) == {**trip, "days": None}
    assert tool(Trip([], Colour.RED)) == Trip([], Colour.RED)
    with pytest.raises(nestling.AnswerError):
        tool.call({"trip": {"places": 3}})
    with pytest.raises(nestling.AnswerError):
        tool.call({"other": 3})

    def documented(port: int) -> None:
        """Opens it.

        :param port: Which one.
        """

    about = nestling.tool(documented)
    assert about.description == "Opens it."
    assert about.parameters["properties"]["port"]["description"] == "Which one."

    def spread(*numbers: int) -> None: ...

    with pytest.raises(nestling.CallerError):
        nestling.tool(spread)


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_values_of_types(model: nestling.Model, seed: int) -> None:
    chat = model.chat()
    ship = chat.ask_for(Ship, "Tell me of a ship.", temperature=1, seed=seed)
    assert isinstance(ship, Ship) and 1 <= ship.masts <= 3

    @dataclass
    class Story:
        colour: Colour
        place: Literal["sea", "land"]
        true: bool

    story = model.chat().ask_for(Story, "Tell me a story.", temperature=1, seed=seed)
    assert isinstance(story, Story) and isinstance(story.colour, Colour) and isinstance(story.true, bool)
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}}
    closed = {**schema, "required": ["n"], "additionalProperties": False}
    for said in (closed, json.dumps(closed)):
        answer = model.generate("A number:", schema=said, temperature=1, seed=seed)
        assert 1 <= json.loads(answer.text())["n"] <= 9
    assert model.generate("It is", regex="(red|blue)!", seed=seed).text() in ("red!", "blue!")
    for grammar in ('start: ("red" | "blue") "!"', 'root ::= ("red" | "blue") "!"'):
        assert model.generate("It is", lark=grammar, seed=seed).text() in ("red!", "blue!")
    with pytest.raises(nestling.AnswerError, match="length"):
        model.chat().ask_for(Ship, "Tell me of a ship.", max_tokens=2)
    with pytest.raises(nestling.CallerError):
        model.generate("a", schema={"type": "object", "unheardOf": 1, "required": 3})


def test_samplers_of_llama_cpp_are_options(model: nestling.Model) -> None:
    plain = model.generate("The storm", temperature=1, seed=7, max_tokens=12).text()
    neutral = model.generate(
        "The storm", temperature=1, seed=7, max_tokens=12, typical_p=1, top_n_sigma=0, xtc_probability=0, dry_multiplier=0,
        mirostat=0, dynatemp_range=0, repeat_last_n=-1,
        samplers=["penalties", "dry", "top_n_sigma", "temperature", "top_k", "typ_p", "top_p", "min_p", "xtc"],
    )
    assert neutral.text() == plain
    changed: nestling.Options = {
        "temperature": 1, "seed": 7, "max_tokens": 12,
        "xtc_probability": 1, "xtc_threshold": 0.01, "dry_multiplier": 1, "dry_sequence_breakers": ["\n"], "repeat_last_n": 8
    }
    assert model.generate("The storm", **changed).text() != plain
    refused: list[nestling.Options] = [
        {"mirostat": 1}, {"typical_p": 0}, {"samplers": ["infill"]}, {"dry_sequence_breakers": [""]}
    ]
    for wrong in refused:
        with pytest.raises(nestling.CallerError, match=next(iter(wrong))):
            model.generate("The storm", **wrong)
    with pytest.raises(TypeError):
        model.generate("The storm", samplers="top_k")


def test_functions_are_called(any_tool_model: nestling.Model) -> None:
    calls: list[str] = []

    def weather(city: Literal["Bergen", "Lisbon"]) -> dict[str, str]:
        """Tells the weather."""
        calls.append(city)
        return {"weather": "rain"}

    chat = any_tool_model.chat(tools=[weather])
    chat.run("Hello", tool_choice="weather", rounds=1, max_tokens=120, temperature=0)
    said = chat.transcript
    assert calls and calls[0] in ("Bergen", "Lisbon")
    assert [message["role"] for message in said] == ["user", "assistant", "tool", "assistant"]
    assert json.loads(said[2]["content"]) == {"weather": "rain"}
    call = said[1]["tool_calls"][0]
    assert call["function"]["name"] == "weather" and said[2]["tool_call_id"] == call["id"]
    assert chat.call("absent", "{}").startswith("error: ")
    assert chat.call("weather", '{"city": "Paris"}').startswith("error: ")
    assert chat.call("weather", "{").startswith("error: ")
    with pytest.raises(nestling.CallerError, match="results"):
        chat.reply_to_tools(["one", "two"])
    with pytest.raises(nestling.CallerError):
        any_tool_model.chat().send("Hello", tool_choice="required")
    with pytest.raises(nestling.CallerError, match="tool_choice"):
        chat.send("Hello", regex="a")
