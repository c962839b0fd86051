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

TOKENS = 16
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


def texts(page, program):
    """The texts of a model that answers at level 2, and again once level 8 has arrived, equal those of the native GPU backend."""
    found = page.evaluate(
        """async ([url, tokens]) => {
          const start = performance.now();
          // The first answer is requested at once, so that it comes before further sections.
          const first = completed(await opened(url, { device: "gpu", cache: false }), "Once upon a time", tokens);
          const ready = performance.now() - start;
          const [low] = [await first, await model.arrived];
          return { ready, 2: low, 8: await completed(model, "Once upon a time", tokens), status: await model.status() };
        }""",
        [MODEL, TOKENS],
    )
    assert found["status"]["device"] == "google swiftshader" and found["status"]["level"] == 8, found
    for level in ["2", "8"]:
        answer = found[level]
        assert answer["level"] == int(level) and answer["answerTokens"] == TOKENS, answer
        expected = native(program, level, "wgpu:0")
        if expected is None:
            print("SKIPPED: no native wgpu device, so the text is compared with the CPU's only", file=sys.stderr)
        else:
            same(answer["text"], expected)
        answer["characters equal to the CPU's"] = common(answer["text"], native(program, level, "cpu"))
    return found


def waiting(page):
    """Messages that arrive while the module is suspended: states, further questions, closed chats, cancelling."""
    found = page.evaluate("""async () => {
      const options = { maxTokens: 3, temperature: 0 };
      const [first, second] = [model.chat(), model.chat({ system: "Be brief." })];
      const answers = [first.send("One.", options), second.send("Two.", options), model.complete("A", options)];
      const states = [];
      const timer = setInterval(() => states.push(model.status()), 20);
      const texts = await Promise.all(answers.map((answer) => answer.text()));
      clearInterval(timer);
      first.close();
      const levels = (await Promise.all(states)).map((state) => state.level);
      return { texts, levels, alone: await model.complete("A", options).text() };
    }""")
    assert all(found["texts"]) and found["texts"][2] == found["alone"], found
    assert len(found["levels"]) > 9 and set(found["levels"]) == {8}, found
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
    return len(found["levels"])


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
    # Less than the device's own buffers take.
    kind = page.evaluate("(url) => kindOf(() => opened(url, { device: 'gpu', memoryBudget: 1e6 }))", MODEL)
    assert kind == "device", kind
    page.close()
    return answer


def choices(context, site, has_gpu):
    """Software is not chosen unless it is named, and a GPU that is named must be there."""
    page = blank(context, site)
    for device in ["auto", "cpu", None]:
        options = {"level": 2, "cache": False} | ({"device": device} if device else {})
        found = page.evaluate("async ([url, options]) => { await opened(url, options); const { device } = await model.status(); model.close(); return device; }", [MODEL, options])
        assert found == "cpu", (device, found)
    if not has_gpu:
        assert page.evaluate("(url) => kindOf(() => opened(url, { device: 'gpu' }))", MODEL) == "device"
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
        page = blank(software, site)
        figures = {"texts": texts(page, program), "states while answering": waiting(page)}
        page.close()
        figures["budget"] = budgets(software, site, program)
        software.close()
    print(json.dumps(figures, indent=1))
    print("the package on WebGPU: all passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
