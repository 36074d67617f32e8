"""Each checker is shown a violation: a rule that cannot fail is not a rule."""

import json
import pathlib

import pytest

from tests.architecture import rules


def test_long_files_are_found() -> None:
    assert rules.too_long("x\n" * 401)
    assert not rules.too_long("x\n" * 400)


@pytest.mark.parametrize(
    "source",
    [
        "model.register_forward_hook(f)",
        "torch.nn.modules.module.register_module_forward_hook(f)",
        "keep = layer.mlp.register_forward_pre_hook",
        "tensor.register_hook(print)",
        "x.register_post_accumulate_grad_hook(f)",
    ],
)
def test_hooks_are_found(source: str) -> None:
    assert rules.hook_registrations(source)


def test_buffers_are_no_hooks() -> None:
    assert not rules.hook_registrations("self.register_buffer('mean', mean)")


@pytest.mark.parametrize("mark", ["TO" + "DO", "FIX" + "ME", "X" + "XX", "raise NotImplemented" + "Error"])
def test_unfinished_work_is_found(mark: str) -> None:
    assert rules.unfinished(f"x = 1\n# {mark}: later\n") == [f"line 2: {mark.removeprefix('raise ')}"]


@pytest.mark.parametrize(
    "text",
    [
        "path = '/" + "home/ana/models'",
        "see /" + "root/x",
        "/" + "work/main/app",
        "https://" + "pypi.org/simple",
        "https://registry." + "npmjs.org/x",
    ],
)
def test_machine_paths_and_registries_are_found(text: str) -> None:
    assert rules.machine_paths(text)


@pytest.mark.parametrize("text", ["app/work/x", "https://www.apache.org/licenses/", "/var/lib/postgresql", "~/models"])
def test_other_paths_may_stand(text: str) -> None:
    assert not rules.machine_paths(text)


@pytest.mark.parametrize(
    "template",
    [
        '<p style="color:red">',
        "<style>p{}</style>",
        '<a href="x" onclick="f()">',
        '<a href="{{ a > b }}" onclick="f()">',
        "<script>alert(1)</script>",
        '<a href="javascript:f()">',
        "<p hx-vals='js:{a: 1}'>",
        '<p hx-on:click="f()">',
        '<p\n  class="a"\n  style="x">',
    ],
)
def test_inline_code_is_found(template: str) -> None:
    assert rules.inline_code(template)


@pytest.mark.parametrize(
    "template",
    [
        '<script type="module" src="/static/js/main.js"></script>',
        '<script type="application/json" id="figure">{{ figure }}</script>',
        '{# style="x" #}<p class="style">',
        "<p>style = onclick = words</p>",
    ],
)
def test_other_markup_may_stand(template: str) -> None:
    assert not rules.inline_code(template)


def test_future_annotations_are_found() -> None:
    assert rules.future_annotations("from __future__ import annotations\n")


def test_vendored_changes_are_found(tmp_path: pathlib.Path) -> None:
    (tmp_path / "lib-1.0.js").write_text("x")
    (tmp_path / "lib.txt").write_text("licence")
    entry = {
        "name": "lib",
        "package": "lib",
        "version": "1.0",
        "licence": "MIT",
        "file": "lib-1.0.js",
        "licence_file": "lib.txt",
        "sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
    }
    (tmp_path / "vendor.json").write_text(json.dumps([entry]))
    assert not rules.vendored(tmp_path)
    (tmp_path / "other.js").write_text("y")
    assert rules.vendored(tmp_path) == ["other.js: not in vendor.json"]
    (tmp_path / "other.js").unlink()
    (tmp_path / "lib-1.0.js").write_text("x changed")
    assert "not what vendor.json says" in rules.vendored(tmp_path)[0]
    (tmp_path / "lib-1.0.js").unlink()
    assert rules.vendored(tmp_path) == ["lib-1.0.js: listed, not there"]


def test_terms_are_read_and_missed() -> None:
    table = "| term | meaning |\n|---|---|\n| **heat map** / `grid` | where |\n| unheard of | nothing |\n\n"
    symbols = "| symbol | name in code | meaning |\n|---|---|---|\n| D | d_model | size |\n"
    reserved = "\n## Reserved\n\n| term | meaning |\n|---|---|\n| later | then |\n"
    terms = rules.defined_terms(table + symbols + reserved)
    assert terms == ["heat map", "grid", "unheard of", "d_model"]
    assert rules.unused_terms(terms, "the heat_maps of a grid, d_model wide") == ["unheard of"]


def test_lost_documents_are_found() -> None:
    known = {"README.md"}
    assert rules.lost_documents("see README.md and NOWHERE" + ".md §3", known) == ["line 1: NOWHERE.md"]
