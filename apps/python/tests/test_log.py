"""Log records of the engine reach Python's `logging`."""

import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from conftest import BUNDLED, TINY

import nestling

PROGRAM = f"""
    import logging, os, sys, nestling
    bundled = {str(BUNDLED)!r}
    def generate():
        model = nestling.open({str(TINY)!r}, device="cpu", threads=1)
        return model.generate("The storm", temperature=0, max_tokens=4).text()
    """


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM) + textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


class Kept(logging.Handler):
    """Keeps records; while `open` is clear, it blocks the thread that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.open = threading.Event()
        self.open.set()

    def emit(self, record: logging.LogRecord) -> None:
        self.open.wait(30)
        self.records.append(record)

    def until(self, found: Callable[[logging.LogRecord], bool]) -> logging.LogRecord:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            for record in list(self.records):
                if found(record):
                    return record
            time.sleep(0.01)
        raise AssertionError([record.getMessage() for record in self.records])


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, logger = Kept(), logging.getLogger("nestling")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    handler.open.set()
    logger.removeHandler(handler)
    logger.setLevel(before)


def tokenizes(record: logging.LogRecord) -> bool:
    return record.getMessage().startswith("tokenizes a prompt")


def test_records_have_level_time_module_and_fields(model: nestling.Model, kept: Kept) -> None:
    before = time.time()
    model.generate("The storm", max_tokens=1).text()
    record = kept.until(tokenizes)
    assert (record.name, record.levelno) == ("nestling", logging.DEBUG)
    assert record.getMessage() == "tokenizes a prompt bytes=9"
    assert before - 1 < record.created < time.time() + 1
    assert record.pathname.startswith("nestling_runtime")


def test_a_level_that_is_off_has_no_records(model: nestling.Model, kept: Kept) -> None:
    logger = logging.getLogger("nestling")
    logger.setLevel(logging.WARNING)
    model.generate("The storm", max_tokens=1).text()
    logger.setLevel(logging.DEBUG)
    model.generate("A calm sea", max_tokens=1).text()
    kept.until(tokenizes)
    assert [record.getMessage() for record in kept.records if tokenizes(record)] == ["tokenizes a prompt bytes=10"]


def test_a_slow_handler_delays_no_answer_and_dropped_records_are_counted(model: nestling.Model, kept: Kept) -> None:
    kept.open.clear()
    # The first record blocks the handler, 1,024 wait, and the rest is dropped.
    for _ in range(1200):
        model.generate("a", max_tokens=0).result()
    assert not kept.records
    kept.open.set()
    record = kept.until(lambda record: "were dropped" in record.getMessage())
    assert 0 < int(record.getMessage().split()[0]) < 1200
    assert record.levelno == logging.WARNING


def test_nothing_is_printed_unless_the_program_configures_it() -> None:
    done = run("print(len(generate()) > 0)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_records_are_passed_on_before_the_interpreter_ends() -> None:
    code = """
        import time
        class Slow(logging.StreamHandler):
            def emit(self, record):
                time.sleep(0.3)
                super().emit(record)

        slow = Slow(sys.stdout)
        logging.basicConfig(level=logging.DEBUG, handlers=[slow], format="%(name)s %(message)s")
        answers = [nestling.open(bundled, threads=1, device="cpu").generate("The sea", ignore_end=True) for _ in range(2)]
        generate()
        """
    for _ in range(4):
        done = run(code)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert "nestling tokenizes a prompt bytes=9\n" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork()")
def test_a_forked_child_has_records_of_its_own() -> None:
    done = run("""
        logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(process)d %(message)s")
        generate()
        child = os.fork()
        if child == 0:
            generate()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print("child", child)
        """)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    child = done.stdout.splitlines()[-1].split()[1]
    assert f"{child} tokenizes a prompt bytes=9" in done.stdout.splitlines(), done.stdout
