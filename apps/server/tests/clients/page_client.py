"""The server's page in a headless Chromium.

    python page_client.py PROGRAM [SCREENSHOT.png]

Anything that the page logs as an error, and anything that its policy keeps it from, fails.
"""

import json
import os
import re
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import expect, sync_playwright
from program import BUNDLED, Served

KEY = "sk-page-test"
STORY = "Tell me a story about a ship."
ANSWER = ".message.assistant:last-child .text"
STOP_AT_FIRST_TEXT = """(answer) => {
  const timer = setInterval(() => {
    const [stop, text] = [document.querySelector("#stop"), document.querySelector(answer)];
    if (!stop.offsetParent || !text?.textContent) return;
    clearInterval(timer);
    window.wasStopped = true;
    stop.click();
  });
}"""
HOSTILE = '<img src=x onerror="document.title = 1"><script>document.title = 2</script>'
MARKDOWN = """# Ropes

A *soft* and a **hard** one, cut with `cut -d`.

| name | length |
|:-----|-------:|
| halyard | 12 |
| sheet | 9 |

1. Coil
   - to the left

```python hl=1
rope = "<b>hemp</b>"
```

[Knots](https://example.org/knots) &amp; more
"""
HOSTILE_MARKDOWN = f"""{HOSTILE}

{HOSTILE} in a line, and a [link](javascript:document.title=3), [data](data:text/html,<script>1</script>),
[spaces](<java\tscript:document.title=4>), ![picture](https://example.org/track.png), <javascript:document.title=5>

[![badge](https://example.org/badge.png)](https://example.org/)

<iframe src="https://example.org/"></iframe>
<style>body {{ display: none }}</style>
<svg onload="document.title = 6"></svg>

{">" * 500} deep

"""
# Each row would be padded to the width of the header.
WIDE_TABLE = "|a" * 3000 + "\n" + "|-" * 3000 + "\n" + "b\n" * 3000


def home(served):
    return served.url.removesuffix("/v1") + "/"


def opened(browser, url, width=1280):
    """Returns a page in a context of its own and a list of its errors, which include requests to other hosts."""
    context = browser.new_context(viewport={"width": width, "height": 800})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page, errors = context.new_page(), []
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith((url, "data:")) else errors.append(asked.url))
    page.goto(url)
    return page, errors


def say(page, text):
    page.fill("#input", text)
    page.press("#input", "Enter")


def ended(page):
    expect(page.locator("#send")).to_be_visible(timeout=60_000)


def figures(page):
    return page.locator(".after span").last.inner_text()


def chats(page):
    expect(page.locator("#model")).to_have_text("story", timeout=60_000)
    page.fill("#temperature", "0")
    page.fill("#tokens", "48")
    page.locator("#tokens").blur()
    say(page, STORY)
    ended(page)
    first = page.locator(ANSWER).inner_text()
    assert len(first) > 20 and "48 tokens" in figures(page), (first, figures(page))
    page.click("text=Regenerate")
    ended(page)
    assert page.locator(ANSWER).inner_text() == first
    say(page, "And then?")
    ended(page)
    assert page.locator(".message").count() == 4
    # The second turn reuses the first one's prefix.
    assert re.search(r"\b[1-9]\d* prompt tokens? cached", figures(page)), figures(page)
    assert "stopped at the length limit" in figures(page), figures(page)
    return first


def stops(page):
    page.click("#new")
    page.fill("#tokens", "900")
    page.locator("#tokens").blur()
    # The page clicks by itself, because an answer may end before this program sees its beginning.
    page.evaluate(STOP_AT_FIRST_TEXT, ANSWER)
    say(page, "Once more.")
    ended(page)
    assert page.evaluate("window.wasStopped")
    assert page.locator(".message .error").count() == 0
    assert page.locator(ANSWER).inner_text()


def keeps(page, first):
    page.reload()
    expect(page.locator("#model")).to_have_text("story")
    assert page.locator("nav li").count() == 2
    page.click(f"nav li button.name:text-is({json.dumps(STORY)})")
    assert page.locator(".message.assistant .text").first.inner_text() == first
    assert page.input_value("#tokens") == "900"
    page.click("nav li:not(.open) button.gone")
    assert page.locator("nav li").count() == 1


