"""Heat maps lie on the picture to the pixel: by the boxes of their patches, and by what is really painted."""

import dataclasses
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from app import contexts as c
from app.main import create_app
from app.settings import Settings
from app.tables import Run
from app.views.heat import cells
from tests.e2e import factories, gallery
from tests.e2e.conftest import served
from tests.support import ROOT

OpenPage = Callable[..., Page]


@dataclasses.dataclass(frozen=True)
class Case:
    """A picture of `width` × `height` pixels under `rows` × `cols` patches that cover `box`; `planted` = one
    patch, on the picture's plain ground."""

    width: int
    height: int
    rows: int
    cols: int
    box: tuple[float, float, float, float]
    planted: tuple[int, int]

    def edges(self, row: int, column: int) -> tuple[float, float, float, float]:
        """Of a patch, in pixels of the picture, as far as it lies on it (row and column from 0)."""
        left, top, right, bottom = self.box
        wide, high = (right - left) / self.cols, (bottom - top) / self.rows
        x, y = left + column * wide, top + row * high
        return max(x, 0), max(y, 0), min(x + wide, self.width), min(y + high, self.height)


CASES = {
    "square": Case(224, 224, 9, 9, (0, 0, 224, 224), (3, 2)),
    "wide, padded": Case(300, 100, 24, 24, (0, -100, 300, 200), (12, 5)),
    "tall, padded": Case(100, 300, 14, 14, (-100, 0, 200, 300), (5, 5)),
    "odd": Case(333, 97, 7, 11, (0, 0, 333, 97), (4, 3)),
    "wide, cropped": Case(640, 480, 24, 24, (80, 0, 560, 480), (7, 5)),
    "tall, cropped": Case(97, 333, 8, 8, (0, 118, 97, 215), (2, 2)),
    "tall, cut by its edges": Case(300, 400, 5, 5, (-30.5, -20.25, 330.5, 420.25), (0, 4)),
}


FRAME = """<!doctype html><html lang="en" class="js"><title>heat</title><link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/app.css">
<link rel="stylesheet" href="/static/run.css"><script type="module" src="/static/js/picture.js"></script>
<main><div class="run"><div class="board"><div class="column look">{}</div></div></div></main></html>"""
"""A run's page with nothing but its picture: the same styles and module, without the weight of figures."""


@pytest.fixture(scope="module")
def planted_url() -> Iterator[str]:
    """A picture card for each case, one patch opaque and all others empty; `/all` has all of them."""

    def page(request: Request) -> HTMLResponse:
        named = request.path_params["case"]
        template = gallery.environment().get_template("runs/_picture.html")
        shown = CASES.values() if named == "all" else [CASES[named]]
        return gallery.html(FRAME.format("".join(template.render(picture=card(case)) for case in shown)))

    static = Mount("/static", StaticFiles(directory=ROOT / "static"))
    with served(Starlette(routes=[Route("/{case}", page), static])) as url:
        yield url


def card(case: Case) -> c.PictureView:
    heat = np.zeros((case.rows, case.cols), np.float32)
    heat[case.planted] = 1
    size = (case.width, case.height)
    return factories.picture(
        src=factories.picture_uri(*size), width=case.width, height=case.height,
        cells=cells(heat, (case.rows, case.cols, case.box), size, 1.0),
    )  # fmt: skip


PATCHES = """frame => {
  const image = frame.querySelector("img"), box = image.getBoundingClientRect();
  const scale = Math.min(box.width / image.naturalWidth, box.height / image.naturalHeight);
  const left = box.left + (box.width - scale * image.naturalWidth) / 2;
  const top = box.top + (box.height - scale * image.naturalHeight) / 2;
  return [...frame.querySelectorAll("svg.heat rect")].map((rect) => {
    const [, row, column] = rect.querySelector("title").textContent.match(/row (\\d+), column (\\d+)/);
    const own = rect.getBBox(), screen = rect.getScreenCTM();
    const a = new DOMPoint(own.x, own.y).matrixTransform(screen);
    const b = new DOMPoint(own.x + own.width, own.y + own.height).matrixTransform(screen);
    return {row: row - 1, column: column - 1, scale, edges: [a.x - left, a.y - top, b.x - left, b.y - top]};
  });
}"""
"""Each patch's edges in CSS pixels from the corner of the picture as it is fitted into its element."""


def assert_on_the_picture(frame: Locator, case: Case) -> None:
    frame.locator("img").evaluate("image => image.decode()")
    drawn = frame.evaluate(PATCHES)
    assert len(drawn) > 4
    for patch in drawn:
        wanted = [patch["scale"] * edge for edge in case.edges(patch["row"], patch["column"])]
        off = max(abs(a - b) for a, b in zip(wanted, patch["edges"], strict=True))
        assert off < 0.75, (patch, wanted)


