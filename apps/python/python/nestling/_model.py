"""Models, sessions and chats."""

from __future__ import annotations

import asyncio
import calendar
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack

from . import _core, _log
from ._answer import Answer, whole
from ._errors import AnswerError, CallerError, NestlingError
from ._events import Finished
from ._hub import PREFIX, fetch
from ._numbers import Likelihood, floats
from ._options import BYTES, Options, dumps, texts, token_ids, written
from ._options import text as checked
from ._progress import Progress, hears
from ._schema import Tool, tool

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")

#: A message as in the OpenAI API: `{"role": "user", "content": "…"}`.
Message: TypeAlias = Mapping[str, Any]
#: A function, what `tool` made of one, or a tool as in the OpenAI API.
ToolLike: TypeAlias = Callable[..., Any] | Tool | Mapping[str, Any]
Residence: TypeAlias = Literal["auto", "owned", "streamed", "lazy"]
KvDtype: TypeAlias = Literal["f16", "f32", "int8"]
Level: TypeAlias = Literal[2, 3, 4, 6, 8]


@dataclass(frozen=True)
class Status:
    """What a model is and does at one moment; sizes are bytes."""

    context_length: int
    context_trained: int
    vocab_size: int
    hidden_size: int
    device: str
    end_tokens: list[int]
    weight_bytes: int
    #: Of streamed experts, those in memory; None where they are not streamed.
    expert_bytes: int | None
    #: None is no limit.
    memory_budget: int | None
    memory_used: int
    running: int
    waiting: int
    pages_total: int
    pages_free: int
    is_streamed: bool
    has_text: bool
    has_chat: bool
    has_tools: bool
    has_reasoning: bool


def open(
    path: str | os.PathLike[str] | None = None,
    *,
    device: str | None = None,
    memory_budget: float | None = None,
    device_budget: int | None = None,
    weight_budget: int | None = None,
    threads: int | None = None,
    context_length: int | None = None,
    kv_tokens: int | None = None,
    kv_dtype: KvDtype | None = None,
    level: Level | None = None,
    residence: Residence | None = None,
    engine: Engine | None = None,
    progress: Progress = None,
) -> Model:
    """Opens a model: a `.nest` store, a GGUF file in place, the folder of a Hugging Face checkpoint, or `hf:owner/name`.

    What `hf:owner/name[:file][@revision]` names is downloaded unless it is here: of a store the sections that `level` needs;
    GGUF files and checkpoints run as they are. Without a path it is the small model of the package `nestling-storyteller`. Budgets are bytes; without one for memory
    the model stays within the free memory that the system reports, less a margin; `math.inf` is no limit. `progress` is a
    function of parts done and parts in all, or True for a bar. Ctrl-C stops it. Models opened in one `engine` share its
    threads and memory budget.

    `context_length` is the maximum number of tokens of a session, at most the trained one; without it and with 0 it is the
    trained one, at most 8192. `threads` is at most 1024; without it and with 0 there is one per core. Larger values are a
    CallerError. `Model.status()` reports the context length in effect.
    """
    told = dict(locals())
    del told["path"], told["progress"]
    return _open(path, told, progress, _core.CancelToken())


class OpenOptions(TypedDict, total=False):
    """The options of `open_async`, which `open` describes."""

    device: str | None
    memory_budget: float | None
    device_budget: int | None
    weight_budget: int | None
    threads: int | None
    context_length: int | None
    kv_tokens: int | None
    kv_dtype: KvDtype | None
    level: Level | None
    residence: Residence | None
    engine: Engine | None


async def open_async(
    path: str | os.PathLike[str] | None = None,
    *,
    progress: Progress = None,
    **options: Unpack[OpenOptions],
) -> Model:
    """As `open`, with the same options, on a thread of its own. A task that is cancelled stops it."""
    unknown = next((name for name in options if name not in OpenOptions.__annotations__), None)
    if unknown is not None:
        raise TypeError(f"open_async() got an unexpected keyword argument {unknown!r}")
    cancel = _core.CancelToken()
    try:
        return await asyncio.to_thread(_open, path, options, progress, cancel)
    except asyncio.CancelledError:
        cancel.cancel()
        raise


