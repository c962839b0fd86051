"""The engine's log records, passed to `logging` under the name `nestling`."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading

from . import _core

logger = logging.getLogger("nestling")
# Nothing is printed unless the program configures `logging`.
logger.addHandler(logging.NullHandler())

_LEVELS = (5, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_OFF = 255


class _State:
    """The level that the engine has, and the thread that calls handlers while records are heard."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.level = _OFF
        self.queue: _core.LogQueue | None = None
        self.thread: threading.Thread | None = None
        self.is_ended = False


_state = _State()


def follow() -> None:
    """Tells the engine which levels `logging` handles at present. Called when a model is opened and an answer begins."""
    level = next((one for one in _LEVELS if logger.isEnabledFor(one)), _OFF) if _is_heard() else _OFF
    if level == _state.level and (level == _OFF or _state.thread is not None):
        return
    with _state.lock:
        if _state.is_ended:
            return
        if level != _OFF and _state.thread is None:
            _state.queue = _core.LogQueue()
            # Handlers may be slow, and the engine's threads must not wait for the interpreter.
            _state.thread = threading.Thread(target=_pass_on, args=(_state.queue,), name="nestling-log", daemon=True)
            _state.thread.start()
        if level != _state.level:
            _core.set_log_level(level)
            _state.level = level


def _is_heard() -> bool:
    at: logging.Logger | None = logger
    while at is not None:
        if any(type(handler) is not logging.NullHandler for handler in at.handlers):
            return True
        at = at.parent if at.propagate else None
    return False


def _pass_on(queue: _core.LogQueue) -> None:
    while (taken := queue.take()) is not None:
        records, dropped = taken
        for level, created, thread, module, text in records:
            _handle(level, created, thread, module, text)
        if dropped:
            _handle(logging.WARNING, records[-1][1], None, __name__, f"{dropped} log records were dropped: handlers are too slow")


def _handle(level: int, created: float, thread: str | None, module: str, text: str) -> None:
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(logger.name, level, module, 0, text, (), None)
    record.created, record.msecs = created, created % 1 * 1000
    record.threadName = thread
    # A filter that fails must not end the thread. Handlers report failures themselves.
    with contextlib.suppress(Exception):
        logger.handle(record)


def _end() -> None:
    """Passes on what is left, and ends the thread: one that calls into an interpreter being finalized aborts the process."""
    with _state.lock:
        _state.is_ended = True
        queue, thread = _state.queue, _state.thread
    if queue is not None and thread is not None:
        queue.close()
        thread.join(timeout=5)


def _forked() -> None:
    """Forgets the parent's thread, which does not exist in a child."""
    _state.lock = threading.Lock()
    _state.queue = _state.thread = None


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
