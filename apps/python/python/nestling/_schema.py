"""JSON schemas of types and functions of Python, and values of them from JSON."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import inspect
import json
import os
import re
import types
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ._errors import AnswerError, CallerError

T = TypeVar("T")

_SIMPLE: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    Any: {},
    object: {},
    inspect.Parameter.empty: {},
}


def _is_pydantic(of: Any) -> bool:
    return isinstance(of, type) and hasattr(of, "model_json_schema") and hasattr(of, "model_validate_json")


def _fields(of: Any) -> dict[str, bool] | None:
    """Names of a record's fields, and whether each must be there; None for what is no record."""
    if isinstance(of, type) and dataclasses.is_dataclass(of):
        missing = dataclasses.MISSING
        return {
            field.name: field.default is missing and field.default_factory is missing
            for field in dataclasses.fields(of)
            if field.init
        }
    if typing.is_typeddict(of):
        return {name: name in of.__required_keys__ for name in of.__annotations__}
    return None


def schema_of(of: Any) -> dict[str, Any]:
    """The JSON schema of a type: one of Python's, a dataclass, a TypedDict, an Enum, or a model of pydantic."""
    if isinstance(of, Mapping):
        return dict(of)
    if _is_pydantic(of):
        closed: dict[str, Any] = _closed(of.model_json_schema())
        return closed
    if of in _SIMPLE if isinstance(of, typing.Hashable) else False:
        return dict(_SIMPLE[of])
    if (fields := _fields(of)) is not None:
        hints = get_type_hints(of, include_extras=True)
        properties = {name: schema_of(hints[name]) for name in fields}
        return _record(properties, [name for name, must in fields.items() if must])
    if isinstance(of, type) and issubclass(of, enum.Enum):
        return {"enum": [member.value for member in of]}
    return _generic(of)


