"""A concept is validated and its collaboration measured in a browser: it streams, keeps still, and can be stopped."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.test_journeys import NARROW, SHIFTS

OpenPage = Callable[..., Page]


@pytest.mark.slow
def test_a_validation_streams_and_keeps_still(slow: str, open_page: OpenPage) -> None:
    page = open_page()
    page.add_init_script(SHIFTS)
    page.goto(f"{slow}/concepts/bicycle")
    card = page.locator("#validation")
    card.get_by_role("button", name="Validate now").click()
    expect(card.locator("progress")).to_be_visible()
    expect(card.locator(".message")).to_contain_text("of 120 · about")
    page.evaluate("window.shifted = 0")
    expect(card.locator(".message")).to_contain_text("of 120 · about 1")
    assert page.evaluate("window.shifted") < 0.02
    expect(card.locator(".verdict")).to_contain_text("It passes.", timeout=90_000)


@pytest.mark.parametrize("viewport", [{"width": 1440, "height": 900}, NARROW], ids=["wide", "narrow"])
def test_a_concept_is_validated_and_its_collaboration_drawn(
    quick: str, open_page: OpenPage, viewport: dict[str, int]
) -> None:
    page = open_page(viewport=viewport)
    page.goto(f"{quick}/concepts/{'lemon' if viewport == NARROW else 'bicycle'}")
    card = page.locator("#validation")
    card.get_by_role("button", name="Validate now").click()
    expect(card.locator(".verdict")).to_contain_text("It passes.", timeout=20_000)
    expect(card.locator(".controls tbody tr")).to_have_count(6)
    expect(card.locator(".criteria li")).to_have_count(8)
    card.get_by_label("pairs of the first").fill("5")
    card.get_by_role("button", name="Measure collaboration").click()
    expect(card.locator("#validation-joint .verdict")).to_contain_text("they stand in for one another", timeout=20_000)
    card.locator(".plot").scroll_into_view_if_needed()
    expect(card.locator(".plot.drawn")).to_have_count(1)
    expect(card.locator(".controls tbody tr")).to_have_count(6)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.goto(f"{quick}/concepts/report")
    expect(page.locator(".every tr.is-passes")).not_to_have_count(0)
    page.locator(".every thead").get_by_role("link", name="own drop").click()
    expect(page.locator(".every tbody tr").first).to_contain_text("✓")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_it_can_be_stopped(slow: str, open_page: OpenPage) -> None:
    page = open_page()
    page.goto(f"{slow}/concepts/pizza")
    card = page.locator("#validation")
    card.get_by_role("button", name="Validate now").click()
    expect(card.locator(".message")).to_contain_text("of 120")
    card.get_by_role("button", name="Cancel").click()
    expect(card).to_contain_text("Cancelled; nothing was kept.")
    expect(card.get_by_role("button", name="Validate again")).to_be_visible()


def test_without_scripts_it_is_a_form(quick: str, open_page: OpenPage) -> None:
    page = open_page(java_script_enabled=False)
    page.goto(f"{quick}/concepts/penguin")
    page.get_by_role("button", name="Validate now").click()
    page.wait_for_timeout(1500)
    page.reload()
    expect(page.locator("#validation .verdict").first).to_contain_text("It passes.")
