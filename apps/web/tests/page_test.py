"""The package and its demo page in a headless Chromium.

    python page_test.py PROGRAM SITE [SCREENSHOT.png]

PROGRAM is the native nestling, whose text is expected bit for bit. SITE is the folder that build.sh wrote.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import expect, sync_playwright
from served import Site

MODEL = "/nestling-storyteller.nest"
PROMPT = "Once upon a time"
FIRST_BYTES_MAX = 10_500_000

HELPERS = """async () => {
  const { open } = await import("/nestling/index.js");
  window.opened = async (url, options) => (window.model = await open(url, options));
  window.completed = async (model, prompt, maxTokens) => {
    const answer = model.complete(prompt, { maxTokens, temperature: 0 });
    const text = await answer.text();
    return { text, ...(await answer.summary) };
  };
  window.kindOf = async (action) => {
    try { await action(); return "none"; } catch (error) { return error.kind ?? String(error); }
  };
}"""


def native(program, level, tokens=64):
    command = [program, "run", "-p", PROMPT, "-n", str(tokens), "--temp", "0", "--level", str(level), "-t", "1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NESTLING_")}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def blank(context, site):
    """Returns a page of the site that has the package, but has not opened a model."""
    page = context.new_page()
    page.goto(site.url + "/style.css")
    page.evaluate(HELPERS)
    return page


def same(found, expected):
    # The program ends its output with a line feed, and repeats the prompt if it is shown.
    expected = expected.removeprefix(PROMPT).removesuffix("\n")
    assert found == expected, f"expected {expected!r}, found {found!r}"


def levels_and_visits(context, site, program):
    """Levels 2 and 8 give the native text; the first needs one section, and a second visit needs nothing."""
    page = blank(context, site)
    # The first answer is requested at once, so that it comes before further sections.
    first = page.evaluate(
        """async (url) => {
          const start = performance.now();
          const answer = (await opened(url)).complete("Once upon a time", { maxTokens: 64, temperature: 0 });
          let [text, firstWord] = ["", 0];
          for await (const part of answer) { firstWord ||= performance.now() - start; text += part; }
          return { text, firstWord, ...(await answer.summary), fetched: (await model.status()).fetchedBytes };
        }""",
        MODEL,
    )
    assert first["level"] == 2, first
    same(first["text"], native(program, 2))
    page.evaluate("model.arrived")
    last = page.evaluate("async () => completed(model, 'Once upon a time', 64)")
    assert last["level"] == 8, last
    same(last["text"], native(program, 8))
    status = page.evaluate("model.status()")
    assert status["cache"] == "device" and status["isComplete"], status
    assert site.sent_bytes(MODEL) == status["wantedBytes"] == status["fetchedBytes"], status
    ends = sorted(end for _, end in site.ranges[MODEL])
    page.close()
    time.sleep(0.5)
    before = site.sent_bytes(MODEL)
    page = blank(context, site)
    again = page.evaluate(
        """async (url) => {
          const start = performance.now();
          await opened(url); await model.arrived;
          const arrived = performance.now() - start;
          return { arrived, ...(await completed(model, "Once upon a time", 64)) };
        }""",
        MODEL,
    )
    same(again["text"], native(program, 8))
    assert site.sent_bytes(MODEL) == before, "a second visit fetches 0 bytes"
    site.is_down = True
    page.evaluate("model.close()")
    time.sleep(0.5)
    offline = page.evaluate("async (url) => { await opened(url); await model.arrived; return completed(model, 'A', 4); }", MODEL)
    site.is_down = False
    assert offline["level"] == 8
    page.close()
    return {"first": first, "last": last, "again": again, "ranges": len(ends)}


def first_section(context, site):
    """The bytes sent before the first word."""
    page = blank(context, site)
    address = "/fault/slow" + MODEL
    page.evaluate("""async (url) => {
      await opened(url, { cache: false });
      for await (const part of model.complete("Once", { maxTokens: 4 })) if (part) return;
    }""", address)
    # Sections go on arriving once the answer has ended, so the bytes are read in the page's own order of events.
    fetched = page.evaluate("""async (url) => {
      model.close();
      const answered = await opened(url, { cache: false });
      const answer = answered.complete("Once", { maxTokens: 4 });
      const state = answered.status();
      for await (const part of answer) if (part) break;
      return (await state).fetchedBytes;
    }""", address)
    assert 9_000_000 < fetched <= FIRST_BYTES_MAX, fetched
    page.close()
    return fetched


def closed_in_mid_download(context, site):
    address = "/fault/slow" + MODEL
    site.ranges[address].clear()
    page = blank(context, site)
    page.evaluate("(url) => void opened(url).catch(() => {})", address)
    while site.sent_bytes(address) < 6 << 20:
        time.sleep(0.02)
    page.close()
    time.sleep(0.5)
    page = blank(context, site)
    page.evaluate("async (url) => { await opened(url); await model.arrived; }", address)
    # The request that the closed tab had sent may have been answered without being stored.
    twice = site.sent_twice(address)
    assert twice <= 1 << 20, twice
    page.close()
    return twice


def faults(context, site, program):
    page = blank(context, site)
    for fault in ["ignores", "cuts", "damages", "refuses", "moved"]:
        answer = page.evaluate("""async (url) => {
          await opened(url, { cache: false }); await model.arrived;
          const answer = await completed(model, "Once upon a time", 64);
          model.close();
          return answer;
        }""", f"/fault/{fault}{MODEL}")
        same(answer["text"], native(program, 8))
    for fault, kind in {"rots": "damaged", "missing": "server", "replaced": "changed"}.items():
        found = page.evaluate("(url) => kindOf(async () => { await opened(url); await model.arrived; })", f"/fault/{fault}{MODEL}")
        assert found == kind, (fault, found)
    # The address has no server.
    assert page.evaluate("kindOf(() => opened('http://localhost:9/model'))") == "network"
    page.close()


def interface(context, site):
    """Cancelling, budgets, options, two tabs."""
    page = blank(context, site)
    other = blank(context, site)
    page.evaluate("(url) => opened(url).then(() => {})", MODEL)
    status = other.evaluate("async (url) => { await opened(url, { level: 2 }); await model.arrived; return model.status(); }", MODEL)
    assert status["cache"] == "memory" and status["level"] == 2, status
    other.close()
    page.evaluate("model.arrived")
    summary = page.evaluate("""async () => {
      const answer = model.chat().send("Tell me a story.", { maxTokens: 900 });
      for await (const part of answer) break;
      return answer.summary;
    }""")
    assert summary["reason"] == "cancelled" and summary["answerTokens"] < 100, summary
    texts = page.evaluate("""async () => {
      const chat = model.chat({ system: "Be brief." });
      const options = { maxTokens: 8, temperature: 0 };
      const answers = [chat.send("One.", options), chat.send("Two.", options)];
      return Promise.all(answers.map((answer) => answer.text()));
    }""")
    assert all(texts), texts
    assert page.evaluate("kindOf(() => model.complete('A', { tokens: 4 }).text())") == "invalid"
    aborted = """kindOf(async () => {
      const signal = AbortSignal.abort();
      const answers = [model.complete("A", { maxTokens: 900 }), model.complete("B", { signal })];
      answers[0].cancel();
      await answers[1].text();
    })"""
    assert page.evaluate(aborted) == "cancelled"
    page.evaluate("model.close()")
    assert page.evaluate("kindOf(() => model.status())") == "closed"
    time.sleep(0.5)
    small = "(url) => kindOf(async () => { await opened(url, { memoryBudget: 1e6 }); await model.complete('A').text(); })"
    assert page.evaluate(small, MODEL) == "memory"
    page.evaluate("model.close()")
    page.close()


def budgets(context, site, program):
    """A budget below the model's size gives the same text, with experts streamed from the device."""
    page = blank(context, site)
    answer = page.evaluate("""async (url) => {
      await opened(url, { memoryBudget: 24e6, contextLength: 256 }); await model.arrived;
      const answer = await completed(model, "Once upon a time", 64);
      return { ...answer, memory: (await model.status()).memoryBytes };
    }""", MODEL)
    same(answer["text"], native(program, 8))
    assert answer["memory"] <= 24_000_000, answer
    page.close()
    return answer


