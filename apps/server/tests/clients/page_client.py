"""The server's page in a headless Chromium.

    python page_client.py PROGRAM [SCREENSHOT.png]

Anything that the page logs as an error, and anything that its policy keeps it from, fails.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import expect, sync_playwright
from program import BUNDLED, Served

KEY = "sk-page-test"
STORY = "Tell me a story about a ship."
ANSWER = ".message.assistant:last-child .text"
HOSTILE = '<img src=x onerror="document.title = 1"><script>document.title = 2</script>'


def home(served):
    return served.url.removesuffix("/v1") + "/"


def opened(browser, url):
    """A page in a context of its own, and what it complains about."""
    page, errors = browser.new_context(viewport={"width": 1280, "height": 800}).new_page(), []
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    return page, errors


def say(page, text):
    page.fill("#input", text)
    page.press("#input", "Enter")


def ended(page):
    expect(page.locator("#send")).to_be_visible(timeout=60_000)


def figures(page):
    return page.locator(".after span").inner_text()


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
    # The second turn goes on from what the first computed.
    assert "were there" in figures(page), figures(page)
    return first


def stops(page):
    page.click("#new")
    page.fill("#tokens", "900")
    page.locator("#tokens").blur()
    say(page, "Once more.")
    expect(page.locator(ANSWER)).not_to_be_empty(timeout=60_000)
    page.click("#stop")
    ended(page)
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


def folds_reasoning_and_shows_tools(page):
    """What the bundled model cannot say, in the server's words."""
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "sail", "arguments": ""}}
    body = stream(
        {"role": "assistant", "content": ""},
        {"reasoning_content": "The wind "},
        {"reasoning_content": "is fair."},
        {"content": "Aye.\n```\n<b>rope</b>\n```\n"},
        {"tool_calls": [call]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"knots":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": " 7}"}}]},
    )
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.click("#new")
    say(page, "Set sail.")
    ended(page)
    folded = page.locator("main details")
    assert folded.get_attribute("open") is None
    folded.locator("summary").click()
    expect(folded.locator(".text")).to_have_text("The wind is fair.")
    expect(page.locator(f"{ANSWER} pre")).to_have_text("<b>rope</b>\n")
    expect(page.locator(".tool code")).to_have_text("sail")
    expect(page.locator(".tool pre")).to_have_text('{"knots": 7}')
    page.unroute("**/v1/chat/completions")


def tells_of_errors(page):
    page.click("#new")
    page.fill("#tokens", "100000000")
    say(page, STORY)
    ended(page)
    expect(page.locator(".message .error")).to_contain_text("16777216")


def asks_for_a_key(browser, served):
    page, _ = opened(browser, home(served))
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
            assert errors == [], errors
            # These are told of by the browser, too.
            spends(page)
            tells_of_errors(page)
            assert all("status of 400" in error for error in errors), errors
        with tempfile.TemporaryDirectory() as folder:
            keys = Path(folder) / "keys"
            keys.write_text(KEY)
            with Served(program, BUNDLED, "story", "--api-key-file", str(keys)) as served:
                asks_for_a_key(browser, served)
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
