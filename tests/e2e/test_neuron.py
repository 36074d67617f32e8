"""The neuron page, its survey, the search and a dragged box, in a browser."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.test_journeys import NARROW, answered, ask

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("viewport", [{"width": 1440, "height": 900}, NARROW], ids=["wide", "narrow"])
def test_from_a_run_to_a_neuron_and_its_survey(
    quick: str, open_page: OpenPage, scene: Path, viewport: dict[str, int]
) -> None:
    page = open_page(viewport=viewport)
    ask(page, quick, scene, f"Which neuron, at {viewport['width']}?")
    answered(page)
    page.locator("#neurons a.about").first.click()
    expect(page.locator("h1")).to_contain_text("text.")
    expect(page.locator(".three .lens-list")).to_have_count(3)
    page.locator("#seen").get_by_role("button", name=re.compile("^Survey")).click()
    expect(page.locator(".seen-pictures .heat rect").first).to_be_visible(timeout=20_000)
    expect(page.locator("#seen .seen-pictures")).to_be_visible()
    page.locator("#seen .plot").scroll_into_view_if_needed()  # figures are drawn when they come into view
    expect(page.locator("#seen .plot.drawn")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    name = page.locator("h1").inner_text()
    page.get_by_label("Label").fill("my own neuron")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("h1")).to_contain_text("my own neuron")
    page.get_by_role("link", name="Search neurons and concepts").click()
    page.get_by_role("searchbox").fill("my own")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_role("link", name=name.split()[0])).to_be_visible()


def test_a_box_is_dragged_over_the_picture(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    ask(page, quick, scene, "And inside a box?")
    answered(page)
    page.get_by_role("link", name="Which neurons fire where?").click()
    area = page.locator("[data-box]").bounding_box()
    assert area
    page.mouse.move(area["x"] + area["width"] * 0.4, area["y"] + area["height"] * 0.4)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] * 0.6, area["y"] + area["height"] * 0.7, steps=4)
    page.mouse.up()
    expect(page.locator(".fired li")).to_have_count(12)
    picture = page.locator("[data-box] img")
    width, height = (int(str(picture.get_attribute(name))) for name in ("width", "height"))
    scale = min(area["width"] / width, area["height"] / height)
    drawn = {name: float(page.locator(f"[name={name}]").input_value()) for name in ("left", "top", "right", "bottom")}
    assert abs((drawn["right"] - drawn["left"]) * scale - area["width"] * 0.2) <= 2 * scale + 2
    assert abs((drawn["bottom"] - drawn["top"]) * scale - area["height"] * 0.3) <= 2 * scale + 2
    assert abs((drawn["left"] + drawn["right"]) / 2 - width / 2) <= 3


def test_without_scripts_they_are_forms(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page(java_script_enabled=False)
    ask(page, quick, scene, "And without scripts, inside?")
    page.get_by_role("link", name="Which neurons fire where?").click(timeout=20_000)
    for name, value in (("left", "0"), ("top", "0"), ("right", "60"), ("bottom", "60")):
        page.locator(f"[name={name}]").fill(value)
    page.get_by_role("button", name="Look").click()
    expect(page.locator(".fired li")).to_have_count(12)
    page.locator(".fired a").first.click()
    expect(page.locator(".three .lens-list")).to_have_count(3)
