"""What the package promises beside what the examples show."""

import asyncio
import errno
import gc
import importlib.metadata
import inspect
import math
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pytest
from conftest import BUNDLED, DENSE, GGUF

import nestling

def greedy(**more: Unpack[nestling.Options]) -> nestling.Options:
    return {"temperature": 0, "max_tokens": 24, **more}


GREEDY = greedy()
ENDLESS: nestling.Options = {"temperature": 0, "ignore_end": True}


def test_an_answer_is_the_same_however_it_is_read(model: nestling.Model) -> None:
    text = model.generate("The captain said", **GREEDY).text()
    assert "".join(model.generate("The captain said", **GREEDY)) == text
    events = list(model.generate("The captain said", **greedy(token_events=True)).events())
    assert "".join(e.text for e in events if isinstance(e, nestling.Text)) == text
    tokens = [e.token for e in events if isinstance(e, nestling.Token)]
    finished = events[-1]
    assert isinstance(finished, nestling.Finished)
    assert finished.reason == "length" and finished.usage.completion_tokens == len(tokens) == 24
    assert model.decode(tokens) == text == finished.text
    answer = model.generate("The captain said", **GREEDY)
    polled: list[nestling.Event] = []
    while answer.finished is None:
        if (event := answer.poll(0.01)) is not None:
            polled.append(event)
    assert "".join(e.text for e in polled if isinstance(e, nestling.Text)) == text
    assert answer.poll() is None and answer.text() == text

    async def wait() -> tuple[str, str]:
        pieces = [piece async for piece in model.generate("The captain said", **GREEDY)]
        return "".join(pieces), (await model.generate("The captain said", **GREEDY)).text

    assert asyncio.run(wait()) == (text, text)


def test_sessions_go_on_fork_and_forget(any_model: nestling.Model) -> None:
    model = any_model
    whole = model.generate("The captain said", temperature=0, max_tokens=16).text()
    session = model.session()
    first = session.generate("The captain said", temperature=0, max_tokens=8).text()
    length = len(session)
    fork = session.fork()
    assert first + session.generate(temperature=0, max_tokens=8).text() == whole
    assert first + fork.generate([], temperature=0, max_tokens=8).text() == whole
    session.truncate(length)
    assert session.tokens == fork.tokens[:length]
    tokens_alone = model.restore(session.snapshot(pages=False))
    assert first + tokens_alone.generate(temperature=0, max_tokens=8).text() == whole


def test_errors_have_classes(model: nestling.Model, tmp_path: Path) -> None:
    with pytest.raises(nestling.SourceError) as absent:
        nestling.open(tmp_path / "absent.nest")
    assert isinstance(absent.value, FileNotFoundError)
    assert absent.value.errno == errno.ENOENT
    with pytest.raises(ValueError, match="compute threads: 100000 exceeds the limit of 1024"):
        nestling.open(BUNDLED, threads=100_000)
    with pytest.raises(nestling.CallerError, match="context_length: 1000000 exceeds the limit of 1024"):
        nestling.open(BUNDLED, context_length=1_000_000)
    with pytest.raises(nestling.NoDeviceError, match="there is no|no CUDA device"):
        nestling.open(BUNDLED, device="cuda:99")
    with pytest.raises(nestling.CallerError, match="token 1000000 is outside the vocabulary"):
        model.generate("a", stop_tokens=[10**6])
    with pytest.raises(nestling.CallerError, match="token 1000000 is outside the vocabulary"):
        model.generate("a", logit_bias={10**6: 1.0})
    with pytest.raises(OSError):
        (tmp_path / "no.nest").write_bytes(b"no store")
        nestling.open(tmp_path / "no.nest")
    with pytest.raises(nestling.CallerError, match="level"):
        nestling.open(BUNDLED, level=5)  # type: ignore[arg-type]
    with pytest.raises(MemoryError):
        nestling.open(BUNDLED, memory_budget=1000)
    with pytest.raises(ValueError, match="temperature: found 'hot'"):
        model.generate("a", temperature="hot")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="max_token'"):
        model.generate("a", max_token=3)  # type: ignore[call-arg]
    with pytest.raises(nestling.CallerError):
        model.generate("a", temperature=math.nan)
    with pytest.raises(nestling.CallerError):
        model.generate([10**6])
    with pytest.raises(nestling.CallerError):
        model.generate("")
    with pytest.raises(OverflowError):
        model.generate([-1])
    with pytest.raises(nestling.CallerError, match="at most one"):
        model.generate("a", regex="a", lark="b")
    with pytest.raises(nestling.CallerError):
        model.chat(tools=[lambda: 1]).send("a")
    with pytest.raises(nestling.CallerError):
        model.restore(b"nothing")
    for error in vars(nestling).values():
        if isinstance(error, type) and issubclass(error, Exception):
            assert issubclass(error, nestling.NestlingError)


