"""The engine that Dynamo's worker drives: it receives token ids and streams token ids."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from dynamo._core import Context
from dynamo.common.backend import EngineConfig, GenerateChunk, GenerateRequest, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.health_check import build_health_check_payload
from dynamo.common.backend.metrics import register_engine_registry
from dynamo.common.backend.publisher import ComponentSnapshot
from dynamo.common.utils.token_ids import normalize_request_token_ids
from dynamo.llm.exceptions import DynamoException, EngineShutdown, InvalidArgument, WorkerUnavailable

import nestling

from .arguments import cache_folder, parser, served_name, worker_config
from .metrics import WorkerMetrics
from .model_files import ModelFilesError, frontend_folder
from .requests import RefusedField, options

_log = logging.getLogger(__name__)

#: Seconds between two reports of the KV cache to Dynamo's router.
_REPORT_SECONDS = 1.0

_REASONS = {"stop": "stop", "length": "length", "context_full": "length", "cancelled": "cancelled"}


class NestlingEngine(LLMEngine):
    """One model, opened by `start`. Requests run at once, each in a session of its own."""

    def __init__(self, arguments: Any, folder: Path) -> None:
        self._arguments = arguments
        self._folder = folder
        self._model: nestling.Model | None = None
        self._answers: dict[str, nestling.Answer] = {}
        self._metrics = WorkerMetrics(lambda: self._opened().status(), arguments.level)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = threading.Event()
        self._reporter: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[NestlingEngine, WorkerConfig]:
        """Reads the arguments and the files that the frontend needs. Raises SystemExit with a message."""
        arguments = parser().parse_args(argv)
        folder = arguments.tokenizer
        if folder is None:
            try:
                folder = frontend_folder(Path(arguments.model), cache_folder())
            except (ModelFilesError, OSError) as error:
                raise SystemExit(f"nestling_dynamo: {error}") from error
        return cls(arguments, folder), worker_config(arguments, folder)

    async def start(self, worker_id: int) -> EngineConfig:
        """Opens the model."""
        self._loop = asyncio.get_running_loop()
        asked = self._arguments
        self._model = await nestling.open_async(
            asked.model,
            device=asked.device,
            memory_budget=asked.memory,
            threads=asked.threads,
            context_length=asked.ctx_size,
            kv_tokens=asked.kv_tokens,
            level=asked.level,
        )
        status = self._model.status()
        _log.info("serves %s on %s as worker %x", asked.model, status.device, worker_id)
        return EngineConfig(
            model=str(self._folder),
            served_model_name=served_name(asked),
            llm=LlmRegistration(context_length=status.context_length, total_kv_blocks=status.pages_total),
        )

    def _opened(self) -> nestling.Model:
        if self._model is None:
            raise nestling.StoppedError("the model is not open")
        return self._model

    async def generate(self, request: GenerateRequest, context: Context) -> AsyncGenerator[GenerateChunk, None]:
        """Yields the tokens of one answer as they come; those that come at once are one chunk."""
        try:
            answer = await self._begin(request)
        except DynamoException:
            self._metrics.failed()
            raise
        name = context.id()
        self._answers[name] = answer
        try:
            async for event in answer.events():
                events = [event]
                while (more := answer.poll(0)) is not None:
                    events.append(more)
                chunk = _chunk(events)
                if chunk is not None:
                    yield chunk
        except nestling.NestlingError as error:
            raise _typed(error) from error
        finally:
            self._answers.pop(name, None)
            self._end(answer)

    async def _begin(self, request: GenerateRequest) -> nestling.Answer:
        """Starts an answer. Raises exceptions of Dynamo."""
        normalize_request_token_ids(request)
        try:
            found = options(request)
            session = self._opened().session()
            tokens: Sequence[int] = request["token_ids"]
            # Constraints are compiled on another thread.
            if found.keys() & {"schema", "regex", "lark"}:
                return await session.generate_async(tokens, token_events=True, **found)
            return session.generate(tokens, token_events=True, **found)
        except (RefusedField, TypeError) as error:
            raise InvalidArgument(str(error)) from error
        except nestling.NestlingError as error:
            raise _typed(error) from error

    def _end(self, answer: nestling.Answer) -> None:
        """Counts an answer. One that is still being computed is cancelled first.

        Dynamo may drop a generator on a thread without an event loop.
        """
        if answer.finished is None:
            answer.cancel()
        # A loop that is closed counts nothing.
        with contextlib.suppress(RuntimeError):
            self._running_loop().call_soon_threadsafe(self._count, answer)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the engine was not started")
        return self._loop

    def _count(self, answer: nestling.Answer) -> None:
        if answer.finished is not None:
            self._metrics.finished(answer.finished)
            return
        task = self._running_loop().create_task(self._count_end(answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _count_end(self, answer: nestling.Answer) -> None:
        try:
            self._metrics.finished(await answer)
        except nestling.NestlingError:
            self._metrics.failed()

    async def abort(self, context: Context) -> None:
        """Cancels the answer of a client that left. Computation ends within one layer of the model."""
        answer = self._answers.get(context.id())
        if answer is not None:
            answer.cancel()

    async def register_prometheus(self, metrics: Any) -> None:
        """Adds the worker's metrics to those of Dynamo's system port."""
        register_engine_registry(metrics, self._metrics.registry)

    def component_metrics_dp_ranks(self) -> list[int]:
        """A worker is one rank."""
        return [0]

    def attach_snapshot_publisher(self, publisher: Any) -> None:
        """Starts to report the KV cache to Dynamo's router. Dynamo calls this outside of the event loop."""
        self._reporter = threading.Thread(target=self._report, args=(publisher,), name="nestling-report", daemon=True)
        self._reporter.start()

    def _report(self, publisher: Any) -> None:
        while not self._stop.wait(_REPORT_SECONDS):
            try:
                status = self._opened().status()
            except nestling.StoppedError:
                return
            used = status.pages_total - status.pages_free
            share = used / max(status.pages_total, 1)
            publisher.publish(0, ComponentSnapshot(used, status.pages_total, share, dp_rank=0))

    async def health_check_payload(self) -> dict[str, Any] | None:
        """A request of one token, which Dynamo sends to an idle worker."""
        return build_health_check_payload(bos_token_id=0)

    async def cleanup(self) -> None:
        """Cancels all answers and closes the model."""
        self._stop.set()
        if self._reporter is not None:
            self._reporter.join()
        for task in list(self._tasks):
            task.cancel()
        for answer in list(self._answers.values()):
            answer.cancel()
        model, self._model = self._model, None
        if model is not None:
            model.close()


