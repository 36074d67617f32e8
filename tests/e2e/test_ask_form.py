"""The first page's form: the picture that it shows is the picture that it asks about."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

OpenPage = Callable[..., Page]
HELD = "document.getElementById('picture-file').files.length"


def test_back_shows_what_the_form_holds(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    page.goto(quick)
    page.set_input_files("#picture-file", scene)
    page.fill("#question", "What comes back?")
    page.get_by_role("button", name="Ask", exact=True).click()
    page.wait_for_url("**/runs/*")
    page.go_back()
    expect(page.locator("#question")).to_have_value("What comes back?")
    assert page.evaluate(HELD) == 1
    expect(page.locator("#drop img")).to_be_visible()
    expect(page.locator("#picture-note")).to_contain_text("scene.png")
    expect(page.locator(".sample input:checked")).to_have_count(0)


def test_back_shows_the_sample_that_is_chosen(quick: str, open_page: OpenPage) -> None:
    page = open_page()
    page.goto(quick)
    page.locator(".sample input").nth(1).check()
    shown = page.locator("#drop img").get_attribute("src")
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Model").click()
    page.wait_for_url("**/models")
    page.go_back()
    expect(page.locator(".sample input").nth(1)).to_be_checked()
    expect(page.locator("#drop img")).to_have_attribute("src", shown or "")


def test_the_preview_goes_with_the_picture(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    page.goto(quick)
    preview, words = page.locator("#drop img"), page.locator("#drop strong")
    empty = words.inner_text()
    page.set_input_files("#picture-file", scene)
    expect(preview).to_be_visible()
    page.set_input_files("#picture-file", [])
    expect(preview).to_be_hidden()
    expect(page.locator("#picture-note")).to_have_text("")
    expect(words).to_have_text(empty)
    page.locator(".sample input").first.check()
    expect(preview).to_be_visible()
    page.evaluate("document.getElementById('ask').reset()")
    expect(preview).to_be_hidden()
    page.locator(".sample input").first.check()
    page.set_input_files("#picture-file", scene)
    expect(page.locator(".sample input:checked")).to_have_count(0)
    page.locator(".sample input").first.check()
    assert page.evaluate(HELD) == 0


def test_a_refused_picture_is_kept_until_another_is_chosen(gallery_url: str, open_page: OpenPage, scene: Path) -> None:
    """The server sends a form back with the picture of the first try."""
    page = open_page()
    page.goto(f"{gallery_url}/ask/index.html?n=1")
    preview, kept = page.locator("#drop img"), page.locator("[name=picture_hash]")
    sent = preview.get_attribute("src")
    expect(kept).to_be_enabled()
    page.set_input_files("#picture-file", scene)
    expect(kept).to_be_disabled()
    page.set_input_files("#picture-file", [])
    expect(kept).to_be_enabled()
    expect(preview).to_have_attribute("src", sent or "")
