"""How an answer is generated."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsFloat, SupportsIndex, TypedDict

from ._errors import CallerError
from ._schema import schema_of


class Options(TypedDict, total=False):
    """How an answer is generated; what is not said is the model's own, or the default."""

    #: Most tokens; without it until the model ends or the context is full.
    max_tokens: int | None
    #: Divides the logits; 0 is the likeliest token always.
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    #: Number of latest tokens that the three penalties count; -1 is all, the default; 0 switches them off.
    repeat_last_n: int | None
    #: Probability of the tokens whose surprise is closest to the entropy, above 0 to 1; 1 is off.
    typical_p: float | None
    #: Maximum distance from the best logit, in standard deviations of the logits; 0 or less is off.
    top_n_sigma: float | None
    #: Probability of applying XTC, 0 to 1; 0 is off.
    xtc_probability: float | None
    #: Minimum probability of the tokens that XTC considers, 0 to 1; default 0.1; above 0.5 is off.
    xtc_threshold: float | None
    #: Factor of the DRY penalty of repeated sequences, from 0; 0 is off.
    dry_multiplier: float | None
    #: Base of the DRY penalty; default 1.75; below 1 is off.
    dry_base: float | None
    #: Length in tokens of a repetition that DRY penalizes; default 2.
    dry_allowed_length: int | None
    #: Number of latest tokens that DRY scans; -1 is all, the default; 0 is off.
    dry_penalty_last_n: int | None
    #: Texts of 1 to 40 bytes that end a repetition for DRY, at most 32; default newline, colon, double quote, asterisk.
    dry_sequence_breakers: Sequence[str] | None
    #: Version of mirostat: 0 is off; 2 replaces all samplers but the temperature.
    mirostat: int | None
    #: Target surprise of mirostat in bits, from 0; default 5.
    mirostat_tau: float | None
    #: Learning rate of mirostat, from 0; default 0.1.
    mirostat_eta: float | None
    #: Half of the width of the dynamic temperature's interval, from 0; 0 is off.
    dynatemp_range: float | None
    #: Exponent of the normalized entropy in the dynamic temperature, from 0; default 1.
    dynatemp_exponent: float | None
    #: Samplers in their order: penalties, dry, top_n_sigma, temperature, top_k, typ_p, top_p, min_p, xtc (the default).
    samplers: Sequence[str] | None
    #: Added to the logits of tokens; -inf forbids one.
    logit_bias: Mapping[int, float] | None
    #: Makes draws repeatable.
    seed: int | None
    #: Log-probabilities with every token, and those of so many likeliest ones.
    top_logprobs: int | None
    #: Those of the prompt's tokens, and with each those of so many likeliest ones.
    prompt_logprobs: int | None
    #: A text or several that end the answer and are not part of it.
    stop: str | Sequence[str] | None
    #: Tokens that end the answer, besides the model's own.
    stop_tokens: Sequence[int] | None
    #: The model's own end tokens are tokens like others.
    ignore_end: bool
    #: Special tokens have a text.
    show_special: bool
    #: Every token is an event of its own.
    token_events: bool
    #: Bits of every weight to use, at most those that the model was opened with.
    level: int | None
    #: In how many seconds the first token is wanted.
    deadline: float | None
    #: Greater numbers go first; -128 to 127.
    priority: int
    #: Whose beginnings of prompts are shared.
    cache_salt: str | None
    #: The answer is JSON of this: a schema, or a type of Python's or pydantic's.
    schema: Mapping[str, Any] | str | type[Any] | None
    #: The answer matches this regular expression.
    regex: str | None
    #: The answer matches this grammar, in Lark's syntax or in GBNF, llama.cpp's format.
    lark: str | None
    #: Whether the model calls a tool: "auto", "none", "required", or the name of one.
    tool_choice: str | None


