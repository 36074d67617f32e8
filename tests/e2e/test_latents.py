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
    name = third.locator("th [data-latent]").get_attribute("title") or ""
    third.get_by_role("link", name="Draw").press("Enter")
    expect(card.locator("tr[aria-current] th [data-latent]")).to_have_attribute("title", name)
    card.get_by_role("link", name="activation", exact=True).click()
    expect(card.locator(".drawn .caption")).to_contain_text(f"Activation of {name}")
    assert "latent=activation" in page.url
    page.reload()
    expect(card.locator(".drawn .caption")).to_contain_text(f"Activation of {name}")

    card.locator("tr[aria-current] th [data-latent]").click()
    expect(page.locator("h1")).to_contain_text(name)
    expect(page.locator("#looked .lens-list").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.locator(".latent-runs a", has_text=f"Which latents matter at {viewport['width']}?").click()
    expect(card.locator(".drawn .caption")).to_contain_text(f"Signed influence of {name}")


def test_without_scripts_it_is_a_form(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page(java_script_enabled=False)
    ask(page, quick, scene, "And latents without scripts?")
    page.locator("#latents").get_by_role("button", name="Rank latents").click(timeout=20_000)
    expect(page.locator("#latents .ranked-latents").first).to_be_visible(timeout=20_000)
    page.locator("#latents").get_by_role("link", name="activation", exact=True).click()
    expect(page.locator("#latents .drawn .caption")).to_contain_text("Activation of sae.")


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_latent_is_checked_surveyed_and_named(
    quick: str, open_page: OpenPage, scene: Path, viewport: dict[str, int]
) -> None:
    page = open_page(viewport=viewport)
    page.add_init_script(SHIFTS)
    width = viewport["width"]
    for k in range(2):
        ask(page, quick, scene, f"What is it, {k} at {width}?")
        answered(page)
        card = page.locator("#latents")
        card.get_by_role("button", name="Rank latents").click()
        expect(card.locator(".verdict")).to_contain_text("latents that fire most")
    card.get_by_role("button", name="by exact ablation").click()
    expect(card.locator(".exact")).to_contain_text("Spearman’s ρ")
    expect(card.get_by_role("columnheader", name="exact loss").first).to_be_visible()
    card.locator(".ranked-latents tbody th [data-latent]").first.click()

    expect(page.locator("#looked .lens-list").first).to_be_visible()
    page.get_by_role("button", name="Survey ").click()
    expect(page.locator("#seen .seen-pictures rect").first).to_be_attached(timeout=20_000)
    page.locator("#seen .plot").scroll_into_view_if_needed()
    expect(page.locator("#seen .plot.drawn")).to_be_visible()
    page.get_by_label("Label").fill(f"shiny at {width}")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("h1 .called")).to_have_text(f"shiny at {width}")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.locator(".latent-runs a", has_text=f"1 at {width}?").click()
    expect(page.locator("#latents .ranked-latents").first).to_contain_text(f"shiny at {width}")


def test_without_scripts_the_first_latents_are_ablated(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page(java_script_enabled=False)
    ask(page, quick, scene, "And an ablation without scripts?")
    card = page.locator("#latents")
    card.get_by_role("button", name="Rank latents").click(timeout=20_000)
    card.get_by_role("button", name="by exact ablation").click(timeout=20_000)
    expect(card.locator(".exact")).to_contain_text("Spearman’s ρ", timeout=20_000)
