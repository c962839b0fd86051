"""What a generation tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

FinishReason: TypeAlias = Literal["stop", "length", "context_full", "tool_calls", "cancelled", "other"]


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer; always whole characters."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Token:
    """A token was chosen. Comes before the text that it completes, where `token_events` or `top_logprobs` ask for it."""

    token: int
    #: The bytes that it stands for, which may be part of a character.
    bytes: bytes
    #: Natural logarithm of its probability before any sampling option, where asked for.
    logprob: float | None
    #: The likeliest tokens with theirs, likeliest first; as many as were asked for.
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class PromptToken:
    """A token of the prompt, where `prompt_logprobs` asks for them. The first has no log-probability."""

    token: int
    bytes: bytes
    logprob: float | None
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """The model begins to call a tool."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of the arguments of the call that began last."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The call that began last, whole."""

    id: str
    name: str
    #: JSON, unless the answer was cut off within it.
    arguments: str

    def parsed(self) -> dict[str, Any]:
        """The arguments; an AnswerError where they are not an object of JSON."""
        return _object(self.arguments)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a generation used."""

    #: Tokens of the whole prompt, what the session already held included.
    prompt_tokens: int
    #: Of these, how many were not computed again.
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Stats:
    """What a generation did, and how long it took, in seconds and bytes."""

    prompt_tokens: int
    prompt_seconds: float
    decode_tokens: int
    decode_seconds: float
    first_token_seconds: float
    is_late: bool
    preemptions: int
    steps: int
    #: Mean bits that experts were computed with; None where levels mean nothing.
    mean_level: float | None
    weight_read_bytes: int
    weight_bytes: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class Finished:
    """How a generation ended: the last event of one that did not fail."""

    reason: FinishReason
    #: Which of the stop texts ended it.
    stop: int | None
    #: The seed that tokens were drawn with.
    seed: int
    #: All that was said, as the message of the OpenAI API that goes on with a conversation.
    message: dict[str, Any]
    usage: Usage
    stats: Stats
    #: The tools that the model calls.
    tool_calls: list[ToolCall] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The answer, without reasoning."""
        return str(self.message.get("content") or "")

    @property
    def reasoning(self) -> str | None:
        """The reasoning before the answer."""
        return self.message.get("reasoning_content")


@dataclass(frozen=True, slots=True)
class Other:
    """Something that this version of the package does not know."""


Event: TypeAlias = (
    Text
    | Reasoning
    | Token
    | PromptToken
    | ToolCallStart
    | ToolCallArguments
    | ToolCall
    | Finished
    | Other
)


def _object(text: str) -> dict[str, Any]:
    from ._errors import AnswerError

    try:
        value = json.loads(text)
    except ValueError as error:
        raise AnswerError(f"no JSON: {error}: {text!r}") from error
    if not isinstance(value, dict):
        raise AnswerError(f"no object of JSON: {text!r}")
    return value


def _finished(text: str) -> Finished:
    fields = json.loads(text)
    calls = [
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in fields["message"].get("tool_calls", [])
    ]
    usage, stats = Usage(**fields.pop("usage")), Stats(**fields.pop("stats"))
    return Finished(**fields, usage=usage, stats=stats, tool_calls=calls)


_KINDS: dict[str, Callable[..., Event]] = {
    "text": Text,
    "reasoning": Reasoning,
    "token": Token,
    "prompt_token": PromptToken,
    "tool_call_start": ToolCallStart,
    "tool_call_arguments": ToolCallArguments,
    "tool_call": ToolCall,
    "finished": _finished,
    "other": Other,
}


def named(told: tuple[Any, ...]) -> Event:
    """An event from what the extension module tells."""
    return _KINDS[told[0]](*told[1:])
