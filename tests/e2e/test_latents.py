"""Ranking a run's latents in a browser: the card fills without moving anything, another latent is drawn, its page
leads back."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.test_journeys import NARROW, SHIFTS, answered, ask

OpenPage = Callable[..., Page]
WIDE = {"width": 1440, "height": 900}


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_latents_are_ranked_drawn_and_followed(
    quick: str, open_page: OpenPage, scene: Path, viewport: dict[str, int]
) -> None:
    page = open_page(viewport=viewport)
    page.add_init_script(SHIFTS)
    ask(page, quick, scene, f"Which latents matter at {viewport['width']}?")
    answered(page)
    card = page.locator("#latents")
    card.get_by_text("Variant").click()
    card.get_by_label("quantity").select_option("probability")
    page.evaluate("window.shifted = 0")
    card.get_by_role("button", name="Rank latents").click()
    expect(card.locator(".verdict")).to_contain_text("latents that fire most")
    expect(card.locator(".sub").first).to_contain_text("probability of the whole answer")
    card.locator(".plot").scroll_into_view_if_needed()
    expect(card.locator(".plot.drawn .nsewdrag")).to_be_visible()
    assert page.evaluate("window.shifted") < 0.02
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0

    third = card.locator(".ranked-latents tbody tr").nth(2)
    name = third.locator("th").inner_text()
    third.get_by_role("link", name="Draw").press("Enter")
    expect(card.locator("tr[aria-current] th")).to_have_text(name)
    card.get_by_role("link", name="activation", exact=True).click()
    expect(card.locator(".drawn .caption")).to_contain_text(f"Activation of {name}")
    assert "latent=activation" in page.url
    page.reload()
    expect(card.locator(".drawn .caption")).to_contain_text(f"Activation of {name}")

    card.locator("tr[aria-current] th a").click()
    expect(page.locator("h1")).to_have_text(name)
    expect(page.locator("#looked .lens-list").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.locator(".latent-runs a", has_text=f"at {viewport['width']}?").click()
    expect(card.locator(".drawn .caption")).to_contain_text(f"Signed influence of {name}")


def test_without_scripts_it_is_a_form(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page(java_script_enabled=False)
    ask(page, quick, scene, "And latents without scripts?")
    page.locator("#latents").get_by_role("button", name="Rank latents").click(timeout=20_000)
    expect(page.locator("#latents .ranked-latents").first).to_be_visible(timeout=20_000)
    page.locator("#latents").get_by_role("link", name="activation", exact=True).click()
    expect(page.locator("#latents .drawn .caption")).to_contain_text("Activation of sae.")
