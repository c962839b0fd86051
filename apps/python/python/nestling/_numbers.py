"""Numbers of the engine as arrays of NumPy, which lie where the engine wrote them."""

from __future__ import annotations

import importlib
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def floats(array: _core.Array, *shape: int) -> NDArray[np.float32]:
    """Values as an array, without a copy."""
    numpy: Any = _numpy()
    if not len(array):
        empty: NDArray[np.float32] = numpy.empty(shape, dtype=numpy.float32)
        return empty
    # A view of the memory that `array` owns, and keeps for as long as the view is there.
    view: NDArray[np.float32] = numpy.frombuffer(memoryview(array), dtype=numpy.float32)
    return view.reshape(shape)


def _numpy() -> types.ModuleType:
    """NumPy, which is needed where arrays are asked for and nowhere else."""
    try:
        return importlib.import_module("numpy")
    except ImportError as error:
        raise ImportError("arrays need NumPy: pip install 'nestling[numpy]'") from error


@dataclass(frozen=True)
class Likelihood:
    """How likely a continuation is after its context."""

    #: Natural logarithm of its probability: the sum over its tokens.
    logprob: float
    #: Whether each of its tokens is the likeliest one at its place.
    is_greedy: bool
    #: Its tokens.
    tokens: list[int]
    _logprobs: _core.Array
    _start: int

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """Natural logarithms of the probabilities of its tokens."""
        return floats(self._logprobs, len(self._logprobs))[self._start :]
