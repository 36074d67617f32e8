"""Every template compiles, none holds what the CSP refuses, and vendored files are the published ones."""

import pathlib
import re

import jinja2
import jinja2.meta
import pytest

from tests.architecture import rules
from tests.support import ROOT

TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
VENDOR = ROOT / "static" / "vendor"


def name(path: pathlib.Path) -> str:
    return path.relative_to(ROOT / "templates").as_posix()


def environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(ROOT / "templates")
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)


def test_there_are_templates() -> None:
    assert TEMPLATES


@pytest.mark.parametrize("path", TEMPLATES, ids=name)
def test_every_template_compiles_and_finds_what_it_includes(path: pathlib.Path) -> None:
    jinja = environment()
    jinja.get_template(name(path))
    tree = jinja.parse(path.read_text())
    for found in jinja2.meta.find_referenced_templates(tree):
        if found is not None:
            jinja.get_template(found)


@pytest.mark.parametrize("path", TEMPLATES, ids=name)
def test_no_template_holds_inline_code(path: pathlib.Path) -> None:
    offences = rules.inline_code(path.read_text())
    assert not offences


@pytest.mark.parametrize("path", TEMPLATES, ids=name)
def test_nothing_is_marked_safe_by_hand(path: pathlib.Path) -> None:
    """Questions and names come from strangers: what a template prints is escaped, whatever it is."""
    assert not re.findall(r"\|\s*safe\b|autoescape\s+false", path.read_text())


def test_every_vendored_file_is_the_published_one() -> None:
    assert not rules.vendored(VENDOR)


def test_every_vendored_library_stands_in_notice() -> None:
    notice = (ROOT / "NOTICE").read_text()
    missing = [
        entry["package"]
        for entry in rules.vendor_entries(VENDOR)
        if f"{entry['package']} {entry['version']}" not in notice
    ]
    assert not missing