def _open(
    path: str | os.PathLike[str] | None,
    options: Mapping[str, Any],
    progress: Progress,
    cancel: _core.CancelToken,
) -> Model:
    _log.follow()
    told = dict(options)
    engine = told.pop("engine", None)
    if engine is not None and not isinstance(engine, Engine):
        raise TypeError(f"engine: expected an Engine, found {type(engine).__name__}")
    for name, value in told.items():
        if isinstance(value, bool):
            raise TypeError(f"{name}: expected a number or a str, found {value!r}")
    told["memory_budget"] = _bytes(told.get("memory_budget"))
    if isinstance(path, str) and path.startswith(PREFIX):
        show, end = hears(progress, "fetching", "B")
        try:
            path = fetch(path, told.get("level"), show)
        finally:
            end()
    show, end = hears(progress, "opening", "part")
    try:
        shared = None if engine is None else engine._engine
        return Model(_core.open(_bundled() if path is None else path, dumps(told), show, cancel, shared))
    finally:
        end()


def _bytes(budget: float | None) -> int | None:
    """A budget in bytes as the extension module reads it."""
    return 2**64 - 1 if budget == math.inf else None if budget is None else int(budget)


def _bundled() -> str:
    try:
        import nestling_storyteller
    except ImportError as error:
        words = "without a path it is the bundled model: pip install nestling-storyteller"
        raise CallerError(words) from error
    return str(nestling_storyteller.path())


class Engine:
    """Threads and a memory budget that several models share: `nestling.open(path, engine=engine)`.

    The budget is in bytes. By default it is the free memory that the system reports, less a margin. `math.inf` means no
    limit.
    """

    def __init__(self, *, memory_budget: float | None = None, threads: int | None = None) -> None:
        for name, value in (("memory_budget", memory_budget), ("threads", threads)):
            if isinstance(value, bool):
                raise TypeError(f"{name}: expected a number, found {value!r}")
        self._engine = _core.Engine(_bytes(memory_budget), threads)

    @property
    def memory_budget(self) -> int | None:
        """The budget in bytes; None means no limit."""
        return self._engine.memory_budget()

    @property
    def memory_used(self) -> int:
        """Bytes of the budget that the models use."""
        return self._engine.memory_used()

    def __repr__(self) -> str:
        def describe() -> str:
            budget = self.memory_budget
            return f"{self.memory_used} bytes used, {'no budget' if budget is None else f'budget of {budget}'}"

        return f"<nestling.Engine: {_state(describe)}>"


