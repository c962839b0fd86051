"""Names of the Hub, with what caches hold and without the network."""

from pathlib import Path

import pytest
from conftest import BUNDLED, GGUF

import nestling

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("NESTLING_CACHE", str(tmp_path / "nestling"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def keep(folder: Path, file: Path, at: str) -> None:
    """A file of a repository as a cache holds it."""
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(COMMIT)
    (folder / at).mkdir(parents=True)
    (folder / at / file.name).symlink_to(file)


def test_a_store_of_the_cache(hub: Path) -> None:
    keep(hub / "nestling/stores/owner--story", BUNDLED, COMMIT)
    model = nestling.open("hf:owner/story", device="cpu")
    assert model.status().vocab_size == 4096


def test_a_gguf_file_of_the_cache(hub: Path) -> None:
    keep(hub / "hf/hub/models--owner--glm", GGUF, f"snapshots/{COMMIT}")
    assert nestling.open("hf:owner/glm", device="cpu").generate([3], max_tokens=1, ignore_end=True).result()
    assert nestling.open(f"hf:owner/glm:{GGUF.name}@main", device="cpu").status().vocab_size > 0


def test_what_is_not_there(hub: Path) -> None:
    with pytest.raises(nestling.SourceError, match="not complete in the cache"):
        nestling.open("hf:owner/absent")
    with pytest.raises(nestling.CallerError):
        nestling.open("hf:no name")
    with pytest.raises(nestling.CallerError, match="revision"):
        nestling.open("hf:owner/name@")
