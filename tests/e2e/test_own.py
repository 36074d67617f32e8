"""Making an own concept in a browser: a file, its bad lines, building that streams, stops and goes on; a run added."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e import room
from tests.e2e.conftest import Watched
from tests.e2e.test_journeys import NARROW, SHIFTS, answered, ask

OpenPage = Callable[..., Page]


def table(folder: Path, n: int) -> Path:
    """`n` good lines and a bad one."""
    path = folder / "probes.csv"
    lines = [f"Which colour has thing {k}?,a red thing" for k in range(n)]
    path.write_text("\n".join(("question,answer", *lines, "Which colour?,nothing of the sort", "")))
    return path


def fill(page: Page, address: str, name: str, path: Path) -> None:
    page.goto(f"{address}/concepts")
    page.get_by_role("link", name="New concept").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Surface forms").fill("red")
    page.get_by_label("files of mine").check()
    page.locator("[name=table]").set_input_files(path)
    page.get_by_role("button", name="Make the concept").click()


@pytest.mark.parametrize("viewport", [{"width": 1440, "height": 900}, NARROW], ids=["wide", "narrow"])
def test_building_streams_and_keeps_its_room(
    slow: str, open_page: OpenPage, tmp_path: Path, viewport: dict[str, int]
) -> None:
    page = open_page(viewport=viewport)
    page.add_init_script(SHIFTS)
    fill(page, slow, f"my red at {viewport['width']}", table(tmp_path, 18))
    expect(page.locator("#probes .lines li")).to_contain_text("contains none of the concept's surface forms")
    expect(page.locator("#build")).to_contain_text("18 of 18 probes are not built yet")
    page.get_by_role("button", name="Build").click()
    card = page.locator("#build")
    expect(card.locator("h2")).to_have_text("8 of 18 probes built", timeout=15_000)
    expect(page.locator("#probes .sub")).to_contain_text("10 not built yet")
    expect(card).to_contain_text("left")
    with room.kept(page, card, 30, 0.05):
        expect(card.locator("h2")).to_contain_text("Built", timeout=20_000)
        expect(page.locator("#probes .outcome.waiting")).to_have_count(0)
    card.get_by_role("link", name="Its members and layers").click()
    expect(page.locator("h1")).to_contain_text("my red at")


def test_building_can_be_stopped_and_goes_on(slow: str, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page()
    fill(page, slow, "stopped", table(tmp_path, 14))
    page.get_by_role("button", name="Build").click()
    expect(page.locator("#build h2")).to_have_text("4 of 14 probes built", timeout=15_000)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#build")).to_contain_text("Cancelled; what was done is kept", timeout=15_000)
    page.get_by_role("button", name="Build the rest").click()
    expect(page.locator("#build h2")).to_contain_text("Built", timeout=20_000)


def test_without_scripts_a_run_is_added_by_forms(
    quick: str, watched: Watched, open_page: OpenPage, scene: Path
) -> None:
    watched.expected.append("422")
    scripted = open_page()
    ask(scripted, quick, scene, "What shall be added?")
    answered(scripted)
    page = open_page(java_script_enabled=False)
    page.goto(scripted.url)
    page.get_by_role("link", name="Add to a concept").click()
    page.get_by_label("Name of the new one").fill("red")
    page.get_by_role("button", name="Add and build").click()
    expect(page.locator("#error")).to_contain_text("The library has a concept “red” already")
    page.get_by_label("Name of the new one").fill("what was added")
    page.get_by_role("button", name="Add and build").click()
    expect(page.locator("h1")).to_have_text("what was added")
    expect(page.locator("#build h2")).to_contain_text("Built", timeout=20_000)
    page.get_by_role("link", name="delete").click()
    page.get_by_role("button", name="Delete").click()
    expect(page.locator("h1")).to_have_text("Concepts")