def shows_figures(page):
    assert page.locator("#level").inner_text() == "8 bits"
    page.fill("#tokens", "48")
    say(page, "What was in the harbour?")
    ended(page)
    for name in ["#bits", "#hits", "#read", "#speed"]:
        expect(page.locator(name)).not_to_have_text("–")


def spends(page):
    before = page.locator("#budget-text").inner_text()
    with page.expect_response(lambda reply: reply.url.endswith("/memory")) as reply:
        page.locator("#budget").fill("90")
    told = reply.value.json()
    assert reply.value.status == 200, told
    assert abs(told["budget_bytes"] / told["budget_max_bytes"] - 0.9) < 0.01, told
    assert page.locator("#budget-text").inner_text() != before
    with page.expect_response(lambda reply: reply.url.endswith("/memory")) as reply:
        page.locator("#budget").fill("1")
    assert reply.value.status == 400
    expect(page.locator("#memory-note")).to_contain_text("bytes")


def takes_nothing_for_markup(page):
    title = page.title()
    page.click("#new")
    say(page, HOSTILE)
    ended(page)
    assert page.locator("main img, main script").count() == 0
    assert page.locator(".message.user .text").inner_text() == HOSTILE
    assert page.title() == title


def stream(*deltas):
    parts = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    return "".join(f"data: {json.dumps(part)}\n\n" for part in parts) + "data: [DONE]\n\n"


@contextmanager
def answers(page, *deltas):
    """Answers requests with deltas that the bundled model cannot write."""
    body = stream(*deltas)
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    yield
    page.unroute("**/v1/chat/completions")


def ask(page, text):
    page.click("#new")
    say(page, text)
    ended(page)


def pieces(text, length=7):
    return [{"content": text[at : at + length]} for at in range(0, len(text), length)]


def clipboard(page):
    return page.evaluate("navigator.clipboard.readText()")


def renders_markdown(page):
    with answers(page, *pieces(MARKDOWN)):
        ask(page, "Which ropes?")
    answer = page.locator(ANSWER)
    expect(answer.locator("h2")).to_have_text("Ropes")
    expect(answer.locator("em")).to_have_text("soft")
    expect(answer.locator("strong")).to_have_text("hard")
    expect(answer.locator("p code")).to_have_text("cut -d")
    assert answer.locator("th").all_inner_texts() == ["name", "length"]
    assert answer.locator("td").all_inner_texts() == ["halyard", "12", "sheet", "9"]
    expect(answer.locator("ol > li > ul > li")).to_have_text("to the left")
    expect(answer.locator(".code span")).to_have_text("python")
    expect(answer.locator("pre")).to_have_text('rope = "<b>hemp</b>"')
    expect(answer.locator("p").last).to_have_text("Knots & more")
    link = answer.locator("a")
    assert link.get_attribute("href") == "https://example.org/knots"
    assert (link.get_attribute("rel"), link.get_attribute("target")) == ("noopener noreferrer nofollow", "_blank")
    answer.locator(".code .copy").click()
    expect(answer.locator(".code .copy")).to_have_text("Copied")
    assert clipboard(page) == 'rope = "<b>hemp</b>"'
    page.locator(".message.assistant .after .copy").click()
    expect(page.locator(".message.assistant .after .copy")).to_have_text("Copied")
    assert clipboard(page) == MARKDOWN


GROWN = """text => {
    const shown = step => {
        const place = document.createElement("div"), show = markdown.view(place);
        for (let end = step; end < text.length + step; end += step) show(text.slice(0, end), false);
        return place.innerHTML;
    };
    return [1, 2, 5, 40, text.length].map(shown);
}"""
SECONDS = """text => {
    const start = performance.now(), show = markdown.view(document.createElement("div"));
    for (let part = 1; part <= 4; part += 1) show(text.slice(0, text.length * part / 4), false);
    return (performance.now() - start) / 1000;
}"""