def test_handles_are_shared_by_threads_without_waiting(model: nestling.Model) -> None:
    session = model.session()
    answer = session.generate("The storm", **ENDLESS)
    with pytest.raises(nestling.BusyError):
        session.generate("and")
    busy: list[bool] = []

    def read() -> None:
        try:
            while answer.poll(0.2) is not None:
                pass
        except nestling.BusyError:
            busy.append(True)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    answer.cancel()
    for thread in threads:
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert busy


def test_python_runs_while_the_engine_works(model: nestling.Model) -> None:
    counted = 0
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.is_set():
            counted += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    started = time.monotonic()
    model.generate("The captain said", temperature=0, max_tokens=200, ignore_end=True).result()
    elapsed = time.monotonic() - started
    done.set()
    thread.join()
    # A thread that sleeps a millisecond each time is not stopped while the answer is waited for.
    assert counted > elapsed / 0.001 / 20, (counted, elapsed)


def test_what_is_dropped_is_cancelled(model: nestling.Model) -> None:
    session = model.session()
    answer = session.generate("The storm", **ENDLESS)
    next(iter(answer))
    del answer
    gc.collect()
    started = time.monotonic()
    session.truncate(0)
    assert time.monotonic() - started < 1
    with model.generate("The storm", **ENDLESS) as answer:
        next(iter(answer))
    assert answer.result().reason == "cancelled"


def test_a_cancelled_task_cancels_its_answer(model: nestling.Model) -> None:
    async def main() -> str:
        answer = model.generate("The storm", **ENDLESS)

        async def read() -> None:
            async for _ in answer:
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await answer).reason

    assert asyncio.run(main()) == "cancelled"


def test_one_task_reads_an_answer(model: nestling.Model) -> None:
    async def main() -> None:
        answer = model.generate("The storm", **ENDLESS)
        first = asyncio.ensure_future(answer)
        await asyncio.sleep(0.05)
        # It reads what is there, and then finds that somebody waits.
        with pytest.raises(nestling.BusyError):
            while True:
                await answer.events().__anext__()
        answer.cancel()
        assert (await first).reason == "cancelled"

    asyncio.run(main())


def test_many_answers_in_one_loop(model: nestling.Model) -> None:
    async def main() -> list[str]:
        prompts = [f"The {number} captain said" for number in range(8)]
        answers = [model.generate(prompt, **GREEDY) for prompt in prompts]
        return [finished.text for finished in await asyncio.gather(*answers)]

    texts = asyncio.run(main())
    assert texts[3] == model.generate("The 3 captain said", **GREEDY).text()


@pytest.mark.parametrize("waiting", ["answer.result()", "list(answer)", "list(answer.events())", "answer.poll(9)", "model.logprobs('The ' * 900)"])
def test_an_interrupt_ends_the_waiting(waiting: str) -> None:
    code = f"""
        import signal, sys, nestling
        # Whoever is started in the background ignores it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        model = nestling.open({str(BUNDLED)!r}, threads=1)
        session = model.session()
        answer = session.generate("The storm", temperature=0, ignore_end=True)
        print("ready", flush=True)
        try:
            while True:
                {waiting}
        except KeyboardInterrupt as error:
            kept = error
        # The answer is still referenced, as in a notebook, and nobody cancels it here.
        if "answer" in {waiting!r}:
            session.generate("and", temperature=0, max_tokens=1).result()
            assert answer.result().reason == "cancelled"
        print("interrupted")
        """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    try:
        out, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert out == "interrupted\n" and process.returncode == 0
    assert time.monotonic() - started < 5


def test_opening_tells_how_far_it_is() -> None:
    heard: list[tuple[int, int]] = []
    nestling.open(BUNDLED, progress=lambda done, total: heard.append((done, total)))
    assert heard and heard[-1][0] == heard[-1][1] > 0
    nestling.open(BUNDLED, progress=True)

    def fails(done: int, total: int) -> None:
        raise KeyError(done)

    with pytest.raises(KeyError):
        nestling.open(BUNDLED, progress=fails)


