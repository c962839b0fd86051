"""How far something is, for people."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

Progress: TypeAlias = bool | Callable[[int, int], object] | None


def hears(
    progress: Progress, what: str, unit: str
) -> tuple[Callable[[int, int], object] | None, Callable[[], None]]:
    """What hears of parts done and parts in all, and what ends it. True is a bar: tqdm's where that is there."""
    if progress is None or progress is False:
        return None, lambda: None
    if progress is not True:
        return progress, lambda: None
    try:
        tqdm: Any = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return _line(what), lambda: print(file=sys.stderr)
    bar: Any = tqdm(desc=what, unit=unit, unit_scale=unit == "B")

    def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    return show, bar.close


def _line(what: str) -> Callable[[int, int], object]:
    def show(done: int, total: int) -> None:
        print(f"\r{what} {done} of {total}", end="", file=sys.stderr, flush=True)

    return show
