"""Layers, single neurons and presets in a browser: turned on one run, saved, applied to another, kept by a reload."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.e2e.conftest import Watched
from tests.e2e.test_journeys import NARROW, answered, ask

OpenPage = Callable[..., Page]


def add(page: Page, name: str) -> None:
    page.fill("#steer-add", name)
    page.get_by_role("button", name="Add", exact=True).click()


def test_turned_saved_applied_to_another_run_and_kept(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    ask(page, quick, scene, "What does a preset keep?")
    answered(page)
    summary = page.locator("#steered .sub")
    expect(page.locator("#steer-last")).to_be_hidden()
    page.locator("#steer").get_by_role("switch").first.check()
    page.locator("#steer-first").select_option("1")
    page.locator("#steer-last").select_option("2")
    expect(summary).to_contain_text("layers 1–2")

    add(page, "text.1.7")
    row = page.locator('[data-field="neuron:text.1.7"]')
    number, how = row.get_by_role("spinbutton"), row.get_by_role("combobox")
    expect(number).to_be_hidden()
    how.select_option("set")
    expect(row.get_by_role("slider")).to_be_hidden()
    expect(row.locator("output")).to_have_text("–")
    number.fill("-2.5")
    expect(row.get_by_role("switch")).to_be_checked()
    number.press("Enter")
    expect(summary).to_contain_text("text.1.7 = −2.5")
    expect(row.locator("output")).to_have_text("=−2.5")
    how.select_option("add")
    expect(summary).to_contain_text("text.1.7 − 2.5")
    row.get_by_role("switch").uncheck()
    expect(summary).not_to_contain_text("text.1.7")
    row.get_by_role("switch").check()
    expect(summary).to_contain_text("text.1.7 − 2.5")
    expect(page.locator("#sweep")).to_be_hidden()

    menu = page.locator("#presets")
    menu.locator("summary").press("Enter")
    page.get_by_label("Name of the preset").fill("kept in a browser")
    page.keyboard.press("Enter")
    expect(menu.get_by_role("button", name="kept in a browser")).to_be_visible()
    expect(page.get_by_label("Name of the preset")).to_have_value("")
    page.keyboard.press("Escape")
    expect(menu.get_by_label("Name of the preset")).to_be_hidden()
    words = summary.inner_text().rsplit(" · ", 1)[0]

    add(page, "text.1.8")
    other = page.locator('[data-field="neuron:text.1.8"]')
    other.get_by_role("switch").check()
    expect(summary).to_contain_text("text.1.8 × 0")
    other.get_by_role("button", name="Remove").press("Enter")
    expect(other).to_have_count(0)
    expect(page.locator("#steer-add")).to_be_focused()
    expect(summary).not_to_contain_text("text.1.8")
    expect(summary).to_contain_text(words)

    page.set_viewport_size(NARROW)
    ask(page, quick, scene, "Is a preset the same elsewhere?")
    answered(page)
    menu.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    menu.get_by_role("button", name="kept in a browser").click()
    expect(summary).to_contain_text(words)
    expect(page.locator("#steered .moved")).to_have_attribute("aria-busy", "false")
    assert "steer=" in page.url
    assert "panel=" not in page.url
    page.reload()
    expect(summary).to_contain_text(words)
    expect(page.locator("#steer-last")).to_have_value("2")
    expect(row.get_by_role("combobox")).to_have_value("add")
    expect(row.get_by_role("spinbutton")).to_have_value("-2.5")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_a_value_that_is_refused_stays_in_its_field(quick: str, watched: Watched, scene: Path) -> None:
    watched.expected.append("the server responded with a status of 4")
    watched.expected.append("Response Status Error Code 422")
    page = watched.page()
    ask(page, quick, scene, "Which values are refused?")
    answered(page)
    add(page, "text.1.7")
    row = page.locator('[data-field="neuron:text.1.7"]')
    row.get_by_role("combobox").select_option("set")
    row.get_by_role("spinbutton").fill("20000")
    row.get_by_role("spinbutton").press("Tab")
    expect(page.locator("#errors")).to_contain_text("a number from -10000 to 10000")
    expect(row.get_by_role("spinbutton")).to_have_value("20000")
    page.locator("#presets summary").click()
    page.get_by_label("Name of the preset").fill("refused")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#errors")).to_contain_text("a number from -10000 to 10000")
    expect(page.get_by_label("Name of the preset")).to_have_value("refused")
