"""Measuring how far a ranking can be trusted, in a browser: it streams, it keeps its room, it can be stopped."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e import room
from tests.e2e.test_journeys import NARROW, SHIFTS, answered, ask, two_tokens

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("viewport", [{"width": 1440, "height": 900}, NARROW], ids=["wide", "narrow"])
def test_measuring_streams_and_keeps_its_room(
    slow: str, open_page: OpenPage, scene: Path, viewport: dict[str, int]
) -> None:
    page = open_page(viewport=viewport)
    page.add_init_script(SHIFTS)
    ask(page, slow, scene, two_tokens(scene, f"How far, at {viewport['width']}?"))
    answered(page)
    card = page.locator("#trust")
    card.get_by_role("button", name="Measure faithfulness").click()
    expect(card.locator("progress")).to_be_visible()
    expect(card.locator(".message")).to_contain_text("of 64 ablated runs · about")
    with room.kept(page, card, 40, 0.02):
        expect(card.locator(".verdict")).to_contain_text("exact ablation", timeout=20_000)
        expect(card.locator(".figures .plot.drawn")).to_have_count(2)
    card.locator("summary").click()
    expect(card.locator("details table:visible")).to_contain_text("ranked first")
    card.get_by_role("button", name="Measure noise band").click()
    expect(card.locator(".band")).to_have_count(2)
    expect(card.locator("details table:visible")).to_contain_text("ranked first")


def test_it_can_be_stopped_while_others_are_served(slow: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    ask(page, slow, scene, two_tokens(scene, "Shall it stop?"))
    answered(page)
    card = page.locator("#trust")
    card.get_by_role("button", name="Measure faithfulness").click()
    expect(card.locator(".message")).to_contain_text("of 64 ablated runs")
    page.locator("#steer .turn-row").first.get_by_role("switch").check()
    expect(page.locator("#steered .said.differs, #steered .said").nth(1)).not_to_be_empty()
    expect(card.locator("progress")).to_be_visible()
    card.get_by_role("button", name="Cancel").click()
    expect(card).to_contain_text("Cancelled; nothing was kept.")
    expect(card.get_by_role("button", name="Measure again")).to_be_visible()


def test_without_scripts_it_is_a_form(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page(java_script_enabled=False)
    ask(page, quick, scene, "And without scripts?")
    page.get_by_role("button", name="Measure faithfulness").click(timeout=20_000)
    expect(page.locator("#trust .verdict")).to_contain_text("exact ablation", timeout=20_000)
    assert page.locator("#trust table:visible").count() == 1
    assert page.locator("#trust .plot:visible").count() == 0
