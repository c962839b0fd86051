"""What documents show is what runs."""

import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT


def blocks(path: str) -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```", (ROOT / path).read_text(), re.M | re.S)
    assert found, path
    return found


@pytest.mark.parametrize(
    "path",
    ["docs/embed/python.md", "apps/python/README.md", "apps/python/storyteller/README.md"],
)
def test_blocks_run(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(blocks(path)):
        exec(compile(block, f"{path}, block {number}", "exec"), names)


def test_documents_name_every_example() -> None:
    said = (ROOT / "docs/embed/python.md").read_text()
    for example in Path(ROOT / "apps/python/examples").glob("*.py"):
        assert f"(../../apps/python/examples/{example.name})" in said
