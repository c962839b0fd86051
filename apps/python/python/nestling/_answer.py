"""Answers under way."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import weakref
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any, TypeVar

from . import _core
from ._errors import AnswerError, BusyError, StoppedError
from ._events import Event, Finished, Text, named
from ._schema import parsed

T = TypeVar("T")

# A thread that calls into an interpreter that is being finalized aborts the process.
atexit.register(_core.stop_notifiers)


class Answer:
    """An answer under way: `for` and `async for` give its text piece by piece, `events()` all that happens.

    `text()` and `result()` wait for its end, as `await` does. Whoever drops it cancels it, and so does an interrupt or a
    cancelled task that waits for it. One thread at a time reads it; any thread may cancel it.
    """

    def __init__(self, generation: _core.Generation) -> None:
        self._generation = generation
        self._finished: Finished | None = None
        self._is_awaited = False
        self._number = next(_NUMBERS)
        self._wakeups: _Wakeups | None = None

    def cancel(self) -> None:
        """Asks it to stop, which it does within one layer of the model; returns at once. Its last event says so."""
        self._generation.cancel()

    def close(self) -> None:
        """Cancels it, and lets go of it."""
        self._generation.close()

    def __repr__(self) -> str:
        ended = self._finished
        if ended is None:
            return "<nestling.Answer: not read to its end>"
        return f"<nestling.Answer: {ended.reason} after {ended.usage.completion_tokens} tokens>"

    @property
    def finished(self) -> Finished | None:
        """How it ended, once that was read."""
        return self._finished

    def poll(self, timeout: float = 0.0) -> Event | None:
        """The next event; None where none comes in `timeout` seconds, and after the last."""
        told = self._generation.poll(timeout)
        return self._named(told) if isinstance(told, tuple) else None

    def events(self) -> Events:
        """All that happens, for `for` and `async for`."""
        return Events(self)

    def __iter__(self) -> Iterator[str]:
        try:
            for event in self.events():
                if type(event) is Text:
                    yield event.text
        except KeyboardInterrupt:
            self.cancel()
            raise

    async def __aiter__(self) -> AsyncIterator[str]:
        while (event := await self._next_async()) is not None:
            if type(event) is Text:
                yield event.text

    def result(self) -> Finished:
        """Waits for the end, and says how it ended and all that was said."""
        try:
            while self._next() is not None:
                pass
            return self._end()
        except KeyboardInterrupt:
            self.cancel()
            raise

    def text(self) -> str:
        """Waits for the end, and gives the whole text, without reasoning."""
        return self.result().text

    def parse(self, of: type[T]) -> T:
        """Waits for the end, and gives the answer as a value of a type; an AnswerError where it is none."""
        return whole(of, self.result())

    def __await__(self) -> Generator[Any, None, Finished]:
        return self._result_async().__await__()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    async def _result_async(self) -> Finished:
        while await self._next_async() is not None:
            pass
        return self._end()

    def _end(self) -> Finished:
        if self._finished is None:
            raise StoppedError("the generation failed or was closed before its end")
        return self._finished

    def _named(self, told: tuple[Any, ...]) -> Event:
        event = named(told)
        if type(event) is Finished:
            self._finished = event
        return event

    def _next(self) -> Event | None:
        try:
            told = self._generation.next()
            return None if told is None else self._named(told)
        except Exception:
            raise
        except BaseException:
            # An interrupt, or an exception of a signal handler.
            self.cancel()
            raise

    async def _next_async(self) -> Event | None:
        if self._is_awaited:
            raise BusyError("another task waits for this answer at this moment")
        loop = asyncio.get_running_loop()
        wakeups = self._wakeups
        if wakeups is None or wakeups.loop() is not loop:
            wakeups = self._wakeups = _wakeups_of(loop)
        if wakeups is None:
            return await self._next_by_thread(loop)
        told = self._generation.poll_or_signal(wakeups.signal, self._number)
        while isinstance(told, bool):
            more = wakeups.waiting[self._number] = loop.create_future()
            try:
                await self._wait(more)
            finally:
                wakeups.waiting.pop(self._number, None)
            told = self._generation.poll_or_signal(wakeups.signal, self._number)
        return None if told is None else self._named(told)

    async def _next_by_thread(self, loop: asyncio.AbstractEventLoop) -> Event | None:
        """Waits by a thread that calls into the loop, for loops that cannot wait for a socket."""
        told = self._generation.poll(0)
        while isinstance(told, bool):
            more = loop.create_future()
            told = self._generation.poll_or_call(lambda: loop.call_soon_threadsafe(_wake, more))
            if isinstance(told, bool):
                await self._wait(more)
                told = self._generation.poll(0)
        return None if told is None else self._named(told)

    async def _wait(self, more: asyncio.Future[None]) -> None:
        self._is_awaited = True
        try:
            await more
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            self._is_awaited = False


class _Wakeups:
    """The tasks of one event loop that wait for answers, by the number of the answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.signal = _core.Signal()
        self.waiting: dict[int, asyncio.Future[None]] = {}
        self.loop = weakref.ref(loop)
        loop.add_reader(self.signal.fileno(), self._wake)

    def _wake(self) -> None:
        for number in self.signal.take():
            more = self.waiting.pop(number, None)
            if more is not None:
                _wake(more)


_NUMBERS = itertools.count()
_LOOPS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Wakeups | None] = weakref.WeakKeyDictionary()


def _wakeups_of(loop: asyncio.AbstractEventLoop) -> _Wakeups | None:
    """Returns the wake-ups of a loop; None if it cannot wait for a socket, as Windows' Proactor cannot."""
    if loop not in _LOOPS:
        try:
            _LOOPS[loop] = _Wakeups(loop)
        except NotImplementedError:
            _LOOPS[loop] = None
    return _LOOPS[loop]


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def whole(of: type[T], finished: Finished) -> T:
    """An answer that ended by itself, as a value of a type."""
    if finished.reason != "stop":
        raise AnswerError(f"the answer ended early ({finished.reason}): {finished.text!r}")
    return parsed(of, finished.text)


class Events:
    """The events of an answer, in order."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> Event:
        try:
            event = self._answer._next()
        except KeyboardInterrupt:
            self._answer.cancel()
            raise
        if event is None:
            raise StopIteration
        return event

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event:
        event = await self._answer._next_async()
        if event is None:
            raise StopAsyncIteration
        return event