def painted(page: Page, frame: Locator, ratio: float) -> tuple[npt.NDArray[np.bool_], tuple[float, float]]:
    """(device pixels that the heat map covers, the place of the picture's corner among them)."""
    page.evaluate("document.documentElement.style.setProperty('--overlay', 1)")
    heat = frame.locator("svg.heat")
    heat.evaluate("svg => { for (const rect of svg.querySelectorAll('rect')) rect.style.stroke = 'none'; }")
    shots = []
    for seen in ("visible", "hidden"):
        heat.evaluate("(svg, seen) => { svg.style.visibility = seen; svg.style.transition = 'none'; }", seen)
        shots.append(np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int))
    corner = frame.evaluate(
        """frame => {
          const image = frame.querySelector("img"), box = image.getBoundingClientRect();
          const scale = Math.min(box.width / image.naturalWidth, box.height / image.naturalHeight);
          return [box.left + (box.width - scale * image.naturalWidth) / 2,
                  box.top + (box.height - scale * image.naturalHeight) / 2, scale];
        }"""
    )
    difference = np.abs(shots[0] - shots[1]).max(axis=2)
    changed = difference > max(difference.max() / 2, 40)  # at least half covered
    return changed, (corner[0] * ratio, corner[1] * ratio)


def assert_paints_its_patch(page: Page, frame: Locator, case: Case, ratio: float) -> None:
    changed, (left, top) = painted(page, frame, ratio)
    scale = frame.evaluate(PATCHES)[0]["scale"] * ratio
    x0, y0, x1, y1 = (scale * edge for edge in case.edges(*case.planted))
    rows, columns = np.nonzero(changed)
    assert len(rows), "nothing is painted"
    found = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    wanted = (left + x0, top + y0, left + x1, top + y1)
    # Boxes are snapped to CSS pixels, and edges to the nearest device pixel.
    assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) <= max(1, ratio), (found, wanted)
    assert changed.sum() > 0.9 * (x1 - x0 - 2) * (y1 - y0 - 2)