def test_status_and_close() -> None:
    model = nestling.open(BUNDLED, level=4, context_length=512, kv_dtype="int8", memory_budget=math.inf)
    status = model.status()
    assert status.context_length == 512 and status.memory_budget is None
    assert status.has_chat and not status.has_tools and status.vocab_size == 4096
    answer = model.generate("The captain said", **GREEDY)
    model.close()
    assert answer.text()
    with pytest.raises(nestling.CallerError, match="closed"):
        model.status()


def test_a_dense_model_says_what_it_says_in_rust(dense_model: nestling.Model, program: str) -> None:
    status = dense_model.status()
    assert status.expert_bytes is None and not status.is_streamed and status.weight_bytes > 0
    command = [program, "run", "-m", str(DENSE), "--device", "cpu", "-p", "The captain said", "-n", "24", "--temp", "0"]
    rust = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert dense_model.generate("The captain said", **GREEDY).text() == rust.removesuffix("\n")
    number = dense_model.generate("The captain said", **greedy(regex="[1-9][0-9]{2}")).text()
    assert 100 <= int(number) <= 999
    first = dense_model.generate("The storm " * 40, **GREEDY).result()
    again = dense_model.generate("The storm " * 40, **GREEDY).result()
    assert again.usage.cached_tokens >= 64 and again.text == first.text


def test_loglikelihood_is_what_the_rows_say(model: nestling.Model) -> None:
    context, continuation = "The ship went down into the", " sea and was lost"
    likelihood = model.loglikelihood(context, continuation)
    tokens = model.encode(context + continuation, add_special=True)
    rows = model.logprobs(tokens)
    assert rows.shape == (len(tokens), 4096) and rows.dtype == np.float32
    # Probabilities of all tokens together are 1: 4096 roundings of 2^-24 each, and those of the exponential.
    assert np.abs(np.exp(rows.astype(np.float64)).sum(axis=1) - 1).max() < 4096 * 2**-24
    start = len(tokens) - len(likelihood.tokens)
    places = range(start, len(tokens))
    expected = [float(rows[place - 1, tokens[place]]) for place in places]
    assert likelihood.tokens == tokens[start:]
    assert likelihood.logprobs.tolist() == expected
    assert likelihood.logprob == math.fsum(expected)
    greedy = all(int(rows[place - 1].argmax()) == tokens[place] for place in places)
    assert likelihood.is_greedy == greedy
    best = model.generate(tokens, temperature=0, max_tokens=6, token_events=True, ignore_end=True)
    chosen = [event.token for event in best.events() if isinstance(event, nestling.Token)]
    assert chosen[0] == int(rows[-1].argmax())
    assert model.loglikelihood(tokens, chosen).is_greedy
    assert not model.loglikelihood(tokens, [(chosen[0] + 1) % 4096]).is_greedy
    with pytest.raises(nestling.CallerError):
        model.loglikelihood("", "The")


def test_continuations_share_their_context(model: nestling.Model) -> None:
    context = model.encode("The ship and the storm went on and on. " * 24, add_special=True)
    model.loglikelihood(context, [5, 6])

    def seconds(shares: bool) -> float:
        start = time.perf_counter()
        for token in range(6):
            others = context if shares else [*context[:1], 100 + token, *context[2:]]
            likelihood = model.loglikelihood(others, [token + 7, 6])
            assert likelihood.tokens == [token + 7, 6] and len(likelihood.logprobs) == 2
        return time.perf_counter() - start

    # Fewer than 64 tokens of a shared context are computed again, and all of another one.
    assert len(context) > 200
    assert seconds(shares=True) < 0.7 * seconds(shares=False)


def test_models_of_an_engine_share_its_budget() -> None:
    engine = nestling.Engine(memory_budget=400 << 20, threads=1)
    assert engine.memory_budget == 400 << 20 and engine.memory_used == 0
    first = nestling.open(BUNDLED, device="cpu", engine=engine)
    used = engine.memory_used
    assert used > 0
    second = nestling.open(GGUF, device="cpu", engine=engine)
    assert engine.memory_used > used
    for model in (first, second):
        status = model.status()
        assert status.memory_budget == 400 << 20 and status.memory_used == engine.memory_used
    with pytest.raises(nestling.CallerError, match="options of the engine"):
        nestling.open(BUNDLED, engine=engine, threads=2)
    with pytest.raises(TypeError, match="engine: expected an Engine"):
        nestling.open(BUNDLED, engine=first)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="threads"):
        nestling.Engine(threads=True)
    # The models keep the engine running.
    del engine
    assert first.generate("The ship", **GREEDY).text()


