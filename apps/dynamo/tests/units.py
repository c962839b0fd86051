"""Checks the parts of the worker that need no frontend: fields of requests, and files of stores, damaged ones too."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from nestling_dynamo.model_files import ModelFilesError, frontend_folder
from nestling_dynamo.requests import RefusedField, options

MODEL = Path(__file__).resolve().parents[3] / "models" / "nestling-storyteller.nest"


def check_options() -> None:
    request: dict[str, Any] = {
        "model": "m",
        "token_ids": [1],
        "sampling_options": {"temperature": 0.5, "top_k": -1, "seed": 3, "n": 1, "min_p": None},
        "stop_conditions": {"max_tokens": 4, "stop": ["x"], "stop_token_ids": [5], "stop_token_ids_hidden": [2], "min_tokens": 0},
        "output_options": {"logprobs": 0, "skip_special_tokens": True},
        "routing": {"cache_salt": "s"},
        "extra_args": {"nvext": {"cache_salt": "s"}},
    }
    expected = {
        "temperature": 0.5,
        "seed": 3,
        "top_k": 0,
        "max_tokens": 4,
        "ignore_end": False,
        "stop": ["x"],
        "stop_tokens": [5, 2],
        "top_logprobs": 0,
        "cache_salt": "s",
    }
    assert options(request) == expected, options(request)
    assert options({"sampling_options": {"guided_decoding": {"choice": ["a.", "b"]}}})["regex"] == r"a\.|b"
    for group, name, value in [
        ("sampling_options", "n", 2),
        ("sampling_options", "best_of", 2),
        ("sampling_options", "unheard_of", 1),
        ("stop_conditions", "stop_token_ids_visible", [3]),
        ("output_options", "prompt_logprobs", 0),
    ]:
        check_refused({group: {name: value}}, name)
    check_refused({"multi_modal_data": {"image": ["x"]}}, "multi_modal_data")
    check_refused({"extra_args": {"nvext": {"unheard_of": 1}}}, "unheard_of")
    check_refused({"extra_args": {"other": 1}}, "extra_args")
    check_refused({"sampling_options": 3}, "sampling_options")
    check_refused({"sampling_options": {"guided_decoding": {"regex": "a", "choice": ["b"]}}}, "guided_decoding")


def check_refused(request: dict[str, Any], name: str) -> None:
    try:
        options(request)
    except RefusedField as error:
        assert f"`{name}`" in str(error), error
    else:
        raise AssertionError(f"{request} is accepted")


def check_files(folder: Path) -> None:
    found = frontend_folder(MODEL, folder / "cache")
    assert found == frontend_folder(MODEL, folder / "cache")
    assert found == frontend_folder(found, folder / "unused")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        json.loads((found / name).read_bytes())
    for wrong in (folder, MODEL.parent / "README.md", Path("hf:owner/name")):
        try:
            frontend_folder(wrong, folder / "cache")
        except ModelFilesError as error:
            assert "--tokenizer" in str(error), error
        else:
            raise AssertionError(f"{wrong} is accepted")


def check_damaged(folder: Path, cases: int = 500) -> None:
    """Damaged and truncated stores are a ModelFilesError or read as if they were whole."""
    whole = MODEL.read_bytes()[:400_000]
    path = folder / "damaged.nest"
    random.seed(1)
    refused = 0
    for case in range(cases):
        damaged = bytearray(whole[: random.randrange(len(whole)) if case % 4 == 0 else len(whole)])
        for _ in range(random.randrange(1, 4)):
            # Mostly in the header and the head of the index, which hold the offsets and the counts.
            at = random.choice((random.randrange(48, 176), random.randrange(128, 60_000)))
            if at + 8 <= len(damaged):
                damaged[at : at + 4] = random.choice((b"\xff" * 4, b"\0" * 4, random.randbytes(4)))
        path.write_bytes(damaged)
        try:
            frontend_folder(path, folder / "cache")
        except ModelFilesError:
            refused += 1
    assert refused > cases // 4, refused
    print(f"files of stores: {refused} of {cases} damaged ones refused, no other error")


def main() -> None:
    check_options()
    with tempfile.TemporaryDirectory() as folder:
        check_files(Path(folder))
        check_damaged(Path(folder))


if __name__ == "__main__":
    main()