_SAMPLING_FLOATS = frozenset(
    """temperature top_p min_p typical_p top_n_sigma xtc_probability xtc_threshold dry_multiplier dry_base mirostat_tau
    mirostat_eta dynatemp_range dynatemp_exponent repetition_penalty presence_penalty frequency_penalty""".split()
)
_SAMPLING_COUNTS = frozenset(
    "top_k seed top_logprobs dry_allowed_length dry_penalty_last_n mirostat repeat_last_n".split()
)
_FLOATS = _SAMPLING_FLOATS | {"deadline"}
_COUNTS = _SAMPLING_COUNTS | {"max_tokens", "prompt_logprobs", "level", "priority"}
_FLAGS = frozenset("ignore_end show_special token_events".split())
_TEXTS = frozenset("cache_salt regex lark tool_choice".split())
#: Types whose items are int, but which hold text or raw data rather than token ids.
BYTES = (bytes, bytearray, memoryview)
_SAMPLING = _SAMPLING_FLOATS | _SAMPLING_COUNTS


def written(options: Mapping[str, Any], **more: Any) -> str:
    """Options as the extension module reads them."""
    told: dict[str, Any] = dict(more)
    sampling: dict[str, Any] = {}
    for name, value in options.items():
        if name not in Options.__annotations__:
            raise TypeError(f"{name!r} is no option of an answer")
        if value is None:
            continue
        if name == "stop":
            told["stop"] = [value] if isinstance(value, str) else texts(name, value)
        elif name in ("samplers", "dry_sequence_breakers"):
            sampling[name] = texts(name, value)
        elif name == "stop_tokens":
            told["stop_tokens"] = token_ids(name, value)
        elif name == "logit_bias":
            sampling[name] = [
                [token, None if bias == -math.inf else bias]
                for token, bias in zip(token_ids(name, value), value.values(), strict=True)
            ]
        elif name == "schema":
            told["json_schema"] = value if isinstance(value, str) else json.dumps(schema_of(value))
        else:
            (sampling if name in _SAMPLING else told)[name] = _checked(name, value)
    if sampling:
        told["sampling"] = sampling
    return dumps(told)


def _checked(name: str, value: Any) -> Any:
    """A plain value of the kind that an option has."""
    kinds: list[tuple[frozenset[str], Callable[[Any], Any], type | tuple[type, ...]]] = [
        (_FLOATS, float, (float, SupportsFloat)),
        (_COUNTS, operator.index, SupportsIndex),
        (_FLAGS, bool, bool),
        (_TEXTS, str, str),
    ]
    for names, plain, kind in kinds:
        if name in names:
            if isinstance(value, bool) and names is not _FLAGS:
                raise TypeError(f"{name}: expected a number or a str, found {value!r}")
            if not isinstance(value, kind):
                raise CallerError(f"{name}: found {value!r}")
            return plain(value)
    return value


def text(name: str, value: Any) -> str:
    """Returns a str as it is and refuses every other type."""
    if not isinstance(value, str):
        hint = "; decode it first" if isinstance(value, BYTES) else ""
        raise TypeError(f"{name}: expected a str, found {type(value).__name__}{hint}")
    return value


def texts(name: str, values: Any) -> list[str]:
    """Returns a list of str and refuses a single str, whose items are its characters."""
    if isinstance(values, (str, *BYTES)):
        raise TypeError(f"{name}: expected a sequence of str, found {type(values).__name__}")
    return [text(f"{name}[{at}]", value) for at, value in enumerate(values)]


def token_ids(name: str, values: Any) -> list[int]:
    """Returns a list of token ids. Bytes are refused although they are sequences of int; so are texts and bools."""
    if isinstance(values, BYTES):
        found = type(values).__name__
        raise TypeError(f"{name}: expected token ids, found {found}; decode it to a str or convert it to a list")
    if isinstance(values, str):
        raise TypeError(f"{name}: expected token ids, found str")
    items = list(values)
    for at, item in enumerate(items):
        if isinstance(item, (str, *BYTES)):
            found = type(item).__name__
            raise TypeError(f"{name}: expected token ids, found {found} at index {at}; pass one text per call")
        if isinstance(item, bool) or not isinstance(item, SupportsIndex):
            raise TypeError(f"{name}: expected token ids, found {type(item).__name__} at index {at}")
    return [operator.index(item) for item in items]


def dumps(value: Any) -> str:
    """Returns JSON. TypeError for values that JSON does not have, CallerError for NaN and infinities."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise CallerError(str(error)) from error
