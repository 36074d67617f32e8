"""Every template renders from its context, escapes what strangers typed, and each fragment has its one root."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.e2e import catalogue, gallery
from tests.support import ROOT

PAGES = [(name, page) for name, pages in catalogue.PAGES.items() for page in pages]
PARTS = [(name, root, view) for name, (root, views) in catalogue.FRAGMENTS.items() for view in views]


class Roots(HTMLParser):
    """Collects the elements at the outermost level."""

    EMPTY = ("img", "input", "meta", "link", "br", "hr")

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0
        self.roots: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self.depth == 0:
            self.roots.append(dict(attrs))
        if tag not in self.EMPTY:
            self.depth += 1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element that closes itself (in SVG) holds nothing."""

    def handle_endtag(self, tag: str) -> None:
        self.depth -= 1


def test_the_factories_fill_every_template() -> None:
    written = {path.relative_to(ROOT / "templates").as_posix() for path in (ROOT / "templates").rglob("*.html")}
    filled = set(catalogue.PAGES) | set(catalogue.FRAGMENTS)
    assert written - filled == {"base.html", "_macros.html", *catalogue.PARTS}


@pytest.mark.parametrize("name", catalogue.PARTS)
def test_a_part_is_filled_by_the_pages_that_hold_it(name: str) -> None:
    others = (
        (ROOT / "templates" / other).read_text() for other in (*catalogue.PAGES, *catalogue.FRAGMENTS, *catalogue.PARTS)
    )
    assert any(f'include "{name}"' in text or f'from "{name}"' in text for text in others)


@pytest.mark.parametrize(("name", "page"), PAGES)
def test_page_renders(name: str, page: Any) -> None:
    text = gallery.environment().get_template(name).render(**gallery.fields(page))
    assert "<img src=x" not in text
    assert "<script>alert" not in text
    assert "<b>what?</b>" not in text


@pytest.mark.parametrize(("name", "root", "view"), PARTS)
def test_fragment_has_one_root(name: str, root: str, view: Any) -> None:
    text = gallery.environment().get_template(name).render(**{root: view})
    parser = Roots()
    parser.feed(text)
    assert [attributes.get("id") for attributes in parser.roots] == [root]
    assert parser.roots[0].get("sse-swap") == root
    assert parser.depth == 0
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_words_stand_out_from_their_ground(theme: int) -> None:
    """Contrast of 4.5 to 1 (WCAG AA) for every colour that words have, on every ground they stand on."""
    styles = (ROOT / "static" / "app.css").read_text()
    palette = {
        name: pair[theme]
        for name, *pair in re.findall(r"--(\w+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", styles)
    }
    for word in ("ink", "soft", "for", "against", "gold"):
        for ground in ("paper", "card"):
            light, dark = sorted((luminance(palette[word]), luminance(palette[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (word, ground)
    for ground in ("well", "tint"):
        light, dark = sorted((luminance(palette["ink"]), luminance(palette[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, ("ink", ground)
