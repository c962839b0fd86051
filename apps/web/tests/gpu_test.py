"""The package on WebGPU, in a headless Chromium whose adapter is the software renderer SwiftShader.

    python gpu_test.py PROGRAM SITE

PROGRAM is the native nestling. Its text on the first wgpu device (in tests Mesa's software Vulkan) is expected. SITE is the
folder that build.sh wrote. Without an adapter in Chromium, or without a native device, the test says so and passes.
"""

import json
import os
import shutil
import subprocess
import sys
import time

from page_test import MODEL, PROMPT, blank, same
from playwright.sync_api import sync_playwright
from served import Site

TOKENS = 48
SOFTWARE = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]


def native(program, level, device):
    """Returns the text of a native device, or None without that device."""
    command = [program, "run", "-p", PROMPT, "-n", str(TOKENS), "--temp", "0", "--level", str(level), "-t", "1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NESTLING_")}
    ran = subprocess.run([*command, "--device", device], capture_output=True, text=True, env=environment)
    return ran.stdout.removeprefix(PROMPT).removesuffix("\n") if ran.returncode == 0 else None


def common(first, second):
    """Returns the length of the common prefix of two texts, in characters."""
    return len(os.path.commonprefix([first, second]))


def has_adapter(page):
    return page.evaluate("navigator.gpu ? navigator.gpu.requestAdapter().then((adapter) => !!adapter) : false")


def texts(context, site, program):
    """The text at each level equals that of the native GPU backend. Returns the figures of both levels."""
    figures = {}
    for level in [2, 8]:
        page = blank(context, site)
        found = page.evaluate(
            """async ([url, level, tokens]) => {
              const start = performance.now();
              await opened(url, { device: "gpu", level, cache: false }); await model.arrived;
              const arrived = performance.now() - start;
              const answer = await completed(model, "Once upon a time", tokens);
              const total = performance.now() - start;
              return { ...answer, arrived, total, status: await model.status() };
            }""",
            [MODEL, level, TOKENS],
        )
        assert found["level"] == level and found["answerTokens"] == TOKENS, found
        assert found["status"]["device"] == "google swiftshader", found
        expected = native(program, level, "wgpu:0")
        if expected is None:
            print("SKIPPED: no native wgpu device, so the text is compared with the CPU's only", file=sys.stderr)
        else:
            same(found["text"], expected)
        found["equal to the CPU's"] = common(found["text"], native(program, level, "cpu")), len(found["text"])
        figures[level] = found
        page.close()
    return figures


def waiting(context, site):
    """Messages that arrive while the module is suspended: states, further questions, closed chats, cancelling."""
    page = blank(context, site)
    page.evaluate("async (url) => { await opened(url, { device: 'gpu', level: 2, cache: false }); await model.arrived; }", MODEL)
    found = page.evaluate("""async () => {
      const options = { maxTokens: 12, temperature: 0 };
      const [first, second] = [model.chat(), model.chat({ system: "Be brief." })];
      const answers = [first.send("One.", options), second.send("Two.", options), model.complete("A", options)];
      let states = 0;
      const asks = (async () => { for (; states < 200; states++) await model.status(); })();
      const last = model.chat();
      const texts = await Promise.all(answers.map((answer) => answer.text()));
      last.close(); first.close();
      await asks;
      return { texts, states, alone: await model.complete("A", options).text() };
    }""")
    assert all(found["texts"]) and found["states"] == 200 and found["texts"][2] == found["alone"], found
    start = time.monotonic()
    summary = page.evaluate("""async () => {
      const chat = model.chat();
      const answer = chat.send("Tell me a story.", { maxTokens: 900 });
      for await (const part of answer) break;
      chat.close();
      return answer.summary;
    }""")
    assert summary["reason"] == "cancelled" and summary["answerTokens"] < 40, summary
    aborted = """kindOf(async () => {
      const answers = [model.complete("A", { maxTokens: 900 }), model.complete("B", { maxTokens: 4 })];
      answers[1].cancel(); answers[0].cancel();
      await answers[1].text();
    })"""
    assert page.evaluate(aborted) == "cancelled"
    assert page.evaluate("kindOf(() => model.complete('A', { tokens: 4 }).text())") == "invalid"
    # Closed in the middle of a step.
    closed = "kindOf(async () => { const answer = model.complete('A', { maxTokens: 900 }); setTimeout(() => model.close(), 300); await answer.text(); })"
    assert page.evaluate(closed) == "closed"
    page.close()
    return time.monotonic() - start


