"""An experiment with latents in a browser: estimated, followed without a shift, stopped; its charts; no scripts."""

import json
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.e2e.test_journeys import NARROW, SHIFTS

OpenPage = Callable[..., Page]


def test_an_experiment_is_estimated_followed_and_stopped(slow: str, open_page: OpenPage) -> None:
    page = open_page()
    page.add_init_script(SHIFTS)
    page.goto(f"{slow}/saes")
    page.get_by_role("link", name="Experiments").click()
    page.get_by_label("Items").fill("8")
    page.get_by_role("button", name="How long would it take?").click()
    expect(page.get_by_text("pairs to swap, at most")).to_be_visible()
    page.get_by_role("button", name="Start").click()
    headline = page.locator("#headline")
    expect(headline).to_have_text("Asking the model", timeout=20_000)
    page.evaluate("window.shifted = 0")
    expect(page.locator("#experiment .detail")).to_contain_text(" of at most 16 steps", timeout=40_000)
    assert page.evaluate("window.shifted") < 0.02
    page.get_by_role("button", name="Stop").click()
    expect(headline).to_have_text("It was stopped", timeout=40_000)
    expect(page.get_by_role("button", name="Go on")).to_be_visible()


def test_the_report_is_drawn(quick: str, open_page: OpenPage) -> None:
    page = open_page()
    page.goto(f"{quick}/experiments/plan?limit=6")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="Overlaps")).to_be_visible(timeout=40_000)
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        expect(plot.locator(".errorbar").first).to_be_attached()
        expect(plot.locator("g.trace.scatter")).not_to_have_count(0)
    expect(page.locator(".experiment table")).to_have_count(5)


def test_without_scripts_a_file_is_brought_and_its_report_read(quick: str, open_page: OpenPage) -> None:
    page = open_page(java_script_enabled=False, viewport=NARROW)
    page.goto(f"{quick}/experiments")
    asked = [{"question": "what?", "answers": [{"text": "nobody says this"}]}, {"question": "why?", "answers": []}]
    squad = json.dumps({"data": [{"paragraphs": [{"context": "Once.", "qas": asked}]}]}).encode()
    data = {"name": "squad.json", "mimeType": "application/json", "buffer": squad}
    chosen = page.locator("input[name=questions]")
    chosen.set_input_files(data)  # type: ignore[arg-type] # a dictionary is a file's payload
    page.get_by_role("button", name="Read it").click()
    expect(page.locator(".bad-lines")).to_contain_text("line 2")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#headline")).to_have_text("It failed", timeout=20_000)  # the page asks again by itself
    expect(page.get_by_role("alert").filter(has_text="None of 1 items")).to_be_visible()
    page.goto(f"{quick}/experiments/plan?limit=5")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="Overlaps")).to_be_visible(timeout=40_000)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.emulate_media(media="print")
    expect(page.locator(".experiment .take")).to_be_hidden()
    for scroll in page.locator(".scroll").all():
        assert scroll.evaluate("element => element.scrollHeight - element.clientHeight") <= 1


def test_charts_print_whole(gallery_url: str, open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{gallery_url}/experiment/show.html")
    chart = page.locator(".charts figure").first
    chart.scroll_into_view_if_needed()
    expect(chart.locator(".plot.drawn .main-svg").first).to_be_visible()
    page.emulate_media(media="print")
    edges = chart.evaluate("e => [e, e.querySelector('.main-svg')].map(one => one.getBoundingClientRect().right)")
    assert edges[1] <= edges[0], "a chart is as wide as it was drawn: paper has no window to resize"
