"""What a source file may hold and how long it may be."""

import pathlib

import pytest

from tests.architecture import rules
from tests.support import ROOT

PYTHON = rules.python_files("app", "engine", "tests", "migrations")
PRODUCT = [
    *rules.python_files("app", "engine"),
    *sorted((ROOT / "templates").rglob("*.html")),
    *sorted((ROOT / "static" / "js").rglob("*.js")),
]


def name(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_no_file_is_over_400_lines(path: pathlib.Path) -> None:
    offences = rules.too_long(path.read_text())
    assert not offences


def test_only_engine_hooks_registers_hooks() -> None:
    users = {name(path) for path in rules.python_files("app", "engine") if rules.hook_registrations(path.read_text())}
    assert users == {"engine/hooks.py"}


@pytest.mark.parametrize("path", PRODUCT, ids=name)
def test_nothing_is_left_unfinished(path: pathlib.Path) -> None:
    offences = rules.unfinished(path.read_text())
    assert not offences


@pytest.mark.parametrize("path", rules.python_files("engine"), ids=name)
def test_engine_annotations_are_real_objects(path: pathlib.Path) -> None:
    """Annotations as strings would hide dataclass fields from whatever reads them at run time."""
    offences = rules.future_annotations(path.read_text())
    assert not offences


def test_no_tracked_file_names_a_machine_or_a_registry() -> None:
    offences = []
    for path in rules.tracked_files():
        if "vendor" in path.parts:  # other people's text, kept to the byte
            continue
        text = rules.read_text(path)
        offences += [f"{name(path)}: {offence}" for offence in rules.machine_paths(text or "")]
    assert not offences


def test_weights_and_pictures_stay_small_in_git() -> None:
    sizes = {name(path): path.stat().st_size for path in rules.tracked_files()}
    model = sum(size for path, size in sizes.items() if path.startswith("engine/builtin/model/"))
    assert model <= 50e6, f"the built-in model takes {model / 1e6:.1f} MB, where 50 are allowed"
    assert not [path for path, size in sizes.items() if size > 50e6]