def _chunk(events: list[nestling.Event]) -> GenerateChunk | None:
    """Returns what the frontend gets of some events; None for events without tokens."""
    tokens = [event for event in events if isinstance(event, nestling.Token)]
    chunk: GenerateChunk = {"token_ids": [token.token for token in tokens], "index": 0}
    if tokens and tokens[0].logprob is not None:
        chunk["log_probs"] = [token.logprob for token in tokens if token.logprob is not None]
        if any(token.top for token in tokens):
            chunk["top_logprobs"] = [_likeliest(token) for token in tokens]
    last = events[-1]
    if isinstance(last, nestling.Finished):
        usage = last.usage
        chunk["finish_reason"] = _REASONS.get(last.reason, "error")
        chunk["completion_usage"] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }
        return chunk
    return chunk if tokens else None


def _likeliest(token: nestling.Token) -> list[dict[str, Any]]:
    """Returns the likeliest tokens in Dynamo's form. Without a text the frontend decodes them itself."""
    return [
        {"rank": rank, "token_id": one, "token": None, "logprob": logprob}
        for rank, (one, logprob) in enumerate(token.top, start=1)
    ]


def _typed(error: nestling.NestlingError) -> DynamoException:
    """Returns Dynamo's exception for an error of the engine.

    The frontend answers InvalidArgument with status 400, and may migrate requests that end with the other two.
    """
    if isinstance(error, (nestling.NoRoomError, nestling.BusyError)):
        return WorkerUnavailable(str(error))
    if isinstance(error, (nestling.CallerError, nestling.AnswerError)):
        return InvalidArgument(str(error))
    return EngineShutdown(str(error))