@pytest.mark.parametrize("name", ["seed", "top_k", "max_tokens", "priority"])
def test_errors_of_options_name_the_field(model: nestling.Model, name: str) -> None:
    value = 1000 if name == "priority" else -1
    with pytest.raises(nestling.CallerError, match=rf"options: {name}: .*{value}"):
        model.generate("The ship", **{name: value})  # type: ignore[arg-type]


async def read(model: nestling.Model, prompt: str) -> str:
    return "".join([piece async for piece in model.generate(prompt, **GREEDY)])


def test_tasks_of_a_loop_read_their_own_answers(model: nestling.Model) -> None:
    prompts = ["The captain said", "In the forest", "The storm", "A ship"] * 3
    expected = [model.generate(prompt, **GREEDY).text() for prompt in prompts]

    async def all_of() -> list[str]:
        return await asyncio.gather(*(read(model, prompt) for prompt in prompts))

    # The same in a second loop.
    assert asyncio.run(all_of()) == expected
    assert asyncio.run(all_of()) == expected


def test_an_answer_is_read_in_one_loop_after_another(model: nestling.Model) -> None:
    expected = model.generate("The captain said", **GREEDY).text()
    answer = model.generate("The captain said", **GREEDY)

    async def some() -> str:
        pieces = answer.__aiter__()
        return await anext(pieces) + await anext(pieces)

    begun = asyncio.run(some())
    assert begun + "".join(answer) == expected


