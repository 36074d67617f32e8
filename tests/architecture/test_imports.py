"""Who may know whom, seen from a running process; the contracts of `[tool.importlinter]` run in test_tools.py."""

import ast
import subprocess
import sys

import pytest

from tests.architecture import rules
from tests.support import ROOT

HEAVY = ("torch", "transformers", "accelerate", "safetensors")


def heavy_after(code: str) -> set[str]:
    """The heavy libraries that a fresh process holds after running `code`."""
    tail = f"\nimport sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code + tail], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_the_measurement_sees_torch() -> None:
    assert "torch" in heavy_after("import torch")


@pytest.mark.parametrize("module", ["engine.contract", "engine.fake", "engine.concepts.fuzzy", "app.main", "app.cli"])
def test_importing_it_leaves_torch_out(module: str) -> None:
    assert not heavy_after(f"import {module}")


def test_the_app_over_the_fake_engine_leaves_torch_out() -> None:
    code = """
import pathlib, tempfile
from fastapi.testclient import TestClient
from app.main import create_app
from app.settings import Settings
from engine.fake import FakeEngine
with tempfile.TemporaryDirectory() as folder:
    settings = Settings(data_dir=pathlib.Path(folder))
    with TestClient(create_app(settings, FakeEngine), base_url="http://127.0.0.1") as client:
        assert client.get("/").status_code == 200
"""
    assert not heavy_after(code)


def test_the_app_sees_of_the_engine_its_contract_alone() -> None:
    """And main.py, the wiring point, the two engines that it can build."""
    seen = {
        (str(path.relative_to(ROOT)), node.module)
        for path in rules.python_files("app")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "engine"
    }
    others = {(file, module) for file, module in seen if module != "engine.contract"}
    assert others == {("app/main.py", "engine.fake"), ("app/main.py", "engine.local")}
    assert not [path for path in rules.python_files("app") if "import engine" in path.read_text()]
