"""The tools of `make lint` and `make types` are part of the suite, so that nothing lands which they refuse."""

import pathlib
import subprocess
import sys

import pytest

from tests.support import ROOT

BIN = pathlib.Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["djlint", "--quiet", "--lint", "templates"],
        ["lint-imports", "--no-cache"],
        ["mypy"],
    ],
    ids=" ".join,
)
def test_the_tool_finds_nothing(command: list[str]) -> None:
    done = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command)} says:\n{done.stdout[-6000:]}{done.stderr[-2000:]}", pytrace=False)
