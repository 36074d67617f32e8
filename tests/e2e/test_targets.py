"""Explaining something else than the answer, in a browser: by keyboard, without JavaScript, and without a jump."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.test_journeys import NARROW, answered, ask, two_tokens

OpenPage = Callable[..., Page]


def opened(page: Page, url: str, scene: Path, stem: str) -> None:
    """A finished run with its form unfolded."""
    ask(page, url, scene, two_tokens(scene, stem))
    answered(page)
    page.locator("#explain > summary").focus()
    page.keyboard.press("Enter")


def heights(page: Page) -> list[float]:
    """Of the cards that say what is explained and by which neurons."""
    boxes = [page.locator(card).bounding_box() for card in ("#answer", "#neurons")]
    return [round(box["height"]) for box in boxes if box]


@pytest.mark.parametrize("viewport", [{"width": 1440, "height": 900}, NARROW], ids=["wide", "narrow"])
def test_explain_a_text_by_keyboard(slow: str, open_page: OpenPage, scene: Path, viewport: dict[str, int]) -> None:
    page = open_page(viewport=viewport)
    opened(page, slow, scene, f"What is in the picture, at {viewport['width']}?")
    page.keyboard.press("Tab")
    expect(page.locator("#explain-say")).to_be_focused()
    page.keyboard.type("red light")
    page.keyboard.press("Tab")
    page.keyboard.type("green")
    page.keyboard.press("Enter")
    expect(page.locator("#explain .pieces .skeleton").first).to_be_visible()
    high = heights(page)
    expect(page.locator("#explain .pieces .skeleton")).to_have_count(0)
    answered(page)
    assert "say=red+light&against=green" in page.url or "say=red%20light&against=green" in page.url
    line = page.locator(".target-line")
    expect(line).to_contain_text("(not said by the model) rather than")
    expect(line).to_contain_text("2 tokens against 1, difference ")
    assert page.locator("#explain .pieces").nth(0).locator("li").count() == 2
    assert page.locator("#explain .pieces").nth(1).locator("li").count() == 1
    assert heights(page) == high, "nothing below moves when the ids come in"
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.locator("#explain-say").input_value() == "red light"

    ways = page.locator("#explain .ways").first.locator("a")
    assert ways.count() == 4
    expect(ways.first).to_have_attribute("aria-current", "true")
    wanted = ways.nth(1).get_attribute("title")
    ways.nth(1).click()
    page.wait_for_url("**exact=1**")
    expect(page.locator("#explain .note").first).to_contain_text("exactly as written")
    used = page.locator("#explain .ways").first.locator("a[aria-current]")
    expect(used).to_have_attribute("title", str(wanted), timeout=15000)

    page.get_by_role("link", name="Explain the whole answer").click()
    expect(page.locator("#answer .token.target")).to_have_count(2)
    answered(page)
    assert "say=" not in page.url
    assert page.locator("#explain").evaluate("details => details.open"), "it stays as the reader left it"
    page.reload()
    assert not page.locator("#explain").evaluate("details => details.open")


def test_what_is_typed_outlives_what_streams_in(slow: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    ask(page, slow, scene, two_tokens(scene, "What is typed here?"))
    page.locator("#explain > summary").click()
    page.locator("#explain-say").fill("tower")
    page.locator("#explain-quantity").select_option("logit")
    answered(page)
    assert page.locator("#explain-say").input_value() == "tower"
    assert page.locator("#explain-quantity").input_value() == "logit"
    assert page.locator("#explain").evaluate("details => details.open")


def test_a_contrast_in_one_click_and_what_is_left_out(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    opened(page, quick, scene, "What is over there?")
    offer = page.locator("#explain .offers a").first
    text = offer.evaluate("link => link.firstChild.textContent")
    offer.click()
    expect(page.locator(".target-line")).to_contain_text(f"rather than “{text}”, 1 token against 1")
    switch = page.get_by_role("switch", name=re.compile("special tokens"))
    expect(switch).to_be_checked()
    share = switch.locator(".figure").inner_text()
    switch.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".left-out")).to_have_text(
        re.compile(rf"Left out: special tokens \(\d+ positions, {share}\)\.")
    )
    expect(switch).not_to_be_checked()
    assert "against=" in page.url
    assert "leave=special" in page.url
    page.go_back()
    expect(switch).to_be_checked()


def test_everything_works_without_scripts(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page(java_script_enabled=False)
    ask(page, quick, scene, two_tokens(scene, "What is plain?"))
    answered(page)  # until then the page loads itself anew
    page.locator("#explain > summary").click()
    page.locator("#explain-say").fill("red light")
    page.locator("#explain-quantity").select_option("logit")
    page.get_by_role("button", name="Explain", exact=True).click()
    page.wait_for_url("**quantity=logit**")
    expect(page.locator(".target-line")).to_contain_text("2 tokens, logit ")
    page.get_by_role("switch", name=re.compile("high-norm")).click()
    page.wait_for_url("**leave=high-norm**")
    expect(page.locator(".left-out")).to_contain_text("high-norm positions")


@pytest.mark.parametrize("path", ["/runs/show.html", "/runs/show.html?n=3"])
def test_a_method_that_is_off_says_why_to_whoever_comes_near(gallery_url: str, open_page: OpenPage, path: str) -> None:
    page = open_page()
    page.goto(gallery_url + path)
    off = page.locator(".methods .off")
    expect(off.locator(".why")).to_be_hidden()
    off.focus()
    expect(off.locator(".why")).to_be_visible()
    expect(off.locator(".why")).to_contain_text("no gradients")


def test_a_long_text_scrolls_in_its_strip(gallery_url: str, open_page: OpenPage) -> None:
    page = open_page(viewport=NARROW)
    page.goto(f"{gallery_url}/runs/show.html?n=3")
    strip = page.locator("#explain .pieces").nth(1)
    assert strip.locator("li").count() == 40
    assert strip.evaluate("list => list.scrollWidth > list.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    strip.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelectorAll('#explain .pieces')[1].scrollLeft > 0")


@pytest.mark.parametrize("viewport", [{"width": 1440, "height": 900}, NARROW], ids=["wide", "narrow"])
def test_long_and_right_to_left_texts_keep_the_page(
    quick: str, open_page: OpenPage, scene: Path, viewport: dict[str, int]
) -> None:
    page = open_page(viewport=viewport)
    opened(page, quick, scene, f"What is long at {viewport['width']}?")
    page.locator("#explain-say").fill("a" * 200)
    page.locator("#explain-against").fill("بطريق")
    page.locator("#explain-apply").click()
    expect(page.locator("#trust .sub")).to_contain_text("a…” rather than “")
    expect(page.locator(".target-line")).to_contain_text(re.compile("a{199}"))
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    way = page.locator("#explain .ways").nth(1).locator("a").first
    text, number = (way.locator(part).bounding_box() for part in ("bdi", "small"))
    assert text
    assert number
    assert text["x"] + text["width"] <= number["x"], "the number stands behind the text"
    comma = """line => {
      const against = line.querySelectorAll("strong")[1];
      const after = document.createRange();
      after.setStart(against.nextSibling, 0);
      after.setEnd(against.nextSibling, 1);
      return [after.toString(), after.getBoundingClientRect().left - [...against.getClientRects()].at(-1).right];
    }"""
    sign, gap = page.locator(".target-line").evaluate(comma)
    assert (sign, gap >= -1) == (",", True), "the sentence goes on behind the text"
