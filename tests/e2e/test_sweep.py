"""Sweeping a row of the steering panel in a browser: it streams, it moves nothing, and a click on a point turns the
panel."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.test_journeys import NARROW, SHIFTS, answered, ask, two_tokens

OpenPage = Callable[..., Page]
WIDE = {"width": 1440, "height": 900}
TOLD = """
  window.told = [];
  new MutationObserver(() => {
    const text = document.querySelector("#sweep .message")?.firstChild?.textContent;
    const [plot, card] = [document.querySelector("#sweep [data-figure]"), document.querySelector("#sweep")];
    if (text && window.told.at(-1)?.[0] !== text) window.told.push([text, card.offsetHeight, Boolean(plot)]);
  }).observe(document, { subtree: true, childList: true, characterData: true });
"""
"""Keeps what the card said, with its height: a test that looks for a passing state may come too late."""


def click_point(page: Page, place: int) -> None:
    """A click into the chart above the value of this place, counted from 0 of 13."""
    drawn = page.locator("#sweep .plot .nsewdrag")
    box = drawn.bounding_box()
    assert box
    drawn.click(position={"x": box["width"] * (place + 0.5) / 13, "y": box["height"] * 0.6})


def first_row(page: Page) -> Locator:
    """The row that stands first now, wherever it goes: other journeys' own concepts come and go in the same server."""
    field = page.locator("#steer .turn-row").first.get_attribute("data-field")
    return page.locator(f'#steer .turn-row[data-field="{field}"]')


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_it_streams_and_a_click_on_a_point_turns_the_panel(
    slow: str, open_page: OpenPage, scene: Path, viewport: dict[str, int]
) -> None:
    page = open_page(viewport=viewport)
    page.add_init_script(SHIFTS + TOLD)
    ask(page, slow, scene, two_tokens(scene, f"What may it be, at {viewport['width']}?"))
    answered(page)
    card, row = page.locator("#sweep"), first_row(page)
    expect(card).to_be_hidden()
    above = page.locator("#steered").bounding_box()
    page.evaluate("window.shifted = 0")
    row.locator(".sweep").click()
    expect(card).to_be_in_viewport()
    expect(card.locator(".message")).to_contain_text("13 answers in one batch, ")
    expect(card.locator(".plot.drawn .nsewdrag")).to_be_visible()
    assert page.evaluate("window.shifted") < 0.02
    told = page.evaluate("window.told")
    passing = [drawn for text, _, drawn in told if "so far" in text]
    assert passing in ([], [True]), told  # a busy machine may skip what is passing; test_sweeps.py sees that it comes
    assert len({height for _, height, _ in told}) == 1, told
    after = page.locator("#steered").bounding_box()
    assert above
    assert after
    assert after["height"] == above["height"]
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0

    click_point(page, 2)
    expect(row.locator("output")).to_have_text("×0.0")
    expect(page.locator("#steered .sub")).to_contain_text("λ −1")
    card.locator("summary").click()
    here = card.locator("tr[aria-current]:visible")
    expect(here).to_have_attribute("data-at", "-1")
    expect(page.locator("#steered .said").nth(1)).to_have_text(here.locator("td").first.inner_text())
    assert "sweep=" in page.url
    assert "steer=" in page.url
    card.get_by_role("button", name="3.5").click()
    expect(row.locator("output")).to_have_text("×4.5")
    expect(page.locator("#steered .sub")).to_contain_text("λ +3.5")
    expect(here).to_have_attribute("data-at", "3.5")

    page.locator("#steer-positions").select_option("image")
    expect(card.locator(".apart-note")).to_be_visible()
    expect(here).to_have_count(0)
    expect(page.locator("#steered .sub")).to_contain_text("image positions")
    page.reload()
    expect(card.locator(".message")).to_contain_text("13 answers in one batch, ")
    expect(card.locator(".apart-note")).to_be_visible()
    page.locator("#steer-positions").select_option("all")
    expect(card.locator(".apart-note")).to_be_hidden()


def test_it_can_be_stopped_and_another_takes_its_place(slow: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    ask(page, slow, scene, two_tokens(scene, "Shall this stop?"))
    answered(page)
    card, rows = page.locator("#sweep"), page.locator("#steer .turn-row")
    # Another answer is generated before it, so that there is time to stop it.
    long = page.request.post(f"{slow}/runs", multipart={"question": "Describe it at length."}).url
    rows.first.locator(".sweep").click()
    card.get_by_role("button", name="Cancel").click()
    expect(card).to_contain_text("Cancelled; nothing was kept.")
    card.get_by_role("button", name="Sweep again").click()
    expect(card.get_by_role("button", name="Cancel")).to_be_visible()
    first = card.locator("h2").inner_text()
    rows.nth(1).locator(".sweep").click()
    expect(card.locator("h2")).not_to_have_text(first)
    page.request.post(f"{long}/cancel")
    expect(card.locator(".message")).to_contain_text("13 answers in one batch, ")
    page.locator("#steer-add").fill("text.1.2")
    page.locator("#steer-add").press("Enter")
    number = page.locator("#steer .turn-row.neuron")
    number.locator("select").select_option("set")
    expect(number.locator(".sweep")).to_be_hidden()
    number.locator("[type=number]").fill("2")
    number.locator("[type=number]").press("Enter")
    expect(page.locator("#steered .sub")).to_contain_text("text.1.2 = 2")
    expect(card.locator("h2")).not_to_have_text(first)


def test_without_scripts_it_is_a_form(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page(java_script_enabled=False)
    ask(page, quick, scene, "And a sweep without scripts?")
    page.locator("#steer .sweep").first.click(timeout=20_000)
    table = page.locator("#sweep table:visible", has=page.locator("th button"))
    expect(table.locator("tbody tr")).to_have_count(13, timeout=20_000)
    assert page.locator("#sweep .plot:visible").count() == 0
    table.get_by_role("button", name="−2").click()
    expect(page.locator("#steered .sub")).to_contain_text("λ −2", timeout=20_000)
    expect(page.locator("#sweep tr[aria-current]:visible")).to_have_attribute("data-at", "-2")