def grows_as_it_ends(page):
    """Compares a text shown in steps with the whole text, and bounds the time for texts that are slow to parse."""
    for text in [MARKDOWN, HOSTILE_MARKDOWN, "1. a\n\n2. b\n\n   c\n\nd\n===\n\n- e\n\n  f\n"]:
        assert len(set(page.evaluate(GROWN, text))) == 1, page.evaluate(GROWN, text)
    for text in [WIDE_TABLE, ">" * 50_000, "1. " * 30_000, "[" * 50_000, "a**b" * 20_000, "- a\n" + "  b\n" * 20_000]:
        assert page.evaluate(SECONDS, text) < 10, text[:20]


def runs_nothing_of_an_answer(page):
    title = page.title()
    with answers(page, *pieces(HOSTILE_MARKDOWN + WIDE_TABLE, 500)):
        ask(page, "Try it.")
    answer = page.locator(ANSWER)
    for tag in ["img", "script", "iframe", "style", "svg", "object", "form"]:
        assert answer.locator(tag).count() == 0, tag
    assert page.title() == title
    links = answer.locator("a").evaluate_all("links => links.map(link => [link.textContent, link.href])")
    assert links == [
        ["Image: picture", "https://example.org/track.png"],
        ["Image: badge", "https://example.org/"],
    ], links
    assert HOSTILE in answer.inner_text()
    assert answer.locator("blockquote").count() < 50
    assert answer.locator("td").count() == 0


def edits(page):
    with answers(page, {"content": "First."}):
        ask(page, "One")
        say(page, "Two")
        ended(page)
    assert page.locator(".message").count() == 4
    page.hover(".message.user")
    page.locator(".message.user .edit").first.click()
    page.press(".edit textarea", "Escape")
    assert page.locator(".message").count() == 4
    page.locator(".message.user .edit").first.click()
    assert page.input_value(".edit textarea") == "One"
    page.fill(".edit textarea", "Three")
    with answers(page, {"content": "Second."}), page.expect_request("**/v1/chat/completions") as asked:
        page.press(".edit textarea", "Enter")
        ended(page)
    assert asked.value.post_data_json["messages"] == [{"role": "user", "content": "Three"}]
    assert page.locator(".message .text").all_inner_texts() == ["Three", "Second."]
    expect(page.locator("nav li.open .name")).to_have_text("Three")


def has_drawers(browser, served):
    """On a narrow screen the talk has all of it, until a drawer is opened."""
    page, errors = opened(browser, home(served), width=390)
    expect(page.locator("#model")).to_have_text("story", timeout=60_000)
    with answers(page, *pieces(MARKDOWN)):
        ask_narrow(page, "Which ropes?")
    expect(page.locator("nav")).to_be_hidden()
    expect(page.locator("aside")).to_be_hidden()
    assert page.locator("#talk").bounding_box()["width"] == 390
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    for name in ["list", "panel"]:
        button, drawer = page.locator(f"#{name}-open"), page.locator(f"#{name}")
        for close in [lambda: page.keyboard.press("Escape"), drawer.locator(".close").click]:
            button.click()
            expect(drawer).to_be_visible()
            assert button.get_attribute("aria-expanded") == "true"
            assert page.evaluate("document.querySelector('main').inert")
            close()
            expect(drawer).to_be_hidden()
            expect(button).to_be_focused()
    page.click("#list-open")
    page.click("#new")
    expect(page.locator("nav")).to_be_hidden()
    expect(page.locator(".empty")).to_be_visible()
    # A wider window has no drawers.
    page.click("#panel-open")
    page.set_viewport_size({"width": 1280, "height": 800})
    expect(page.locator("nav")).to_be_visible()
    expect(page.locator("aside")).to_be_visible()
    assert not page.evaluate("document.querySelector('main').inert")
    assert errors == [], errors


def ask_narrow(page, text):
    page.click("#list-open")
    page.click("#new")
    say(page, text)
    ended(page)


