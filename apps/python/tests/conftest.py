"""Models that the tests share, and where things are."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import nestling

ROOT = Path(__file__).resolve().parents[3]
BUNDLED = ROOT / "models/nestling-storyteller.nest"
GGUF = ROOT / "engine/runtime/tests/data/gguf/glm4-moe.gguf"
DENSE = ROOT / "engine/runtime/tests/data/families/llama"
DENSE_GGUF = ROOT / "engine/runtime/tests/data/gguf/llama.gguf"
TINY = ROOT / "engine/runtime/tests/data/tiny-qwen3-moe"
EXAMPLES = ROOT / "apps/python/examples"

# The clients of the server are tested with the same one.
sys.path.insert(0, str(ROOT / "apps/server/tests/clients"))
sys.dont_write_bytecode = True


@pytest.fixture(scope="session")
def model() -> nestling.Model:
    return nestling.open(BUNDLED, device="cpu", threads=2)


@pytest.fixture(scope="session")
def dense_model() -> nestling.Model:
    return nestling.open(DENSE, device="cpu", threads=2)


@pytest.fixture(scope="session", params=["experts", "dense"])
def any_model(request: pytest.FixtureRequest) -> nestling.Model:
    """A model with experts, and one without."""
    made: nestling.Model = request.getfixturevalue({"experts": "model", "dense": "dense_model"}[request.param])
    return made


@pytest.fixture(scope="session", params=["experts", "dense"])
def any_tool_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> nestling.Model:
    """Models of random weights with a template that knows tools."""
    source = {"experts": TINY, "dense": DENSE}[request.param]
    folder: Any = importlib.import_module("program").tool_model(tmp_path_factory.mktemp("any-tools") / "model", source=source)
    return nestling.open(folder, device="cpu", threads=2)


@pytest.fixture(scope="session")
def tool_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights with a template that knows tools."""
    made: Any = importlib.import_module("program").tool_model(tmp_path_factory.mktemp("tools") / "model")
    return Path(made)


@pytest.fixture(scope="session")
def tool_model(tool_folder: Path) -> nestling.Model:
    return nestling.open(tool_folder, device="cpu", threads=2)


@pytest.fixture(scope="session")
def program() -> str:
    """The program `nestling`, whose answers are the measure."""
    found = os.environ.get("NESTLING_PROGRAM")
    if not found:
        pytest.fail("NESTLING_PROGRAM names no program; .ci/python sets it")
    return found