def _record(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _closed(schema: Any) -> Any:
    """A schema whose records have no other fields than those that are named."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if isinstance(closed.get("properties"), dict) and closed.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def _generic(of: Any) -> dict[str, Any]:
    origin, arguments = get_origin(of), get_args(of)
    if origin is typing.Annotated:
        schema = schema_of(arguments[0])
        words = [extra for extra in arguments[1:] if isinstance(extra, str)]
        return {**schema, "description": words[0]} if words else schema
    if origin in (typing.Required, typing.NotRequired):
        return schema_of(arguments[0])
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(one) for one in arguments]}
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        items = [schema_of(one) for one in arguments]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    kind = origin or of
    if isinstance(kind, type) and issubclass(kind, Mapping):
        schema = {"type": "object"}
        return {**schema, "additionalProperties": schema_of(arguments[1])} if arguments else schema
    if isinstance(kind, type) and issubclass(kind, (Sequence, set, frozenset)):
        schema = {"type": "array"}
        return {**schema, "items": schema_of(arguments[0])} if arguments else schema
    raise CallerError(f"no JSON schema for {of!r}")


def value_of(of: Any, value: Any) -> Any:
    """What JSON has read, as a value of a type."""
    if _is_pydantic(of):
        return of.model_validate(value)
    if (fields := _fields(of)) is not None:
        if not isinstance(value, dict) or not set(value) <= set(fields):
            raise AnswerError(f"expected the fields of {of.__name__}, found {value!r}")
        hints = get_type_hints(of)
        try:
            return of(**{name: value_of(hints[name], item) for name, item in value.items()})
        except TypeError as error:
            raise AnswerError(f"{of.__name__}: {error}") from error
    if isinstance(of, type) and issubclass(of, enum.Enum):
        try:
            return of(value)
        except ValueError as error:
            raise AnswerError(str(error)) from error
    return _generic_value(of, value)


def _generic_value(of: Any, found: Any) -> Any:
    value: Any = found
    origin, arguments = get_origin(of), get_args(of)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return value_of(arguments[0], value)
    if origin in (Union, types.UnionType):
        for one in arguments:
            if _fits(one, value):
                return value_of(one, value)
        raise AnswerError(f"expected {of}, found {value!r}")
    if origin is Literal:
        if value not in arguments:
            raise AnswerError(f"expected one of {arguments}, found {value!r}")
        return value
    kind = origin or of
    if isinstance(kind, type) and isinstance(value, list) and issubclass(kind, (Sequence, set, frozenset)):
        if kind is tuple and arguments and arguments[-1] is not Ellipsis:
            return tuple(value_of(one, item) for one, item in zip(arguments, value, strict=True))
        items = [value_of(arguments[0], item) if arguments else item for item in value]
        make: Any = list if inspect.isabstract(kind) else kind
        return make(items)
    if isinstance(kind, type) and isinstance(value, dict) and issubclass(kind, Mapping):
        return {name: value_of(arguments[1], item) if arguments else item for name, item in value.items()}
    if not _fits(of, value):
        raise AnswerError(f"expected {of}, found {value!r}")
    return float(found) if of is float else found


def _fits(of: Any, value: Any) -> bool:
    """Whether JSON's value may be one of a type, as far as that is seen from outside."""
    if of in (None, type(None)):
        return value is None
    if of is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if of is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if of in (str, bool):
        return isinstance(value, of)
    if _fields(of) is not None or _is_pydantic(of):
        return isinstance(value, dict)
    origin = get_origin(of)
    if origin is Literal:
        return value in get_args(of)
    kind = origin or of
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return any(member.value == value for member in kind)
    if isinstance(kind, type) and kind is not object and issubclass(kind, Mapping):
        return isinstance(value, dict)
    if isinstance(kind, type) and kind is not object and issubclass(kind, (Sequence, set, frozenset)):
        return isinstance(value, list)
    return True


def parsed(of: type[T], text: str) -> T:
    """A text of JSON as a value of a type."""
    try:
        if _is_pydantic(of):
            model: Any = of
            return typing.cast(T, model.model_validate_json(text))
        return typing.cast(T, value_of(of, json.loads(text)))
    except ValueError as error:
        if isinstance(error, AnswerError):
            raise
        raise AnswerError(f"{error}: {text!r}") from error


@dataclasses.dataclass(frozen=True)
class Tool:
    """A function that a model may call; it is still one that Python may call."""

    function: Callable[..., Any]
    name: str
    description: str
    #: The JSON schema of its arguments.
    parameters: dict[str, Any]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def schema(self) -> dict[str, Any]:
        """As in the OpenAI API."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function, which only `Chat.run_async` calls."""
        function = self.function
        while isinstance(function, functools.partial):
            function = function.func
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)
        )

    def call(self, arguments: Mapping[str, Any]) -> str:
        """Calls it with arguments of JSON, and gives its result as a text.

        TypeError if the result is not JSON-serializable, or is an awaitable.
        """
        awaited = TypeError(f"tool {self.name}: its result must be awaited; use Chat.run_async")
        if self.is_async:
            raise awaited
        result = self.function(**self._values(arguments))
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise awaited
        return self._text(result)

    async def call_async(self, arguments: Mapping[str, Any]) -> str:
        """As `call`; the result of a coroutine function is awaited."""
        result = self.function(**self._values(arguments))
        return self._text(await result if inspect.isawaitable(result) else result)

    def _values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        hints = get_type_hints(self.function)
        unknown = set(arguments) - set(self.parameters["properties"])
        if unknown:
            raise AnswerError(f"{self.name} has no {', '.join(sorted(unknown))}")
        return {name: value_of(hints.get(name, Any), value) for name, value in arguments.items()}

    def _text(self, result: Any) -> str:
        if isinstance(result, str):
            return result
        try:
            return json.dumps(result, default=_plain, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TypeError(f"tool {self.name}: the result is not JSON-serializable: {error}") from error


def _plain(value: Any) -> Any:
    """Converts records, enums, dates, paths and sets for JSON. TypeError for other types."""
    if _is_pydantic(type(value)):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID, os.PathLike)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def tool(function: Callable[..., Any]) -> Tool:
    """A tool from a function: its signature is the schema, and its docstring says what it and its arguments are."""
    hints = get_type_hints(function, include_extras=True)
    description, about = _docstring(inspect.getdoc(function) or "")
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise CallerError(f"{function.__name__}: {name} cannot be given by name")
        schema = schema_of(hints.get(name, Any))
        if name in about:
            schema = {**schema, "description": about[name]}
        properties[name] = schema
        if parameter.default is parameter.empty:
            required.append(name)
    return Tool(function, function.__name__, description, _record(properties, required))


_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Notes?):?\s*$")
_ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_FIELD = re.compile(r"^:param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)$")


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """What a docstring says of the function, and of its arguments (`Args:` or `:param name:`)."""
    said: list[str] = []
    about: dict[str, str] = {}
    section, last = "", ""
    for line in text.splitlines():
        if found := _SECTION.match(line):
            section, last = found[1], ""
        elif found := _FIELD.match(line):
            section, last = ":param", found[1]
            about[last] = found[2].strip()
        elif section in ("Args", "Arguments", "Parameters") and (found := _ARGUMENT.match(line)):
            last = found[1]
            about[last] = found[2].strip()
        elif section and last and line.startswith(" ") and line.strip():
            about[last] = f"{about[last]} {line.strip()}"
        elif not section:
            said.append(line)
    return "\n".join(said).strip(), about
