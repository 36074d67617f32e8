"""Journeys over the pages of concepts and their algebra, in a browser."""

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

Open = Callable[..., Page]


def test_the_slider_cuts_the_members_live(quick: str, open_page: Open) -> None:
    page = open_page()
    page.goto(f"{quick}/concepts/penguin")
    rows = page.locator("#cut-scroll tbody tr")
    before = rows.count()
    page.locator("#alpha").focus()
    for _ in range(30):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#cut")).to_contain_text("α = 0.80")
    assert 0 < rows.count() < before
    expect(page).to_have_url(re.compile(r"alpha=0\.80?"))
    expect(page.locator("#alpha")).to_be_focused()
    page.reload()
    expect(page.locator("#cut")).to_contain_text("α = 0.80")


def test_the_slider_is_a_form_without_scripts(quick: str, open_page: Open) -> None:
    page = open_page(java_script_enabled=False)
    page.goto(f"{quick}/concepts/penguin")
    page.locator("#alpha").fill("0.9")
    page.get_by_role("button", name="Cut", exact=True).click()
    expect(page.locator("#cut")).to_contain_text("α = 0.90")


def test_a_cell_of_the_map_opens_both_in_algebra(quick: str, open_page: Open) -> None:
    page = open_page()
    page.goto(f"{quick}/concepts/similar")
    figure = page.locator(".plot.map.drawn .nsewdrag")
    figure.wait_for()
    box = figure.bounding_box()
    assert box
    x, y = box["x"] + box["width"] * 0.06, box["y"] + box["height"] * 0.3
    page.mouse.move(x + 40, y)
    page.mouse.move(x, y, steps=8)
    expect(page.locator(".hoverlayer")).to_contain_text("similarity")
    page.mouse.click(x, y)
    page.wait_for_url("**/algebra?expression=*")
    expect(page.locator("#expression")).to_have_value(re.compile(" AND "))
    expect(page.locator(".venn")).to_be_visible()


def test_algebra_from_a_mistake_to_a_concept_that_is_steered_with(quick: str, open_page: Open, watched: object) -> None:
    watched.expected.append("422")  # type: ignore[attr-defined]
    page = open_page(viewport={"width": 390, "height": 800})
    page.goto(f"{quick}/algebra")
    page.locator("#expression").fill("penguin OR OR lemon")
    page.get_by_role("button", name="Evaluate").click()
    expect(page.locator("#mistake mark")).to_have_text("OR")
    page.locator("#expression").fill("penguin OR lemon")
    page.get_by_role("button", name="Evaluate").click()
    expect(page.locator("#result-title")).to_have_text("penguin OR lemon")
    page.get_by_label("product").check()
    expect(page.locator("#result")).to_contain_text("Not idempotent")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_placeholder("Name").fill("sour bird")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/concepts/sour%20bird")
    expect(page.locator("h1")).to_have_text("sour bird")
    expect(page.locator(".derived")).to_contain_text("penguin OR lemon")
    page.goto(f"{quick}/concepts?kind=derived")
    expect(page.get_by_role("link", name="sour bird")).to_be_visible()
    page.goto(f"{quick}/concepts/sour%20bird")
    page.get_by_role("link", name="Delete this concept").click()
    page.get_by_role("button", name=re.compile("Delete")).click()
    page.wait_for_url("**/concepts")
