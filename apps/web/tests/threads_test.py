"""Several workers of one model, on a cross-origin isolated page in a headless Chromium.

    python threads_test.py PROGRAM SITE

PROGRAM is the native nestling, whose text is expected bit for bit. SITE is the folder that build.sh wrote.
"""

import json
import shutil
import sys
import tempfile
import time

from page_test import MODEL, blank, native, same
from playwright.sync_api import sync_playwright
from served import Site

# The package gives up a silent worker after 10 s.
LOST_MS_MAX = 15_000

# Notes the workers of the page, so that a test can end one of them.
WORKERS = """() => {
  window.workers = [];
  window.Worker = class extends Worker {
    constructor(...parts) { super(...parts); window.workers.push(this); }
  };
}"""


def isolated(context, site):
    page = blank(context, site)
    page.evaluate(WORKERS)
    assert page.evaluate("crossOriginIsolated")
    return page


def closed(page):
    """Closes the model and the page, and waits until the browser has closed the files."""
    page.evaluate("model.close()")
    page.close()
    time.sleep(0.5)


def texts(context, site, program):
    """Levels 2 and 8 give the native text with 1 to 4 workers."""
    expected = {level: native(program, level) for level in (2, 8)}
    found = {}
    for threads in (2, 3, 4):
        for level in (2, 8):
            page = isolated(context, site)
            answer = page.evaluate(
                """async ([url, options]) => {
                  await opened(url, options); await model.arrived;
                  const answer = await completed(model, "Once upon a time", 64);
                  return { ...answer, status: await model.status() };
                }""",
                [MODEL, {"threads": threads, "level": level}],
            )
            same(answer["text"], expected[level])
            assert answer["level"] == level and answer["status"]["threads"] == threads, answer
            found[f"{threads} workers, level {level}"] = round(answer["tokensPerSecond"], 1)
            closed(page)
    return found


def rising(context, site, program):
    """A level that arrives later is opened by all workers, within a conversation."""
    page = isolated(context, site)
    # A slow address of its own, so that nothing is there.
    answers = page.evaluate(
        """async (url) => {
          const first = (await opened(url, { threads: 2 })).complete("Once upon a time", { maxTokens: 64, temperature: 0 });
          const before = { text: await first.text(), ...(await first.summary) };
          await model.arrived;
          const after = await completed(model, "Once upon a time", 64);
          return [before, after, (await model.status()).threads];
        }""",
        "/fault/slow" + MODEL,
    )
    same(answers[0]["text"], native(program, answers[0]["level"]))
    same(answers[1]["text"], native(program, 8))
    assert answers[0]["level"] == 2 and answers[1]["level"] == 8 and answers[2] == 2, answers
    closed(page)


def cancelling(context, site, program):
    page = isolated(context, site)
    page.evaluate("async (url) => { await opened(url, { threads: 2, level: 2 }); await model.arrived; }", MODEL)
    summary = page.evaluate("""async () => {
      const answer = model.chat().send("Tell me a story.", { maxTokens: 900 });
      for await (const part of answer) break;
      return answer.summary;
    }""")
    assert summary["reason"] == "cancelled" and summary["answerTokens"] < 100, summary
    same(page.evaluate("completed(model, 'Once upon a time', 64)")["text"], native(program, 2))
    # Closed while it computes; the files are free then.
    kind = page.evaluate("""kindOf(async () => {
      const answer = model.complete("A", { maxTokens: 900 });
      for await (const part of answer) setTimeout(() => model.close());
    })""")
    assert kind == "closed", kind
    time.sleep(0.5)
    again = """async ([url, threads]) => {
      await opened(url, { threads, level: 2 }); await model.arrived;
      return { ...(await completed(model, "Once upon a time", 64)), status: await model.status() };
    }"""
    # A worker that the browser is still ending has the file of the blocks open.
    for threads in (1, 2):
        found = page.evaluate(again, [MODEL, threads])
        same(found["text"], native(program, 2))
        assert found["status"]["threads"] == threads and found["status"]["cache"] == "device", found
        page.evaluate("model.close()")
        time.sleep(0.5)
    page.close()


