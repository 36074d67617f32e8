"""Sparse autoencoders in a browser: attached, trained and followed without a shift, stopped and gone on with."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from app.main import create_app
from app.settings import Settings
from engine.fake import FakeEngine
from tests.app.test_saes import asked, files
from tests.e2e.conftest import Watched, served
from tests.e2e.test_journeys import NARROW, SHIFTS

OpenPage = Callable[..., Page]


@pytest.fixture
def unhurried(tmp_path: Path) -> Iterator[str]:
    """The app on the fake engine, taking a twentieth of a second for a step; an SAE and pictures lie in its folder."""
    files(tmp_path / "saes" / "one")
    asked(tmp_path / "saes" / "pictures")
    with served(create_app(Settings(model="fake", data_dir=tmp_path), lambda: FakeEngine(0.05))) as url:
        yield url


def test_one_is_attached_and_let_go(unhurried: str, watched: Watched) -> None:
    watched.expected.append("422")
    page = watched.page()
    page.goto(f"{unhurried}/saes")
    page.get_by_label("Where it is").fill("/etc/passwd")
    page.get_by_role("button", name="Attach").click()
    expect(page.locator("#attach [role=alert]")).to_contain_text("is not among what pages may open")
    expect(page.get_by_label("Where it is")).to_have_value("/etc/passwd")
    page.get_by_label("Where it is").fill("one")
    page.get_by_role("button", name="Attach").click()
    expect(page.locator(".sae").nth(1)).to_contain_text("It is attached now")
    expect(page.locator(".sae").nth(1)).to_contain_text("Tried on")
    page.get_by_role("button", name="Detach").click()
    expect(page.locator(".sae")).to_have_count(1)


def test_a_training_is_followed_stopped_and_gone_on_with(unhurried: str, open_page: OpenPage) -> None:
    page = open_page()
    page.add_init_script(SHIFTS)
    page.goto(f"{unhurried}/saes")
    page.get_by_label("number of steps").fill("60")
    page.get_by_label("Name").fill("mine")
    page.get_by_label("Folder", exact=False).last.fill("pictures")
    page.get_by_role("button", name="How long would it take?").click()
    expect(page.get_by_text("positions learnt from")).to_be_visible()
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#headline")).to_have_text("Training")
    expect(page.locator(".training .plot.drawn")).to_be_visible()
    page.evaluate("window.shifted = 0")
    expect(page.locator(".training .detail")).to_contain_text("left")
    before = page.locator("#training-curve").evaluate("script => JSON.parse(script.textContent).data[0].x.length")
    page.wait_for_function(
        "before => JSON.parse(document.getElementById('training-curve').textContent).data[0].x.length > before",
        arg=before,
    )
    assert page.evaluate("window.shifted") < 0.02
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#headline")).to_have_text("It was stopped")
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("#headline")).to_contain_text("mine is trained", timeout=20_000)
    expect(page.locator(".training .sae")).to_contain_text("Tried on")


def test_without_scripts_a_training_is_read_as_a_table(unhurried: str, open_page: OpenPage) -> None:
    page = open_page(java_script_enabled=False, viewport=NARROW)
    page.goto(f"{unhurried}/saes/plan?steps=20&source=folder&folder=pictures")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#headline")).to_contain_text("is trained", timeout=20_000)  # the page asks again by itself
    expect(page.locator(".curve tbody tr").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
