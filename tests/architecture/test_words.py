"""The documents say what the code does: terms are used, errors and commands are described, documents exist."""

import argparse
import re

import engine.contract
import engine.errors
from tests.architecture import rules
from tests.support import ROOT


def text_of(*globs: str) -> str:
    return "\n".join(path.read_text() for pattern in globs for path in sorted(ROOT.glob(pattern)))


CODE = ("app/**/*.py", "engine/**/*.py", "templates/**/*.html", "static/js/**/*.js")


def test_every_term_is_used() -> None:
    terms = rules.defined_terms((ROOT / "TERMINOLOGY.md").read_text())
    assert len(terms) > 80
    unused = rules.unused_terms(terms, text_of(*CODE, "README.md", "ARCHITECTURE.md"))
    assert not unused


def test_no_term_is_defined_twice() -> None:
    terms = rules.defined_terms((ROOT / "TERMINOLOGY.md").read_text().split("\n## Symbols")[0])
    assert sorted(set(terms)) == sorted(terms)


def test_every_error_of_the_engine_is_described() -> None:
    errors = [
        name
        for name, value in vars(engine.contract).items()
        if isinstance(value, type) and issubclass(value, engine.contract.EngineError)
    ]
    assert len(errors) > 5
    architecture = (ROOT / "ARCHITECTURE.md").read_text()
    tree = engine.errors.__doc__ or ""
    assert not [name for name in errors if f"`{name}`" not in architecture]
    assert not [name for name in errors if name not in tree]


def test_every_document_that_is_named_exists() -> None:
    tracked = rules.tracked_files()
    known = {path.name for path in tracked if path.suffix == ".md"}
    offences = []
    for path in tracked:
        if "vendor" in path.parts or path.parent.name == "architecture":
            continue
        offences += [
            f"{path.relative_to(ROOT)}: {lost}" for lost in rules.lost_documents(rules.read_text(path) or "", known)
        ]
    assert not offences


def test_links_between_documents_lead_somewhere() -> None:
    lost = [
        f"{document.name}: {link}"
        for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
        if "://" not in link and not (document.parent / link).exists()
    ]
    assert not lost


def test_readme_shows_every_make_target() -> None:
    targets = re.findall(r"^([a-z]+):.*?## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(targets) > 8
    readme = (ROOT / "README.md").read_text()
    assert not [target for target in targets if f"make {target}" not in readme]


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The subcommands of a parser, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def test_readme_shows_every_command_and_option() -> None:
    from app.cli import _parser

    readme = (ROOT / "README.md").read_text()
    found = commands(_parser())
    assert found
    for name, command in found.items():
        assert f"sfumato {name}" in readme, f"README.md does not mention `sfumato {name}`"
        options = {option for action in command._actions for option in action.option_strings if option.startswith("--")}
        missing = sorted(option for option in options - {"--help"} if option not in readme)
        assert not missing, f"README.md does not mention {missing} of `sfumato {name}`"


def test_readme_shows_every_setting() -> None:
    from app.settings import Settings

    readme = (ROOT / "README.md").read_text()
    assert not [name for name in Settings.model_fields if f"`SFUMATO_{name.upper()}`" not in readme]
