"""The checkers behind the tests in this folder: each takes text or a folder and returns the offences in words.

They are functions of what they are given, so that test_rules_bite.py can show each one a violation.
"""

import ast
import hashlib
import json
import pathlib
import re
import subprocess
from collections.abc import Iterable, Iterator

from tests.support import ROOT

MAX_LINES = 400

HOOK_METHODS = re.compile(r"register_\w*hook\w*$")

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError|placeholder text|dummy|lorem ipsum|for now)\b")

# A folder of somebody's machine (of a person, of root, of a build), or the host of a package registry.
MACHINE = re.compile(r"(?:^|[^\w.])/(?:home|root|work|farm|Users)/|https?://[^\s)\"']*(?:pypi|npmjs|debian)[^\s)\"']*")

VENDOR_FIELDS = ("name", "package", "version", "licence", "file", "licence_file", "sha256")

INLINE = (
    (re.compile(r"<[^>]*\sstyle\s*=", re.IGNORECASE), "a style attribute"),
    (re.compile(r"<style\b", re.IGNORECASE), "a style element"),
    (re.compile(r"<[^>]*\son[a-z]+\s*=", re.IGNORECASE), "an event attribute"),
    (re.compile(r"<[^>]*\shx-on[:a-z-]*\s*=", re.IGNORECASE), "an hx-on attribute"),
    (re.compile(r"javascript:|[\"']js:", re.IGNORECASE), "script in an attribute"),
    # A script element may load a file of ours or carry data for one; it may not carry code.
    (re.compile(r"<script\b(?![^>]*(?:\ssrc\s*=|type=\"application/json\"))", re.IGNORECASE), "an inline script"),
)


def python_files(*folders: str) -> list[pathlib.Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def tracked_files() -> list[pathlib.Path]:
    """What git tracks or would add; in an unpacked archive without git, every file outside .venv."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if ".venv" not in path.parts and "__pycache__" not in path.parts]
    return sorted(path for path in set(paths) if path.is_file())


def read_text(path: pathlib.Path) -> str | None:
    """The file's text, or None for a binary file."""
    data = path.read_bytes()
    if b"\0" in data[:8192]:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, str]]:
    for match in pattern.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, " ".join(match.group().split())[:60]


def too_long(text: str, limit: int = MAX_LINES) -> list[str]:
    lines = text.count("\n")
    return [f"{lines} lines, where {limit} are allowed: split it by purpose"] if lines > limit else []


def hook_registrations(source: str) -> list[str]:
    """Uses of torch's `register_*hook` methods and functions, under whatever object, called or handed on."""
    return [
        f"line {node.lineno}: {node.attr}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and HOOK_METHODS.match(node.attr)
    ]


def unfinished(text: str) -> list[str]:
    return [f"line {line}: {words}" for line, words in _matches(UNFINISHED, text)]


def machine_paths(text: str) -> list[str]:
    return [f"line {line}: {words}" for line, words in _matches(MACHINE, text)]


def inline_code(template: str) -> list[str]:
    """What the Content-Security-Policy would refuse in a page made from this template."""
    bare = re.sub(r"\{#.*?#\}", "", template, flags=re.DOTALL)  # Jinja comments never reach a page
    # Jinja expressions may hold `>`; blank them so that a tag's end is a tag's end.
    bare = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", lambda found: re.sub(r"[<>]", " ", found.group()), bare, flags=re.DOTALL)
    return [f"line {line}: {name}: {words}" for pattern, name in INLINE for line, words in _matches(pattern, bare)]


def future_annotations(source: str) -> list[str]:
    return [
        f"line {node.lineno}: from __future__ import annotations"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ]


def vendor_entries(folder: pathlib.Path) -> list[dict[str, str]]:
    entries: list[dict[str, str]] = json.loads((folder / "vendor.json").read_text())
    return entries


def vendored(folder: pathlib.Path) -> list[str]:
    """Compare a folder of vendored files with its vendor.json: every file listed, every hash right, licence present."""
    entries = vendor_entries(folder)
    offences = []
    for entry in entries:
        lacking = [field for field in VENDOR_FIELDS if not entry.get(field)]
        if lacking:
            offences.append(f"{entry}: lacks {', '.join(lacking)}")
            continue
        path = folder / entry["file"]
        if not path.is_file():
            offences.append(f"{entry['file']}: listed, not there")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
            offences.append(f"{entry['file']}: its content is not what vendor.json says (changed by hand?)")
        if entry["version"] not in entry["file"]:
            offences.append(f"{entry['file']}: its name does not carry the version {entry['version']}")
        if not (folder / entry["licence_file"]).is_file():
            offences.append(f"{entry['licence_file']}: missing")
    listed = {"vendor.json"} | {entry["file"] for entry in entries} | {entry["licence_file"] for entry in entries}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return offences + [f"{name}: not in vendor.json" for name in sorted(found - listed)]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def defined_terms(terminology: str) -> list[str]:
    """The terms that TERMINOLOGY.md defines before its section "Reserved": the first cell of each table row, where
    `a / b` are two of them; in a table of symbols the second cell, the symbol's name in code."""
    terms = []
    column = 0
    for line in terminology.split("\n## Reserved", maxsplit=1)[0].splitlines():
        cells = _cells(line)
        if not cells or set("".join(cells)) <= set("-: "):
            continue
        if cells[0] in {"term", "symbol"}:
            column = 1 if cells[0] == "symbol" else 0
            continue
        terms += [term.strip(" `*_") for term in cells[column].split(" / ")]
    return terms


def unused_terms(terms: Iterable[str], corpus: str) -> list[str]:
    """Terms that nothing but their own definition uses. Plurals count, and so does any spelling of a compound."""
    flat = re.sub(r"[\s_-]+", " ", corpus).lower()
    unused = []
    for term in terms:
        words = re.escape(re.sub(r"[\s_-]+", " ", term).lower())
        words = f"{words[:-1]}(?:y|ies)" if words.endswith("y") else f"{words}(?:s|es)?"
        if not re.search(rf"(?<!\w){words}(?!\w)", flat):
            unused.append(term)
    return unused


def lost_documents(text: str, known: Iterable[str]) -> list[str]:
    """Documents that the text names (`NAME.md`) and that the repository does not have."""
    names = set(known)
    return [
        f"line {line}: {name}"
        for line, name in _matches(re.compile(r"\b[A-Z][A-Z_]+\.md\b"), text)
        if name not in names
    ]