def test_loops_that_cannot_wait_for_sockets_use_a_thread(
    model: nestling.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NotImplementedError

    expected = model.generate("The captain said", **GREEDY).text()
    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_reader", refuse)
    assert asyncio.run(read(model, "The captain said")) == expected


def test_zero_means_the_default() -> None:
    status = nestling.open(BUNDLED, device="cpu", context_length=0, threads=0).status()
    assert status.context_length == status.context_trained == 1024


def test_reprs_describe_handles(model: nestling.Model) -> None:
    assert re.fullmatch(r"<nestling.Model: .*, context of 1024 tokens, .* MB of weights>", repr(model))
    session = model.session()
    answer = session.generate("The captain said", **ENDLESS)
    assert repr(answer) == "<nestling.Answer: not read to its end>"
    assert repr(session).startswith("<nestling.Session: ")
    answer.cancel()
    reason = answer.result()
    assert repr(answer) == f"<nestling.Answer: cancelled after {reason.usage.completion_tokens} tokens>"
    assert repr(session) == f"<nestling.Session: {len(session)} tokens>"
    chat = model.chat("You tell short stories.")
    assert repr(chat) == "<nestling.Chat: 1 messages>"
    chat.close()
    assert repr(chat) == "<nestling.Chat: this chat is closed>"
    engine = nestling.Engine(memory_budget=1 << 30, threads=1)
    assert repr(engine) == f"<nestling.Engine: 0 bytes used, budget of {1 << 30}>"
    assert "prompt_tokens=" in repr(reason.usage)


def test_the_wheel_has_its_version_and_licences() -> None:
    assert nestling.__version__ == importlib.metadata.version("nestling")
    files = {Path(str(file)).name: file for file in importlib.metadata.files("nestling") or []}
    assert {"LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY.txt"} <= files.keys()
    notice = files["THIRD-PARTY.txt"].read_text()
    for crate in ("pyo3", "tokenizers", "serde_json", "cudarc", "wgpu"):
        assert re.search(rf"^    {crate} \d", notice, re.MULTILINE), crate
    assert "Permission is hereby granted, free of charge" in notice


def test_every_public_item_has_help() -> None:
    for name in nestling.__all__:
        item = getattr(nestling, name)
        if not isinstance(item, type):
            continue
        assert inspect.getdoc(item), name
        for member, value in vars(item).items():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_a_misspelled_option_of_open_async_is_a_type_error() -> None:
    misspelled: Any = {"context_lenght": 512}
    with pytest.raises(TypeError, match="context_lenght"):
        asyncio.run(nestling.open_async(BUNDLED, **misspelled))
    expected = set(inspect.signature(nestling.open).parameters) - {"path", "progress"}
    assert set(inspect.get_annotations(nestling.OpenOptions)) == expected


def test_a_tool_choice_that_does_not_exist_is_named(model: nestling.Model) -> None:
    chat = model.chat(tools=[{"type": "function", "function": {"name": "clock"}}])
    with pytest.raises(nestling.CallerError, match=r"expected a tool of the conversation, found `nope`"):
        chat.send("Now?", tool_choice="nope")


def test_invalid_tools_are_refused_by_name(model: nestling.Model) -> None:
    with pytest.raises(nestling.CallerError, match=r"tools\[1\]: `function`: expected an object, found 7"):
        model.chat(tools=[{"function": {"name": "a"}}, {"function": 7}])
    with pytest.raises(nestling.CallerError, match=r"tools\[0\]: `name`: missing"):
        model.chat(tools=[{}])
    with pytest.raises(TypeError, match="template: expected a mapping"):
        model.chat(template=[("enable_thinking", False)])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        model.chat(tools=[7])  # type: ignore[list-item]
    calls = [{"function": {"name": "a", "arguments": 7}}]
    with pytest.raises(nestling.CallerError, match=r"messages\[0\]: `arguments`: expected an object or a text"):
        model.chat(messages=[{"role": "assistant", "tool_calls": calls}])


def test_errors_of_conversations_name_the_message(model: nestling.Model) -> None:
    messages: list[nestling.Message] = [{"role": "user", "content": "Hello"}, {"role": "user", "content": 7}]
    with pytest.raises(nestling.CallerError, match=r"messages\[1\]: "):
        model.chat(messages=messages)


def test_arrays_lie_where_the_engine_wrote_them(model: nestling.Model) -> None:
    rows = model.hidden("The captain said")
    tokens = model.encode("The captain said", add_special=True)
    assert rows.shape == (len(tokens), 256) and np.isfinite(rows).all()
    assert not rows.flags.owndata and not rows.flags.writeable
    base: Any = rows
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    assert isinstance(base, memoryview) or type(base).__name__ == "Array"
    kept = rows.copy()
    gc.collect()
    assert (kept == rows).all()


def test_log_probabilities_come_with_tokens(model: nestling.Model) -> None:
    answer = model.generate("The captain said", **greedy(top_logprobs=3))
    tokens = [event for event in answer.events() if isinstance(event, nestling.Token)]
    for event in tokens:
        assert event.logprob is not None and event.top[0] == (event.token, event.logprob)
        assert len(event.top) == 3 and event.top[0][1] >= event.top[1][1] >= event.top[2][1]
    assert b"".join(event.bytes for event in tokens).decode() == answer.text()


def test_stops_seeds_and_biases(model: nestling.Model) -> None:
    whole = model.generate("The captain said", **GREEDY).text()
    word = whole.split()[3]
    answer = model.generate("The captain said", **greedy(stop=[word]))
    assert answer.result().reason == "stop" and answer.text() == whole[: whole.index(word)]
    draw: nestling.Options = {"temperature": 1.0, "max_tokens": 12, "seed": 7}
    one = model.generate("The captain said", **draw).result()
    assert one.text == model.generate("The captain said", **draw).text() and one.seed == 7
    first = model.generate("A", temperature=0, max_tokens=1, top_logprobs=1)
    token = next(e.token for e in first.events() if isinstance(e, nestling.Token))
    other = model.generate("A", temperature=0, max_tokens=1, top_logprobs=1, logit_bias={token: -math.inf})
    assert token not in [e.token for e in other.events() if isinstance(e, nestling.Token)]


def test_no_thread_is_left(model: nestling.Model) -> None:
    async def main() -> None:
        for _ in range(20):
            async for _ in model.generate("The captain said", temperature=0, max_tokens=3):
                pass

    tasks = Path("/proc/self/task")
    if not tasks.exists():
        pytest.skip("no /proc")
    asyncio.run(main())
    gc.collect()
    deadline = time.monotonic() + 5
    names = ["nestling-notify"]
    while "nestling-notify" in names and time.monotonic() < deadline:
        names = [(task / "comm").read_text().strip() for task in tasks.iterdir()]
    assert "nestling-notify" not in names


def test_sessions_in_many_threads(model: nestling.Model) -> None:
    prompts = [f"The {number} captain said" for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(model.generate, prompt, **GREEDY) for prompt in prompts]
        texts = [answer.result().text() for answer in answers]
    assert texts == [model.generate(prompt, **GREEDY).text() for prompt in prompts]
