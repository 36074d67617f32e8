"""A card keeps its room while something arrives in it."""

import contextlib
from collections.abc import Iterator

from playwright.sync_api import Locator, Page


@contextlib.contextmanager
def kept(page: Page, card: Locator, height: float, shift: float) -> Iterator[None]:
    """Within the block the card grows or shrinks by less than `height` pixels, the page shifts by less than `shift`
    (see test_journeys.SHIFTS), and nothing is wider than the window."""
    before = card.bounding_box()
    page.evaluate("window.shifted = 0")
    yield
    after = card.bounding_box()
    assert before
    assert after
    assert abs(after["height"] - before["height"]) < height
    assert page.evaluate("window.shifted") < shift
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
