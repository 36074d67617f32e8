"""The pages in a browser, filled by the factories: they fit, they are quiet, and the heat map lies on its picture."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.e2e import catalogue
from tests.e2e.test_journeys import answered, ask

OpenPage = Callable[..., Page]
PAGES = [
    f"/{name}?n={n}" for name, pages in catalogue.PAGES.items() for n in range(len(pages)) if not name.startswith("_")
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_its_window(gallery_url: str, open_page: OpenPage, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    for path in PAGES[:: 1 if scheme == "light" else 3]:
        page.goto(gallery_url + path, wait_until="domcontentloaded")
        for width in (1440, 1000, 390, 320):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (path, width)


ALIGNED = """() => {
  const image = document.querySelector("#frame img").getBoundingClientRect();
  const heat = document.querySelector("#frame svg.heat");
  const box = heat.viewBox.baseVal;
  const corner = (x, y) => new DOMPoint(x, y).matrixTransform(heat.getScreenCTM());
  const scale = Math.min(image.width / box.width, image.height / box.height);
  const left = image.left + (image.width - scale * box.width) / 2;
  const top = image.top + (image.height - scale * box.height) / 2;
  const [a, b] = [corner(0, 0), corner(box.width, box.height)];
  return [a.x - left, a.y - top, b.x - (left + scale * box.width), b.y - (top + scale * box.height)];
}"""
"""Where the heat map's corners are, less where the fitted picture's are, in CSS pixels."""


@pytest.mark.parametrize(("wide", "high"), [(224, 224), (300, 100), (100, 300)])
def test_the_heat_map_lies_on_the_picture(gallery_url: str, open_page: OpenPage, wide: int, high: int) -> None:
    page = open_page()
    page.goto(f"{gallery_url}/picture/{wide}/{high}")
    page.locator("#frame img").wait_for()
    for width in (1440, 1023, 800, 640, 390, 320):
        page.set_viewport_size({"width": width, "height": 900})
        off = page.evaluate(ALIGNED)
        assert max(map(abs, off)) < 0.5, (width, off)


def test_figures_are_drawn_when_seen_and_follow_the_theme(gallery_url: str, open_page: OpenPage) -> None:
    page = open_page()
    page.goto(f"{gallery_url}/concepts/show.html")
    bar = page.locator(".plot .bars path, .plot .points path").first
    bar.wait_for()
    light = bar.evaluate("element => getComputedStyle(element).fill")
    page.get_by_role("button", name="Dark or light theme").click()
    now = "getComputedStyle(document.querySelector('.plot .points path')).fill"
    page.wait_for_function(f"light => {now} !== light", arg=light)


@pytest.mark.parametrize("width", [1400, 390])
def test_a_long_steered_answer_wraps_while_it_streams(gallery_url: str, open_page: OpenPage, width: int) -> None:
    page = open_page(viewport={"width": width, "height": 900})
    page.goto(f"{gallery_url}/runs/show.html?n=2")
    assert page.locator("#steered .versus").get_attribute("aria-busy") == "true"
    for said in page.locator("#steered .said").all():
        assert said.evaluate("element => element.scrollWidth - element.clientWidth") <= 0
        box, side = said.bounding_box(), page.locator("#steered").bounding_box()
        assert box
        assert side
        assert box["height"] > 60
        assert box["x"] + box["width"] <= side["x"] + side["width"]
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


LINES = """element => {
  const range = document.createRange();
  range.selectNodeContents(element);
  return range.getClientRects().length;
}"""


@pytest.mark.parametrize("width", [1440, 390])
def test_a_multiplier_stays_on_one_line(gallery_url: str, open_page: OpenPage, width: int) -> None:
    page = open_page(viewport={"width": width, "height": 900})
    page.goto(f"{gallery_url}/runs/show.html")
    page.locator("#steer .turn-row input[type=range]").first.fill("-2")
    output = page.locator("#steer .turn-row output").first
    assert output.inner_text() == "×−1.0"
    assert output.evaluate("element => element.scrollWidth - element.clientWidth") <= 0
    assert output.evaluate(LINES) == 1


@pytest.mark.parametrize("width", [1440, 1280, 1024, 390, 320])
def test_rows_of_the_steering_panel_fit_into_it(gallery_url: str, open_page: OpenPage, width: int) -> None:
    page = open_page(viewport={"width": width, "height": 900})
    page.goto(f"{gallery_url}/runs/show.html")
    for inside in ("#steer-scroll", "#steer .turn-row .of"):
        wide = page.locator(inside).first.evaluate("element => element.scrollWidth - element.clientWidth")
        assert wide <= 0, (inside, wide)


def test_in_a_narrow_window_no_neuron_overlaps_its_bar(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page(viewport={"width": 390, "height": 900})
    ask(page, quick, scene, "Does a neuron overlap its bar?")
    answered(page)
    for row in page.locator(".neurons-card tbody tr").all()[:5]:
        about, bar = row.locator(".about").bounding_box(), row.locator(".bar-cell").bounding_box()
        assert about
        assert bar
        assert about["x"] + about["width"] <= bar["x"]
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_in_a_narrow_window_commands_wrap(gallery_url: str, open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 390, "height": 900})
    page.goto(f"{gallery_url}/evaluation/show.html")
    command = page.locator("pre").last
    assert command.evaluate("element => element.scrollWidth - element.clientWidth") <= 0


def test_tables_stand_where_figures_cannot_be_drawn(gallery_url: str, open_page: OpenPage) -> None:
    page = open_page(java_script_enabled=False)
    for path, card, tables in (
        ("/runs/show.html", "#where", 1),
        ("/concepts/show.html", "[aria-labelledby=layers-title]", 2),
    ):
        page.goto(gallery_url + path)
        assert page.locator(f"{card} table:visible").count() == tables
        assert page.locator(f"{card} .plot:visible").count() == 0


def test_a_run_prints_whole_and_light(gallery_url: str, open_page: OpenPage) -> None:
    page = open_page(color_scheme="dark", viewport={"width": 720, "height": 1000})
    page.goto(f"{gallery_url}/runs/show.html")
    page.get_by_role("button", name="Dark or light theme").click()
    page.get_by_role("button", name="Dark or light theme").click()
    page.emulate_media(media="print")
    ground = page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor")
    assert min(map(int, ground[4:-1].split(","))) > 240
    for control in ("header.top nav", "form.filters", "#steer input", "#steer-add", "[data-zoom]", "#neurons .add"):
        assert page.locator(f"{control}:visible").count() == 0, control
    for scroll in page.locator(".scroll").all():
        assert scroll.evaluate("element => element.scrollHeight - element.clientHeight") <= 1
    assert len({round(page.locator(f"#{card}").bounding_box()["x"]) for card in ("answer", "neurons", "steered")}) == 1  # type: ignore[index]
