"""The package at the edges of a process: fork, exit, and symbols."""

import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import BUNDLED

import nestling
from nestling import _core

OPENED = f"""
    import asyncio, os, sys, nestling
    model = nestling.open({str(BUNDLED)!r}, device="cpu", threads=1)
    """

ANSWERING = """
    session = model.session()
    answer = session.generate("The storm", temperature=0, ignore_end=True)
    chat = model.chat()
    """


def run(*parts: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "".join(textwrap.dedent(part) for part in (OPENED, *parts))]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


needs_fork = pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork()")


@needs_fork
def test_a_forked_child_ends_quietly() -> None:
    done = run(ANSWERING, """
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        answer.cancel()
        """)
    assert done.returncode == 0 and done.stderr == "", done.stderr


@needs_fork
def test_handles_of_the_parent_are_refused_in_a_forked_child() -> None:
    done = run(ANSWERING, """
        child = os.fork()
        if child == 0:
            calls = [
                lambda: model.generate("a", max_tokens=1).text(), model.status, model.session, model.chat, model.close,
                lambda: session.generate("a"), session.fork, session.close, lambda: chat.ask("a"), chat.close,
                answer.text, answer.poll, answer.close, lambda: model.encode("a"),
            ]
            for call in calls:
                try:
                    call()
                    os._exit(1)
                except nestling.StoppedError as error:
                    assert "fork" in str(error)
            answer.cancel()
            print(nestling.open(%r, device="cpu", threads=1).generate("a", temperature=0, max_tokens=4).result().reason, flush=True)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        answer.cancel()
        session.generate("and", max_tokens=1).text()
        """ % str(BUNDLED))
    assert done.returncode == 0 and done.stdout == "length\n" and done.stderr == "", (done.stdout, done.stderr)


def test_the_interpreter_ends_while_events_are_awaited() -> None:
    code = """
        answers = [model.generate("The storm", temperature=0, ignore_end=True, token_events=True) for _ in range(4)]

        async def read(answer):
            async for _ in answer.events():
                pass

        async def main():
            global tasks
            tasks = [asyncio.ensure_future(read(answer)) for answer in answers]
            await asyncio.sleep(0.1)

        asyncio.new_event_loop().run_until_complete(main())
        """
    by_thread = """
        def refuse(*_):
            raise NotImplementedError
        asyncio.SelectorEventLoop.add_reader = refuse
        """
    # Without the hook at exit, about one run in twelve aborted.
    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(lambda parts: run(*parts), [(by_thread, code)] * 24 + [(code,)] * 4):
            assert done.returncode == 0, (done.returncode, done.stderr)


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("nm") is None, reason="needs nm")
def test_the_module_exports_its_initialization_alone() -> None:
    command = ["nm", "--dynamic", "--defined-only", "--format=just-symbols", str(_core.__file__)]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert names == ["PyInit__core"]
