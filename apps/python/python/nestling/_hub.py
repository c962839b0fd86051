"""Names of the Hugging Face Hub, and what the environment says of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from . import _core
from ._errors import CallerError

PREFIX = "hf:"


def fetch(name: str, level: int | None, progress: Callable[[int, int], object] | None) -> str:
    """Where the model `hf:owner/name[:file][@revision]` is, once it is on this machine."""
    reference, at, revision = name.removeprefix(PREFIX).partition("@")
    if at and not revision:
        raise CallerError(f"{name}: a revision follows @")
    return os.fspath(_core.fetch(reference, revision or "main", places(), level, progress))


def places() -> _core.HubPaths:
    """As the program `nestling` and the Hub's own tools have them."""
    home = _variable("HF_HOME") or _below_cache("XDG_CACHE_HOME", "huggingface")
    downloads = _variable("HF_HUB_CACHE") or _variable("HUGGINGFACE_HUB_CACHE")
    offline = os.environ.get("HF_HUB_OFFLINE", "").strip().lower()
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    return _core.HubPaths(
        endpoint=endpoint.rstrip("/"),
        downloads=downloads or home / "hub",
        cache=_variable("NESTLING_CACHE") or _system_cache() / "nestling",
        token=_token(home),
        offline=offline not in ("", "0", "false", "no", "off"),
    )


def _variable(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(value).absolute() if value else None


def _below_cache(variable: str, name: str) -> Path:
    return (_variable(variable) or Path.home() / ".cache") / name


def _system_cache() -> Path:
    if (cache := _variable("XDG_CACHE_HOME")) is not None:
        return cache
    if sys.platform == "win32" and (local := _variable("LOCALAPPDATA")) is not None:
        return local
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")


def _token(home: Path) -> str | None:
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    try:
        return (_variable("HF_TOKEN_PATH") or home / "token").read_text().strip() or None
    except OSError:
        # Nobody has logged in.
        return None