def demo(context, site, screenshot):
    errors = []
    page = context.new_page()
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(site.url + "/index.html")
    expect(page.locator("#level")).to_have_text("8 bits", timeout=60_000)
    expect(page.locator("#send")).to_be_enabled()
    page.click("#send")
    expect(page.locator("#speed")).to_contain_text("tokens/s", timeout=60_000)
    assert page.locator("li.assistant p").inner_text(), "an answer"
    assert page.locator("#served").inner_text() == "8 bits"
    if screenshot:
        page.screenshot(path=screenshot)
    page.fill("#text", "And then?")
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_have_text("Ready.", timeout=60_000)
    assert page.locator("#messages li").count() == 4
    assert not errors, errors
    page.close()


def main(program, folder, screenshot=None):
    site = Site(folder)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as profile, sync_playwright() as play:
        context = play.chromium.launch_persistent_context(profile, executable_path=chromium, args=["--no-sandbox"])
        figures = {"levels": levels_and_visits(context, site, program)}
        figures["first word after bytes"] = first_section(context, site)
        figures["twice"] = closed_in_mid_download(context, site)
        faults(context, site, program)
        interface(context, site)
        figures["budget"] = budgets(context, site, program)
        demo(context, site, screenshot)
        context.close()
    print(json.dumps(figures, indent=1))
    print("the package in Chromium: all passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
