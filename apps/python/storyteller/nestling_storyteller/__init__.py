"""The small model of Nestling: `nestling.open()` opens it."""

from pathlib import Path


def path() -> Path:
    """Where its store lies."""
    return Path(__file__).parent / "nestling-storyteller.nest"