def folds_reasoning_and_shows_tools(page):
    """Shows parts of answers that the bundled model cannot write."""
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "sail", "arguments": ""}}
    deltas = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "The wind "},
        {"reasoning_content": "is fair."},
        {"content": "Aye.\n```\n<b>rope</b>\n```\n"},
        {"tool_calls": [call]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"knots":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": " 7}"}}]},
    ]
    with answers(page, *deltas):
        ask(page, "Set sail.")
    folded = page.locator("main details")
    assert folded.get_attribute("open") is None
    folded.locator("summary").click()
    expect(folded.locator(".reasoning")).to_have_text("The wind is fair.")
    expect(page.locator(f"{ANSWER} pre")).to_have_text("<b>rope</b>")
    expect(page.locator(".tool code")).to_have_text("sail")
    expect(page.locator(".tool pre")).to_have_text('{"knots": 7}')


def tells_of_errors(page):
    page.click("#new")
    page.fill("#tokens", "100000000")
    say(page, STORY)
    ended(page)
    expect(page.locator(".message .error")).to_contain_text("16777216")


def asks_for_a_key(browser, served, width):
    page, _ = opened(browser, home(served), width)
    expect(page.locator("#key")).to_be_visible()
    page.fill("#key", KEY)
    page.locator("#key").blur()
    expect(page.locator("#model")).to_have_text("story", timeout=60_000)
    expect(page.locator("#key")).to_be_hidden()


def chooses(browser, served):
    """Of several models the one that is chosen answers, also after the page was loaded anew."""
    page, errors = opened(browser, home(served))
    expect(page.locator("#models")).to_be_visible(timeout=60_000)
    assert page.locator("#models option").all_inner_texts() == ["other", "story"]
    page.fill("#tokens", "8")
    page.locator("#tokens").blur()
    for name in ["story", "other"]:
        page.select_option("#models", name)
        page.click("#new")
        with page.expect_request("**/v1/chat/completions") as asked:
            say(page, STORY)
        assert asked.value.post_data_json["model"] == name, asked.value.post_data
        ended(page)
        assert page.locator(".message .error").count() == 0, page.locator(".message .error").inner_text()
        assert "8 tokens" in figures(page), figures(page)
        expect(page.locator("#level")).to_have_text("8 bits")
    page.select_option("#models", "story")
    page.reload()
    expect(page.locator("#models")).to_have_value("story", timeout=60_000)
    assert errors == [], errors


def chromium(play):
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or sys.exit("chromium is not installed")
    return play.chromium.launch(executable_path=program, args=["--no-sandbox"])


def main(program, screenshot=None):
    with sync_playwright() as play:
        browser = chromium(play)
        with Served(program, BUNDLED, "story", "--memory", "40MB") as served:
            page, errors = opened(browser, home(served))
            first = chats(page)
            stops(page)
            keeps(page, first)
            shows_figures(page)
            if screenshot:
                page.screenshot(path=screenshot)
            takes_nothing_for_markup(page)
            folds_reasoning_and_shows_tools(page)
            renders_markdown(page)
            grows_as_it_ends(page)
            runs_nothing_of_an_answer(page)
            edits(page)
            has_drawers(browser, served)
            assert errors == [], errors
            # These are told of by the browser, too.
            spends(page)
            tells_of_errors(page)
            assert all("status of 400" in error for error in errors), errors
        with tempfile.TemporaryDirectory() as folder:
            keys = Path(folder) / "keys"
            keys.write_text(KEY)
            with Served(program, BUNDLED, "story", "--api-key-file", str(keys)) as served:
                for width in [1280, 390]:
                    asks_for_a_key(browser, served, width)
            models = Path(folder) / "models"
            models.mkdir()
            for name in ["other", "story"]:
                (models / f"{name}.nest").symlink_to(BUNDLED)
            with Served(program, None, None, "--models", str(models), "--memory", "400MB") as served:
                chooses(browser, served)
        browser.close()
    print("page: what is shown is what the server says")


if __name__ == "__main__":
    main(*sys.argv[1:])
