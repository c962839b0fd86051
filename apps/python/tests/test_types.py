"""Arguments of wrong types are refused before the engine sees them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nestling

BINARY = [b"The ship", bytearray(b"The ship"), memoryview(b"The ship")]


@pytest.mark.parametrize("prompt", [*BINARY, ["a", "b"], [b"a"], [True], [1.5], 3, None])
def test_prompts_are_texts_or_token_ids(model: nestling.Model, prompt: Any) -> None:
    session, chat = model.session(), model.chat()
    # Without a stop, generation is as usual.
    stop: Any = prompt or 3
    calls: list[Callable[[], Any]] = [
        lambda: model.generate(prompt, max_tokens=1),
        lambda: session.generate(prompt, max_tokens=1),
        lambda: session.append(prompt),
        lambda: model.loglikelihood(prompt, [1]),
        lambda: model.loglikelihood([1], prompt),
        lambda: model.loglikelihood(prompt, prompt),
        lambda: model.logprobs(prompt),
        lambda: model.hidden(prompt),
        lambda: model.encode(prompt),
        lambda: model.decode(prompt),
        lambda: chat.send(prompt),
        lambda: chat.ask(prompt),
        lambda: chat.reply_to_tools([prompt]),
        lambda: model.chat(messages=[{"role": "user", "content": b"a"}]),
        lambda: model.generate("a", stop_tokens=stop),
        lambda: model.generate("a", stop=stop),
    ]
    for number, call in enumerate(calls):
        # A list of str is a list of stop texts.
        if prompt == ["a", "b"] and number == len(calls) - 1:
            continue
        with pytest.raises(TypeError):
            call()
    assert len(session) == 0 and not chat.transcript


def test_a_system_prompt_is_a_text(model: nestling.Model) -> None:
    with pytest.raises(TypeError):
        model.chat(b"Be brief.")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        model.chat(messages="Hello")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="reply|results"):
        model.chat().reply_to_tools("sunny")


def test_a_list_of_texts_is_named(model: nestling.Model) -> None:
    with pytest.raises(TypeError, match="found str at index 0; pass one text per call"):
        model.generate(["a", "b"])  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["max_tokens", "seed", "temperature", "top_k", "priority", "level"])
def test_numbers_are_no_bools(model: nestling.Model, name: str) -> None:
    options: Any = {name: True}
    with pytest.raises(TypeError, match=name):
        model.generate("a", **options)


@pytest.mark.parametrize("name", ["threads", "context_length", "memory_budget", "level"])
def test_numbers_of_open_are_no_bools(name: str) -> None:
    options: Any = {name: True}
    with pytest.raises(TypeError, match=name):
        nestling.open(**options)


def test_tokens_may_be_an_array(model: nestling.Model) -> None:
    tokens = model.encode("The captain said", add_special=True)
    text = model.generate(tokens, temperature=0, max_tokens=4).text()
    array: Any = np.array(tokens)
    assert model.generate(array, temperature=0, max_tokens=4).text() == text
    assert model.generate(tuple(tokens), temperature=0, max_tokens=4).text() == text
