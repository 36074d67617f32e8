"""Steering by latent in a browser: from a run's ranking into the panel, by keys, and another run's latents."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.test_journeys import NARROW, SHIFTS, answered, ask

OpenPage = Callable[..., Page]
WIDE = {"width": 1440, "height": 900}


def ranked(page: Page, url: str, scene: Path, question: str) -> None:
    """A run whose latents are ranked is open."""
    ask(page, url, scene, question)
    answered(page)
    page.locator("#latents").get_by_role("button", name="Rank latents").click()
    expect(page.locator("#latents .verdict")).to_contain_text("latents that fire most")


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_first_latent_is_steered_beside_the_default_answer(
    quick: str, open_page: OpenPage, scene: Path, viewport: dict[str, int]
) -> None:
    page = open_page(viewport=viewport)
    page.add_init_script(SHIFTS)
    ranked(page, quick, scene, f"Which latent is steered at {viewport['width']}?")
    first = page.locator("#latents .ranked-latents tbody tr").first
    link = first.locator("[data-latent]")
    name, peak = link.get_attribute("title") or "", first.locator("td.figure").last.inner_text()
    first.get_by_role("link", name="Steer").click()
    row = page.locator("#steer .turn-row.latent")
    expect(row.locator("[type=range]")).to_be_focused()
    expect(row.locator(".of a")).to_have_text(name)
    assert f"add={name}" in page.url
    row.get_by_role("switch").press("Space")
    expect(page.locator("#steered .sub")).to_contain_text(f"{name} × 0")
    expect(page.locator("#steered .said")).to_have_count(2)
    expect(page.locator("#steered .side.turned .pairs li").first).to_be_visible()
    expect(page.locator("#steered .control")).to_contain_text("random set of equal size")

    row.locator("select").select_option("set")
    expect(row.locator("output")).to_have_text("–")
    row.get_by_role("switch").press("Space")
    value = row.locator("[type=number]").input_value()
    assert float(value) == pytest.approx(float(peak), rel=0.01), "a latent is set to its peak"
    expect(page.locator("#steered .sub")).to_contain_text(f"{name} = {float(value):.4g}")
    page.reload()
    expect(row.locator("[type=number]")).to_have_value(value)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    row.get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)


def test_rows_are_reached_by_keys_and_keep_what_was_added_meanwhile(
    quick: str, open_page: OpenPage, scene: Path
) -> None:
    page = open_page()
    ranked(page, quick, scene, "Which latents by keys?")
    page.locator("#steer-add").fill("text.1.2")
    page.locator("#steer-add").press("Enter")
    expect(page.locator("#steer .turn-row.neuron")).to_have_count(1)
    rows = page.locator("#latents .ranked-latents").first.locator("tbody tr")
    rows.nth(0).locator("[data-latent]").focus()
    page.keyboard.press("j")
    expect(rows.nth(1).locator("[data-latent]")).to_be_focused()
    page.keyboard.press("k")
    expect(rows.nth(0).locator("[data-latent]")).to_be_focused()
    rows.nth(1).get_by_role("link", name="Steer").press("Enter")
    expect(page.locator("#steer .turn-row.latent")).to_have_count(1)
    expect(page.locator("#steer .turn-row.neuron")).to_have_count(2)  # a latent's row looks like a neuron's
    row = page.locator("#steer .turn-row.latent")
    row.locator(".sweep").click()
    expect(page.locator("#sweep .message")).to_contain_text("9 answers in one batch, ")
    page.locator("#sweep summary").click()
    page.locator("#sweep").get_by_role("button", name="0.5", exact=True).click()
    expect(row.locator("output")).to_have_text("×0.5")
    expect(page.locator("#sweep tr[aria-current]:visible")).to_have_attribute("data-at", "0.5")

    row.locator("select").select_option("set")
    expect(page.locator("#sweep .apart-note")).to_be_visible()
    row.locator("[type=number]").fill("4")
    row.locator("[type=number]").press("Enter")
    row.locator(".sweep").click()
    expect(page.locator("#sweep .sub")).to_contain_text("= 0 … 8")
    expect(page.locator("#sweep .message")).to_contain_text("9 answers in one batch, ")
    page.locator("#sweep summary").click()
    expect(page.locator("#sweep tr[aria-current]:visible")).to_have_attribute("data-at", "4")
    page.locator("#sweep").get_by_role("button", name="6", exact=True).click()
    expect(row.locator("output")).to_have_text("=6")
    expect(page.locator("#steered .sub")).to_contain_text(" = 6")
    expect(page.locator("#sweep tr[aria-current]:visible")).to_have_attribute("data-at", "6")


@pytest.mark.parametrize("scripts", [True, False], ids=["htmx", "plain"])
def test_another_runs_latents_are_swapped_in(quick: str, open_page: OpenPage, scene: Path, scripts: bool) -> None:
    page = open_page()
    ranked(page, quick, scene, f"Whose latents, with {scripts}?")
    ranked(page, quick, scene, f"Into which run, with {scripts}?")
    if not scripts:
        address, page = page.url, open_page(java_script_enabled=False)
        page.goto(address)
    card = page.locator("#latents-swap")
    card.locator("summary").click()
    card.locator("label", has_text=f"Whose latents, with {scripts}?").get_by_role("radio").check()
    card.locator("[name=k]").select_option("1")
    card.get_by_role("button", name="Swap in").click()
    expect(page.locator("#steer .turn-row.latent").first).to_be_visible()
    assert page.locator("#steer .turn-row.latent").count() in (1, 2)
    expect(page.locator("#steered .sub")).to_contain_text("= ", timeout=20_000)
    expect(page.locator("#steered .side.turned .pairs li").first).to_be_visible(timeout=20_000)
    assert "steer=" in page.url