def rising_levels(context, site):
    """A model that answers between two levels is opened again on the device."""
    page = blank(context, site)
    found = page.evaluate("""async (url) => {
      const first = (await opened(url, { device: "gpu", cache: false })).complete("Once", { maxTokens: 4, temperature: 0 });
      await first.text();
      await model.arrived;
      const last = await completed(model, "Once", 4);
      return { first: (await first.summary).level, last: last.level, device: (await model.status()).device };
    }""", MODEL)
    assert found == {"first": 2, "last": 8, "device": "google swiftshader"}, found
    page.close()


def budgets(context, site, program):
    """A budget below the model's size streams experts to the device, with the same text."""
    page = blank(context, site)
    answer = page.evaluate("""async ([url, tokens]) => {
      await opened(url, { device: "gpu", memoryBudget: 26e6, contextLength: 256 }); await model.arrived;
      const answer = await completed(model, "Once upon a time", tokens);
      const { device, memoryBytes } = await model.status();
      return { ...answer, device, memoryBytes };
    }""", [MODEL, TOKENS])
    assert answer["device"] == "google swiftshader" and answer["memoryBytes"] <= 26_000_000, answer
    expected = native(program, 8, "wgpu:0")
    if expected is not None:
        same(answer["text"], expected)
    page.evaluate("model.close()")
    time.sleep(0.5)
    small = "(url) => kindOf(async () => { await opened(url, { device: 'gpu', memoryBudget: 1e6 }); await model.complete('A').text(); })"
    assert page.evaluate(small, MODEL) == "memory"
    page.close()
    return answer


def choices(context, site, has_gpu):
    """Software is never chosen, and a GPU that is named must be there."""
    page = blank(context, site)
    for device in ["auto", "cpu", None]:
        options = {"level": 2, "cache": False} | ({"device": device} if device else {})
        found = page.evaluate("async ([url, options]) => { await opened(url, options); const { device } = await model.status(); model.close(); return device; }", [MODEL, options])
        assert found == "cpu", (device, found)
    kind = page.evaluate("(url) => kindOf(() => opened(url, { device: 'gpu', level: 2, cache: false }))", MODEL)
    assert kind == ("none" if has_gpu else "device"), kind
    assert page.evaluate("(url) => kindOf(() => opened(url, { device: 'tpu' }))", MODEL) == "invalid"
    page.close()


def main(program, folder):
    site = Site(folder)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    # The native device's driver is none of the browser's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VK_")}
    with sync_playwright() as play:
        def browser(arguments):
            return play.chromium.launch(executable_path=chromium, args=arguments, env=environment)

        plain = browser(["--no-sandbox"])
        page = blank(plain, site)
        has_gpu = has_adapter(page)
        page.close()
        choices(plain, site, has_gpu)
        plain.close()
        software = browser(SOFTWARE)
        page = blank(software, site)
        if not has_adapter(page):
            print("SKIPPED: Chromium has no WebGPU adapter, so the package is not tested on one", file=sys.stderr)
            return
        page.close()
        choices(software, site, True)
        figures = {"texts": texts(software, site, program)}
        figures["waiting seconds"] = waiting(software, site)
        rising_levels(software, site)
        figures["budget"] = budgets(software, site, program)
        software.close()
    print(json.dumps(figures, indent=1))
    print("the package on WebGPU: all passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