class Model:
    """A model, open. Any number of threads may use it at once; its sessions, chats and answers keep it open."""

    def __init__(self, model: _core.Model) -> None:
        self._model = model

    def close(self) -> None:
        """Lets go of it; it is closed when its sessions, chats and answers are gone too."""
        self._model.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        def describe() -> str:
            status = self.status()
            weights = f"{status.weight_bytes / 1e6:.1f} MB of weights"
            return f"{status.device}, context of {status.context_length} tokens, {weights}"

        return f"<nestling.Model: {_state(describe)}>"

    def status(self) -> Status:
        """Returns the properties and the present state of the model."""
        return Status(**json.loads(self._model.status()))

    def session(self) -> Session:
        """An empty session; it costs nothing until it computes."""
        return Session(self._model.session())

    def chat(
        self,
        system: str | None = None,
        *,
        messages: Iterable[Message] = (),
        tools: Iterable[ToolLike] = (),
        template: Mapping[str, Any] | None = None,
        reserve: int | None = None,
    ) -> Chat:
        """A conversation, with what was said so far.

        `template` has further variables of the chat template, such as `enable_thinking`. With `reserve` the oldest turns
        are left out of prompts that leave no room for so many tokens of an answer; without it, they are an error.
        """
        known = _tools(tools)
        said = [{"role": "system", "content": system}] if system is not None else []
        asked = _conversation([*said, *messages], known, template)
        return Chat(self._model.chat(asked, reserve), known)

    def generate(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Answer:
        """What follows a text or tokens, in a session of its own, without a chat template."""
        return self.session().generate(prompt, **options)

    def restore(self, snapshot: bytes) -> Session:
        """The session that a snapshot holds, with the same model opened with the same options."""
        return Session(self._model.restore(snapshot))

    def set_memory_budget(self, bytes: int) -> None:
        """Gives the engine another memory budget, at any time.

        It waits for the step under way. Streamed experts give back what is too much; a model that holds more without them
        is a NoRoomError, and nothing has changed.
        """
        self._model.set_memory_budget(bytes)

    def relieve_pressure(self, bytes: int) -> None:
        """For a system short of memory: lets go of so many bytes of streamed experts, soon. Returns at once."""
        self._model.relieve_pressure(bytes)

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Tokens of a text: with what the model expects before it, and with the text of special tokens as these."""
        return self._model.encode(checked("text", text), add_special, parse_special)

    def decode(self, tokens: Sequence[int], *, keep_special: bool = False) -> str:
        """The text of tokens."""
        return self._model.decode(token_ids("tokens", tokens), keep_special)

    def conversation_tokens(
        self,
        messages: Iterable[Message],
        *,
        tools: Iterable[ToolLike] = (),
        template: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Tokens of the prompt that a conversation becomes."""
        return self._model.conversation_tokens(_conversation(messages, _tools(tools), template))

    def loglikelihood(self, context: str | Sequence[int], continuation: str | Sequence[int]) -> Likelihood:
        """How likely a continuation is after its context, as benchmarks ask it.

        Of two texts the tokens of both together are those of the context and the rest, as the model's own text has them.
        """
        before, tokens = self._split(context, continuation)
        if not before:
            raise CallerError("a context without tokens: nothing is before the continuation's first one")
        if len(before) == len(tokens):
            raise CallerError("a continuation without tokens")
        first = len(before)
        # Continuations of one context share its computed pages.
        told = written({"max_tokens": 0, "prompt_logprobs": 1}, prompt_logprobs_from=first)
        generation = self._model.session().generate_tokens(tokens, told)
        _, logprobs, best, _, _ = generation.gather(0)
        start = len(logprobs) - (len(tokens) - first)
        likeliest = best.tolist()[start:]
        return Likelihood(
            logprob=math.fsum(logprobs.tolist()[start:]),
            is_greedy=likeliest == tokens[first:],
            tokens=tokens[first:],
            _logprobs=logprobs,
            _start=start,
        )

    def _split(
        self, context: str | Sequence[int], continuation: str | Sequence[int]
    ) -> tuple[list[int], list[int]]:
        if isinstance(context, str) and isinstance(continuation, str):
            # Spaces at the end of a context belong to the first word after it.
            words = context.rstrip()
            continuation = context[len(words) :] + continuation
            before = self.encode(words, add_special=True)
            return before, self.encode(words + continuation, add_special=True)
        if isinstance(context, str) or isinstance(continuation, str):
            raise CallerError("context and continuation: two texts, or tokens twice")
        before = token_ids("context", context)
        return before, [*before, *token_ids("continuation", continuation)]

    def logprobs(self, prompt: str | Sequence[int]) -> NDArray[np.float32]:
        """Log-probabilities of all tokens after each token of a text: logits less their logarithmic sum.

        [tokens, vocabulary]: row i is what follows the first i + 1 tokens. The text leaves room for one token more.
        """
        width = self.status().vocab_size
        told = written(
            {"max_tokens": 1, "prompt_logprobs": width, "top_logprobs": width, "ignore_end": True}
        )
        tokens = self._tokens(prompt)
        everything = self._model.session().generate_tokens(tokens, told).gather(width)[3]
        # Nothing is before the first token.
        return floats(everything, len(tokens) + 1, width)[1:]

    def hidden(self, prompt: str | Sequence[int]) -> NDArray[np.float32]:
        """The last layer's output for each token of a text, after the last norm: [tokens, hidden size]."""
        told = written({"max_tokens": 0}, hidden="all")
        tokens = self._tokens(prompt)
        rows = self._model.session().generate_tokens(tokens, told).gather(0)[4]
        return floats(rows, len(tokens), self.status().hidden_size)

    def _tokens(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            return self.encode(prompt, add_special=True)
        return token_ids("prompt", prompt)


class Session:
    """A history of tokens, and what was computed for them. One thread at a time uses it."""

    def __init__(self, session: _core.Session) -> None:
        self._session = session

    def generate(
        self,
        prompt: str | Sequence[int] | Sequence[Message] = (),
        *,
        tools: Iterable[ToolLike] = (),
        template: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Answer:
        """Adds a text or tokens and generates what follows; nothing is what it holds already.

        Messages are a whole conversation, which becomes what the session holds.
        """
        told = written(options)
        _log.follow()
        if isinstance(prompt, str):
            return Answer(self._session.generate_text(prompt, told))
        items: list[Any] = [] if isinstance(prompt, BYTES) else list(prompt)
        if items and all(isinstance(item, Mapping) for item in items):
            messages: Any = items
            asked = _conversation(messages, _tools(tools), template)
            return Answer(self._session.generate_conversation(asked, told))
        tokens = token_ids("prompt", prompt if isinstance(prompt, BYTES) else items)
        return Answer(self._session.generate_tokens(tokens, told))

    async def generate_async(
        self, prompt: str | Sequence[int] | Sequence[Message] = (), **options: Unpack[Options]
    ) -> Answer:
        """As `generate`, where long texts become tokens on another thread."""
        return await asyncio.to_thread(self.generate, prompt, **options)

    def fork(self) -> Session:
        """A session that holds the same; it takes no memory of its own until both go on."""
        return Session(self._session.fork())

    @property
    def tokens(self) -> list[int]:
        """The tokens that it holds. A BusyError while an answer is written."""
        return self._session.tokens()

    def __len__(self) -> int:
        return len(self._session.tokens())

    def __repr__(self) -> str:
        return f"<nestling.Session: {_state(lambda: f'{len(self)} tokens')}>"

    def append(self, tokens: Sequence[int]) -> None:
        """Adds tokens, which the next answer computes."""
        self._session.append(token_ids("tokens", tokens))

    def truncate(self, length: int) -> None:
        """Forgets all but the first tokens."""
        self._session.truncate(length)

    def snapshot(self, *, pages: bool = True) -> bytes:
        """The session as bytes, for `Model.restore` in this process or another.

        With pages they hold what was computed, else the tokens alone, which are computed again.
        """
        return self._session.snapshot(pages)

    def close(self) -> None:
        """Lets go of it; an answer under way goes on."""
        self._session.close()


class Chat:
    """A conversation: what is sent and what was answered, reasoning and tool calls included. One thread at a time uses it."""

    def __init__(self, chat: _core.Chat, tools: list[Tool | Mapping[str, Any]]) -> None:
        self._chat = chat
        self._tools = {tool.name: tool for tool in tools if isinstance(tool, Tool)}

    def send(self, message: str, **options: Unpack[Options]) -> Answer:
        """Says something as the user; the answer is part of the conversation as far as it comes."""
        _log.follow()
        return Answer(self._chat.send(checked("message", message), written(options)))

    async def send_async(self, message: str, **options: Unpack[Options]) -> Answer:
        """As `send`, where long texts become tokens on another thread."""
        return await asyncio.to_thread(self.send, message, **options)

    def ask(self, message: str, **options: Unpack[Options]) -> str:
        """Says something and waits for the whole answer."""
        return self.send(message, **options).text()

    def ask_for(self, of: type[T], message: str, **options: Unpack[Options]) -> T:
        """Says something, and gives the answer as a value of a type: pydantic's, a dataclass, or one of Python's."""
        options["schema"] = of
        return whole(of, self.send(message, **options).result())

    def reply_to_tools(self, results: Sequence[str], **options: Unpack[Options]) -> Answer:
        """Gives the results of the last answer's tool calls, in the order of the calls."""
        _log.follow()
        return Answer(self._chat.reply_to_tools(texts("results", results), written(options)))

    def run(self, message: str, *, rounds: int = 8, **options: Unpack[Options]) -> Finished:
        """Says something, calls the functions that the model asks for, and gives the answer that asks for none.

        After `rounds` rounds of calls the model has to answer without one. What a function raises is raised here; a call
        that makes no sense is told to the model. Coroutine functions need `run_async`; with one among the tools this
        raises TypeError.
        """
        for name, one in self._tools.items():
            if one.is_async:
                raise TypeError(f"tool {name}: a coroutine function cannot be called by run; await run_async")
        finished = self.send(message, **options).result()
        _obeyed(options)
        for left in range(rounds, 0, -1):
            if not finished.tool_calls:
                return finished
            results = [self.call(call.name, call.arguments) for call in finished.tool_calls]
            if left == 1:
                options["tool_choice"] = "none"
            finished = self.reply_to_tools(results, **options).result()
        return finished

    async def ask_async(self, message: str, **options: Unpack[Options]) -> str:
        """Sends a message and awaits the text of the whole answer."""
        return (await (await self.send_async(message, **options))).text

    async def run_async(self, message: str, *, rounds: int = 8, **options: Unpack[Options]) -> Finished:
        """As `run`, in an event loop. Coroutine functions are awaited, one after another; other functions block the loop."""
        finished = await (await self.send_async(message, **options))
        _obeyed(options)
        for left in range(rounds, 0, -1):
            if not finished.tool_calls:
                return finished
            results = [await self.call_async(call.name, call.arguments) for call in finished.tool_calls]
            if left == 1:
                options["tool_choice"] = "none"
            finished = await (await asyncio.to_thread(self.reply_to_tools, results, **options))
        return finished

    def call(self, name: str, arguments: str) -> str:
        """The result of a tool call, as `run` makes it."""
        try:
            one, values = self._called(name, arguments)
            return one.call(values)
        except (AnswerError, json.JSONDecodeError) as error:
            return f"error: {error}"

    async def call_async(self, name: str, arguments: str) -> str:
        """The result of a tool call, as `run_async` makes it."""
        try:
            one, values = self._called(name, arguments)
            return await one.call_async(values)
        except (AnswerError, json.JSONDecodeError) as error:
            return f"error: {error}"

    def _called(self, name: str, arguments: str) -> tuple[Tool, dict[str, Any]]:
        if name not in self._tools:
            raise AnswerError(f"no function {name!r}")
        values = json.loads(arguments or "{}")
        if not isinstance(values, dict):
            raise AnswerError(f"no object: {arguments!r}")
        return self._tools[name], values

    def __repr__(self) -> str:
        return f"<nestling.Chat: {_state(lambda: f'{len(self.transcript)} messages')}>"

    @property
    def transcript(self) -> list[dict[str, Any]]:
        """All that was said, as messages of the OpenAI API, with the answer under way as far as it has come."""
        messages: list[dict[str, Any]] = json.loads(self._chat.transcript())
        return messages

    @property
    def dropped_messages(self) -> int:
        """Messages that were left out of the last prompt, oldest first."""
        return self._chat.dropped_messages()

    def session(self) -> Session:
        """A session that holds what the conversation's does."""
        return Session(self._chat.session())

    def close(self) -> None:
        """Lets go of it; an answer under way goes on."""
        self._chat.close()


def _state(describe: Callable[[], str]) -> str:
    """Describes a handle for its repr, which never raises: a handle may be busy or closed."""
    try:
        return describe()
    except NestlingError as error:
        return str(error)


def _obeyed(options: Options) -> None:
    """Lets the model answer once it has called the tool that it had to; else it would call it in every round."""
    if options.get("tool_choice") not in (None, "none"):
        options["tool_choice"] = "auto"


def _tools(tools: Iterable[ToolLike]) -> list[Tool | Mapping[str, Any]]:
    return [one if isinstance(one, (Tool, Mapping)) else tool(one) for one in tools]


def _conversation(
    messages: Iterable[Message],
    tools: Iterable[Tool | Mapping[str, Any]],
    template: Mapping[str, Any] | None,
) -> str:
    listed = list(messages)
    for at, message in enumerate(listed):
        if not isinstance(message, Mapping):
            raise TypeError(f"messages[{at}]: expected a mapping, found {type(message).__name__}")
    told: dict[str, Any] = {
        "messages": [dict(message) for message in listed],
        "tools": [one.schema() if isinstance(one, Tool) else dict(one) for one in tools],
        # Templates that print a date have that of the clock on the wall.
        "now": calendar.timegm(time.localtime()),
    }
    if template is not None:
        if not isinstance(template, Mapping):
            raise TypeError(f"template: expected a mapping, found {type(template).__name__}")
        told["chat_template_kwargs"] = dict(template)
    return dumps(told)