@pytest.mark.parametrize("ratio", [1, 1.25, 2])
def test_patches_lie_where_the_grid_says(planted_url: str, open_page: OpenPage, ratio: float) -> None:
    page = open_page(device_scale_factor=ratio)
    page.goto(f"{planted_url}/all")
    for width in (1440, 900, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for frame, case in zip(page.locator(".frame").all(), CASES.values(), strict=True):
            assert_on_the_picture(frame, case)


@pytest.mark.parametrize("zoom", [0.8, 1.25])
def test_the_browsers_zoom_keeps_patches_in_place(planted_url: str, open_page: OpenPage, zoom: float) -> None:
    page = open_page()
    page.goto(f"{planted_url}/all")
    page.evaluate("zoom => { document.documentElement.style.zoom = zoom; }", zoom)
    for frame, case in zip(page.locator(".frame").all(), CASES.values(), strict=True):
        assert_on_the_picture(frame, case)


@pytest.mark.parametrize("name", CASES)
def test_the_planted_patch_is_painted_on_its_pixels(planted_url: str, open_page: OpenPage, name: str) -> None:
    """Each case on another screen than the next: edges are compared on all of them above."""
    ratio, width = ((1, 1440), (2, 390), (1.25, 900))[list(CASES).index(name) % 3]
    page = open_page(device_scale_factor=ratio, viewport={"width": width, "height": 900})
    page.goto(f"{planted_url}/{name}")
    page.locator("#frame img").evaluate("image => image.decode()")
    assert_paints_its_patch(page, page.locator("#frame"), CASES[name], ratio)


@pytest.mark.parametrize("ratio", [2])
def test_the_large_picture_zooms_with_its_patches(planted_url: str, open_page: OpenPage, ratio: float) -> None:
    page = open_page(device_scale_factor=ratio)
    page.goto(f"{planted_url}/all")
    for small, case in zip(page.locator(".card .frame").all(), CASES.values(), strict=True):
        small.hover()
        small.locator("[data-zoom]").click()
        large = page.locator("dialog.large")
        frame = large.locator(".frame")
        expect(large.locator("output")).to_have_text("1×")
        assert_on_the_picture(frame, case)
        assert_paints_its_patch(page, frame, case, ratio)
        size = frame.bounding_box()
        assert size
        for factor in (2, 4, 8):
            page.keyboard.press("+")
            expect(large.locator("output")).to_have_text(f"{factor}×")
            grown = frame.bounding_box()
            assert grown
            assert grown["width"] == pytest.approx(factor * size["width"], abs=1)
            assert_on_the_picture(frame, case)
        page.keyboard.press("Escape")
        expect(large).to_have_count(0)
        assert page.evaluate("document.activeElement.hasAttribute('data-zoom')")


UNDER = """([x, y]) => document.elementFromPoint(x, y).querySelector("title")?.textContent ?? """ + '""'


def test_hovering_names_the_patch_at_every_zoom(planted_url: str, open_page: OpenPage) -> None:
    page, case = open_page(), CASES["odd"]
    page.goto(f"{planted_url}/odd")
    page.locator("#frame").hover()
    page.locator("#frame [data-zoom]").click()
    large = page.locator("dialog.large")
    for button in ("", "Larger", "Larger", "Smaller"):
        if button:
            large.get_by_role("button", name=button, exact=True).click()
        pane = large.locator(".pane").bounding_box()
        image = large.locator("img").bounding_box()
        assert pane
        assert image
        x, y = pane["x"] + 0.4 * pane["width"], pane["y"] + 0.4 * pane["height"]
        column = int((x - image["x"]) / image["width"] * case.cols)
        row = int((y - image["y"]) / image["height"] * case.rows)
        assert page.evaluate(UNDER, [x, y]).startswith(f"row {row + 1}, column {column + 1}: ")


def test_the_wheel_zooms_around_the_pointer(planted_url: str, open_page: OpenPage) -> None:
    page = open_page()
    page.goto(f"{planted_url}/square")
    page.locator("#frame").hover()
    page.locator("#frame [data-zoom]").click()
    frame = page.locator("dialog.large .frame")
    box = frame.bounding_box()
    assert box
    x, y = box["x"] + 0.52 * box["width"], box["y"] + 0.4 * box["height"]
    before = page.evaluate(UNDER, [x, y])
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    expect(page.locator("dialog.large output")).to_have_text("2×")
    assert before
    assert page.evaluate(UNDER, [x, y]) == before
    page.get_by_role("button", name="Close", exact=True).click()
    expect(page.locator("dialog.large")).to_have_count(0)


MIXED = "What is 👩‍👩‍👧 漢字 مرحبا बच्चा é?"


@pytest.fixture(scope="module")
def builtin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """(the address, the services) of an app on the built-in model."""
    app = create_app(Settings(data_dir=tmp_path_factory.mktemp("builtin")))
    with served(app) as url:
        yield url, app.state.services


@pytest.mark.parametrize("seen", [True, False], ids=["picture", "text only"])
def test_the_text_strip_has_a_chip_for_every_token(
    builtin: tuple[str, Any], open_page: OpenPage, scene: Path, seen: bool
) -> None:
    url, services = builtin
    page = open_page()
    page.goto(url)
    if seen:
        page.set_input_files("#picture-file", scene)
    page.fill("#question", MIXED)
    page.get_by_role("button", name="Ask", exact=True).click()
    page.wait_for_url("**/runs/*", wait_until="commit", timeout=60_000)
    expect(page.locator("#status")).to_contain_text("done", timeout=120_000)
    expect(page.locator("#picture-text .scale")).to_have_count(1, timeout=60_000)
    if seen:
        page.locator("#picture-text summary").click()
    assert page.locator("#picture-text").get_attribute("open") is not None
    chips = page.locator("#picture-text .piece")
    found = chips.evaluate_all(
        "all => all.map((li) => [li.textContent.trim(), Number(li.dataset.count), li.title, li.className])"
    )
    with services.database.read() as session:
        run = session.get(Run, page.url.rsplit("/", 1)[1])
        assert run is not None
        ids = [token[1] for token in run.answer["prompt"]] + [token["id"] for token in run.answer["tokens"]]
        positions = sum(token[3] for token in run.answer["prompt"]) + len(run.answer["tokens"])
    assert [int(re.findall(r"id (\d+)", about)[0]) for _, _, about, _ in found] == ids
    assert sum(count for _, count, _, _ in found) == positions
    asked = "".join(text for text, _, _, kind in found if "question" in kind)
    joined = asked.replace("▯", "").replace("◌", "").replace("U+200D", "\u200d").replace("·", " ")
    assert joined.strip().casefold() == MIXED.casefold()
    assert ("picture × " in "".join(text for text, *_ in found)) == seen
    arabic = page.locator("#picture-text .piece > span", has_text=re.compile("[\u0600-\u06ff]")).first
    assert arabic.evaluate("span => getComputedStyle(span).direction") == "rtl"
