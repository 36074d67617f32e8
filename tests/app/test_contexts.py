"""What templates use is what contexts declare."""

import dataclasses
import re

import pytest
from jinja2 import meta, nodes

from app.contexts import TargetView
from app.rendering import FRAGMENTS, PAGES, TEMPLATES, Renderer, fragment_template

RENDERER = Renderer()
EVERY = sorted(str(path.relative_to(TEMPLATES)) for path in TEMPLATES.rglob("*.html"))
LAYOUT = {"base.html", "_macros.html"}


def used(template: str) -> set[str]:
    """Variables of a template, and of what it extends and includes."""
    source = (TEMPLATES / template).read_text("utf-8")
    tree = RENDERER.environment.parse(source)
    names = meta.find_undeclared_variables(tree) - set(RENDERER.environment.globals) - own(tree)
    for other in meta.find_referenced_templates(tree):
        if other and other != "_macros.html":
            names |= used(other)
    return names


def own(tree: nodes.Template) -> set[str]:
    """Names that a template imports, sets or defines at its top: its blocks see them."""
    names = {
        node.target.name for node in tree.body if isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name)
    }
    for node in tree.body:
        if isinstance(node, nodes.FromImport):
            names |= {name if isinstance(name, str) else name[1] for name in node.names}
        elif isinstance(node, nodes.Macro):
            names.add(node.name)
    return names


@pytest.mark.parametrize("template", sorted(PAGES))
def test_a_page_uses_only_fields_of_its_context(template: str) -> None:
    declared = {field.name for field in dataclasses.fields(PAGES[template])}
    assert used(template) <= declared


@pytest.mark.parametrize("name", sorted(FRAGMENTS))
def test_a_fragment_uses_its_context_and_no_other(name: str) -> None:
    assert used(fragment_template(name)) <= {name}


@pytest.mark.parametrize("name", sorted(FRAGMENTS))
def test_a_fragment_uses_only_declared_fields(name: str) -> None:
    tree = RENDERER.environment.parse((TEMPLATES / fragment_template(name)).read_text("utf-8"))
    fields = {field.name for field in dataclasses.fields(FRAGMENTS[name])}
    read = {
        node.attr
        for node in tree.find_all(nodes.Getattr)
        if isinstance(node.node, nodes.Name) and node.node.name == name
    }
    assert read <= fields
    assert read, "it shows something"


def test_an_answers_target_uses_only_declared_fields() -> None:
    tree = RENDERER.environment.parse((TEMPLATES / "runs" / "_answer.html").read_text("utf-8"))
    read = {
        node.attr
        for node in tree.find_all(nodes.Getattr)
        if isinstance(node.node, nodes.Name) and node.node.name == "target"
    }
    assert read == {field.name for field in dataclasses.fields(TargetView)}


def test_every_template_is_a_page_a_fragment_or_the_frame() -> None:
    known = set(PAGES) | {fragment_template(name) for name in FRAGMENTS} | LAYOUT
    for _ in range(3):  # and what they include
        for name in list(known):
            tree = RENDERER.environment.parse((TEMPLATES / name).read_text("utf-8"))
            known |= {other for other in meta.find_referenced_templates(tree) if other}
    assert set(EVERY) == known


@pytest.mark.parametrize("name", sorted(FRAGMENTS))
def test_a_fragment_has_one_root_with_its_name(name: str) -> None:
    source = (TEMPLATES / fragment_template(name)).read_text("utf-8")
    markup = re.sub(r"\{#.*?#\}|\{%-? *macro.*?endmacro *-?%\}", "", source, flags=re.DOTALL)
    first = re.search(r"<(\w+)[^>]*?\bid=\"(\w+)\"", markup)
    assert first
    assert first[2] == name
    assert markup.rstrip().endswith(f"</{first[1]}>")


def test_templates_do_not_switch_escaping_off() -> None:
    for template in EVERY:
        source = (TEMPLATES / template).read_text("utf-8")
        assert "safe" not in re.findall(r"\|\s*(\w+)", source)
        assert "autoescape" not in source