def lost(context, site, program):
    """A worker that is ended in the middle of an answer, and one that is ended between two answers."""
    waits = []
    for when in ("middle", "between"):
        page = isolated(context, site)
        found = page.evaluate(
            """async ([url, when]) => {
              await opened(url, { threads: 3, level: 2 }); await model.arrived;
              const chat = model.chat();
              const before = await chat.send("Hello.", { maxTokens: 4, temperature: 0 }).text();
              const end = () => workers.at(-1).terminate();
              if (when === "between") end();
              let start = performance.now();
              const kind = await kindOf(async () => {
                // This completion repeats itself at level 2, and ends only by its limit.
                for await (const part of model.complete("Once upon a time", { maxTokens: 900, temperature: 0 })) {
                  if (when === "middle") { end(); start = performance.now(); when = "ended"; }
                }
              });
              const waited = performance.now() - start;
              const answer = await completed(model, "Once upon a time", 64);
              const said = await chat.send("Go on.", { maxTokens: 4, temperature: 0 }).text();
              return { kind, waited, before, said, ...answer, status: await model.status() };
            }""",
            [MODEL, when],
        )
        assert found["kind"] == "lost" and found["waited"] < LOST_MS_MAX, found
        same(found["text"], native(program, 2))
        assert found["status"]["threads"] == 1 and found["before"] and found["said"], found
        waits.append(round(found["waited"]))
        closed(page)
    return waits


def budgets(context, site, program):
    """A budget below the model's size, divided among the workers; and one that no model fits."""
    page = isolated(context, site)
    answer = page.evaluate("""async (url) => {
      await opened(url, { memoryBudget: 40e6, contextLength: 256, threads: 2 }); await model.arrived;
      const answer = await completed(model, "Once upon a time", 64);
      return { ...answer, ...(await model.status()) };
    }""", MODEL)
    same(answer["text"], native(program, 8))
    assert answer["memoryBytes"] <= 40_000_000 and answer["threads"] == 2, answer
    closed(page)
    page = isolated(context, site)
    small = """async (url) => [await kindOf(async () => {
      await opened(url, { memoryBudget: 1e6, threads: 2, level: 2 }); await model.complete("A").text();
    }), (await model.status()).threads]"""
    assert page.evaluate(small, MODEL) == ["memory", 1]
    closed(page)
    return answer["memoryBytes"]


def alone(context, isolated_site, site, program):
    """One worker computes without isolation, without storage and in a second tab."""
    page = blank(context, site)
    assert not page.evaluate("crossOriginIsolated")
    run = """async ([url, options]) => {
      await opened(url, { level: 2, ...options }); await model.arrived;
      return { ...(await completed(model, "Once upon a time", 64)), ...(await model.status()) };
    }"""
    answer = page.evaluate(run, [MODEL, {"threads": 2}])
    same(answer["text"], native(program, 2))
    assert answer["threads"] == 1 and answer["cache"] == "device", answer
    closed(page)
    page = isolated(context, isolated_site)
    answer = page.evaluate(run, [MODEL, {"threads": 2, "cache": False}])
    assert answer["threads"] == 1 and answer["cache"] == "memory", answer
    page.evaluate("model.close()")
    for threads in (0, 1.5, "2"):
        assert page.evaluate("(args) => kindOf(() => opened(...args))", [MODEL, {"threads": threads}]) == "invalid"
    first = page.evaluate(run, [MODEL, {"threads": 2}])
    second = isolated(context, isolated_site)
    other = second.evaluate(run, [MODEL, {"threads": 2}])
    assert (first["threads"], first["cache"], other["threads"], other["cache"]) == (2, "device", 1, "memory"), (first, other)
    same(first["text"], native(program, 2))
    same(other["text"], native(program, 2))
    closed(second)
    closed(page)


def main(program, folder):
    isolated_site, site = Site(folder, is_isolated=True), Site(folder)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as profile, sync_playwright() as play:
        context = play.chromium.launch_persistent_context(profile, executable_path=chromium, args=["--no-sandbox"])
        figures = {"tokens/s": texts(context, isolated_site, program)}
        rising(context, isolated_site, program)
        cancelling(context, isolated_site, program)
        figures["lost after ms"] = lost(context, isolated_site, program)
        figures["memory of a budget of 40 MB"] = budgets(context, isolated_site, program)
        alone(context, isolated_site, site, program)
        context.close()
    print(json.dumps(figures, indent=1))
    print("several workers in Chromium: all passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
