"""Comparing in a browser, on the fake engine."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.e2e.conftest import Watched
from tests.e2e.test_journeys import NARROW, SHIFTS, answered, ask

OpenPage = Callable[..., Page]


def test_tick_two_runs_and_look_around(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    for question in ("What is compared here?", "Describe what is compared."):
        ask(page, quick, scene, question)
        answered(page)
    page.goto(f"{quick}/runs")
    for question in ("What is compared here?", "Describe what is compared."):
        page.get_by_role("checkbox", name=f"Compare: {question}").check()
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator(".compared")).to_have_count(2)
    expect(page.locator(".compared svg.heat rect").first).to_be_attached()
    first = page.locator(".carried tbody .name a").first
    name = first.inner_text()
    first.click()
    expect(page.locator(".carried tr.selected .name")).to_have_text(name)
    expect(page.locator(".heat-bar [aria-label='Of the neuron'] a")).to_have_count(2)
    assert f"heat=neuron%3A{name}" in page.url
    page.select_option("#compare-layer", "layer:2")
    expect(page.locator(".compared .caption").first).to_contain_text("layer 2")
    expect(page.locator(".compared .caption").last).to_contain_text("layer 2")
    before = page.locator(".compared h2").first.inner_text()
    page.get_by_role("link", name="swap").click()
    expect(page.locator(".compared h2").last).to_have_text(before.replace("A", "B", 1))
    page.go_back()
    expect(page.locator(".compared h2").first).to_have_text(before)
    expect(page.locator("#compare-layer")).to_have_value("layer:2")


def test_from_a_runs_page_with_its_state(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    ask(page, quick, scene, "Describe the whole scene.")
    answered(page)
    page.get_by_role("link", name="all neurons").click()
    expect(page.locator("#picture figcaption > .caption")).to_contain_text("Net contribution")
    page.get_by_role("link", name="compare", exact=True).click()
    run = page.url.partition("runs%2F")[2].partition("%3F")[0]
    page.fill("#address-b", f"{run}?method=integrated")
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator(".heat-bar strong")).to_have_text("each side has its own scale")
    expect(page.locator(".compared .caption").first).to_contain_text("Net contribution")


def test_a_comparison_fills_without_a_jump(slow: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page(viewport=NARROW)
    ask(page, slow, scene, "What is this one?")
    answered(page)
    run = page.url.rsplit("/", 1)[1]
    page.add_init_script(SHIFTS)
    page.goto(f"{slow}/compare?a={run}&b={run}%3Fmethod%3Dpan")
    expect(page.locator("#compare[aria-busy=true] .skeleton").first).to_be_visible()
    expect(page.locator("#compare[aria-busy=false] .overlap")).to_be_visible()
    assert page.evaluate("window.shifted") < 0.05
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_comparing_without_scripts(quick: str, watched: Watched, scene: Path) -> None:
    watched.expected.append("422")
    page = watched.page(java_script_enabled=False)
    page.goto(quick)
    page.set_input_files("#picture-file", scene)
    page.fill("#question", "Describe it without scripts.")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#neurons tbody tr").first).to_be_visible()
    page.get_by_role("link", name="compare", exact=True).click()
    page.fill("#address-b", "nonsense!")
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator("#address-b-error")).to_contain_text("is not the address of a run’s page")
