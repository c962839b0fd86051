"""Runs Mixture-of-Experts language models larger than memory.

    import nestling

    model = nestling.open("model.nest")
    for piece in model.chat().send("Tell me a story about a ship."):
        print(piece, end="", flush=True)
"""

from importlib.metadata import version as _version

from ._answer import Answer, Events
from ._errors import (
    AnswerError,
    BrokenError,
    BusyError,
    CallerError,
    MissingFileError,
    NestlingError,
    NoDeviceError,
    NoRoomError,
    SourceError,
    StoppedError,
)
from ._events import (
    Event,
    Finished,
    FinishReason,
    Other,
    PromptToken,
    Reasoning,
    Stats,
    Text,
    Token,
    ToolCall,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)
from ._model import Chat, Engine, Message, Model, OpenOptions, Session, Status, ToolLike, open, open_async
from ._numbers import Likelihood
from ._options import Options
from ._schema import Tool, schema_of, tool

__all__ = [
    "Answer",
    "AnswerError",
    "BrokenError",
    "BusyError",
    "CallerError",
    "Chat",
    "Engine",
    "Event",
    "Events",
    "FinishReason",
    "Finished",
    "Likelihood",
    "Message",
    "MissingFileError",
    "Model",
    "NestlingError",
    "NoDeviceError",
    "NoRoomError",
    "OpenOptions",
    "Options",
    "Other",
    "PromptToken",
    "Reasoning",
    "Session",
    "SourceError",
    "Stats",
    "Status",
    "StoppedError",
    "Text",
    "Token",
    "Tool",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallStart",
    "ToolLike",
    "Usage",
    "open",
    "open_async",
    "schema_of",
    "tool",
]

__version__ = _version("nestling")
