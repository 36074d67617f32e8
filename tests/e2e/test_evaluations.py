"""An evaluation in a browser: estimated, started, followed without a shift, and stopped; and without scripts."""

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.app.turning import lines
from tests.e2e.test_journeys import NARROW, SHIFTS

OpenPage = Callable[..., Page]


def test_an_evaluation_is_estimated_followed_stopped_and_gone_on_with(slow: str, open_page: OpenPage) -> None:
    page = open_page()
    page.add_init_script(SHIFTS)
    page.goto(f"{slow}/evaluations")
    page.get_by_role("link", name="Evaluate").focus()
    page.get_by_label("name", exact=True).uncheck()
    page.get_by_label("easy", exact=True).uncheck()
    page.get_by_label("Test questions").fill("8")
    page.get_by_role("button", name="How long would it take?").click()
    expect(page.get_by_text("answers, at most")).to_be_visible()
    page.get_by_role("button", name="Start").click()
    headline = page.locator("#headline")
    expect(headline).to_have_text("Asking the model")
    page.evaluate("window.shifted = 0")
    expect(page.locator("#evaluation .detail")).to_contain_text(" of at most ", timeout=20_000)
    assert page.evaluate("window.shifted") < 0.02
    page.get_by_role("button", name="Stop").click()
    expect(headline).to_have_text("It was stopped", timeout=20_000)
    expect(page.get_by_role("button", name="Go on")).to_be_visible()
    page.goto(f"{slow}/evaluations")
    expect(page.locator(".evaluation-list")).to_contain_text("cancelled")


def test_without_scripts_a_set_is_brought_and_its_report_read(quick: str, open_page: OpenPage) -> None:
    page = open_page(java_script_enabled=False, viewport=NARROW)
    page.goto(f"{quick}/evaluations")
    data = {"name": "things.jsonl", "mimeType": "application/json", "buffer": lines(120, ["{broken"])}
    page.locator("input[name=questions]").set_input_files(data)  # type: ignore[arg-type] # a dictionary is a file's payload
    page.get_by_role("button", name="Read it").click()
    expect(page.locator(".bad-lines")).to_contain_text("line 121")
    page.get_by_label("Test questions").fill("4")
    page.get_by_role("button", name="Estimate again").click()
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".kind-card")).to_have_count(2, timeout=20_000)  # the page asks again by itself
    expect(page.locator("#headline")).to_have_text(re.compile("^(No gain|Turning concepts)"))
    expect(page.locator(".results")).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.emulate_media(media="print")
    expect(page.locator(".evaluation .take")).to_be_hidden()
    for scroll in page.locator(".scroll").all():
        assert scroll.evaluate("element => element.scrollHeight - element.clientHeight") <= 1
