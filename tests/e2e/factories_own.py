"""Contexts of a person's own concepts, filled with plausible values."""

import dataclasses
from typing import Any

from app import contexts as c
from tests.e2e.factories import STATE, choice, picture_uri, shell

OWN = "/concepts/own/7f3a9c"
LONG = "a word that is much longer than any word should be: " + "pneumono" * 12


def build(**changes: Any) -> c.BuildView:
    view = c.BuildView(
        state="done", live=False, headline="Built: its memberships are in the library", message="", error="",
        share=1.0, button="", action=f"{OWN}/build", cancel="", events="", public="/concepts/my%20red",
    )  # fmt: skip
    return dataclasses.replace(view, **changes)


def building() -> c.BuildView:
    return build(
        state="running", live=True, headline="12 of 36 probes built", message="12 of 36 done · about 8 s left",
        share=1 / 3, cancel=f"{OWN}/cancel", events=f"{STATE}/events", public="",
    )  # fmt: skip


def row(**changes: Any) -> c.OwnProbeRow:
    view = c.OwnProbeRow(
        picture=picture_uri(), question="What is on the left?", before="a ", says="red", after=" ball", against="",
        logprob="−0.119", outcome="right", refused="", source="probes.csv, line 2", remove=f"{OWN}/probes/1/remove",
    )  # fmt: skip
    return dataclasses.replace(view, **changes)


def probes(**changes: Any) -> c.ProbesView:
    rows = (
        row(),
        row(outcome="wrong", picture="", against="blue"),
        row(outcome="waiting", logprob="", question=LONG),
        row(outcome="refused", refused="<b>The picture is too small.</b>", logprob=""),
    )
    lines = (("probes.csv, line 9", "There is no picture 'lost.png' in the zip.", f"{OWN}/probes/9/remove"),)
    view = c.ProbesView(rows, "4 probes: 1 answered right", f"{OWN}?rows=all", lines)
    return dataclasses.replace(view, **changes)


def own_page(**changes: Any) -> c.OwnPage:
    view = c.OwnPage(
        shell=shell(title="my red", active="concepts"), url=OWN, name="my red", kind="own concept",
        forms="red, crimson", typed="red\ncrimson", expression="", build=build(), probes=probes(),
        maps=(choice("linear", True, value="linear"), choice("logistic", value="logistic")), quantile="0.98",
        modes=(choice("raw", True, value="raw"), choice("specific", value="specific")),
        contrasts=(choice("my blue", True, value="my blue"), choice(LONG[:80], value="long")),
        limits="all files together at most 20 MB",
    )  # fmt: skip
    return dataclasses.replace(view, **changes)


def new_page(**changes: Any) -> c.NewConceptPage:
    view = c.NewConceptPage(
        shell=shell(title="New concept", active="concepts"), error="", name="", kind="own", forms="", source="file",
        worlds=(("object", (choice("traffic light", True, value="traffic light"), choice("dog", value="dog"))),),
        n="24", most_drawn=200, limits="all files together at most 20 MB", pictures="PNG or JPEG",
        mine=(choice("my blue"), choice(LONG[:80], value="cannot be made")),
    )  # fmt: skip
    return dataclasses.replace(view, **changes)


def add_page(**changes: Any) -> c.AddRunPage:
    view = c.AddRunPage(
        shell=shell(title="Add a run", active="concepts"), error="", run="/runs/7f3a9c",
        action="/concepts/own/add/7f3a9c",
        picture=picture_uri(), question="What is this?", answer="traffic light", says="traffic light",
        concepts=(choice("a new concept", True), choice("my red", value="7f3a9c")), name="",
    )  # fmt: skip
    return dataclasses.replace(view, **changes)


PAGES = {
    "own/new.html": (
        new_page(),
        new_page(error="There is one already.", name="<b>my red</b>", forms="red\ncrimson", source="world"),
        new_page(worlds=(), mine=(), source="none"),
    ),
    "own/show.html": (
        own_page(),
        own_page(build=building()),
        own_page(
            build=build(state="failed", error="The numbers broke down.", button="Build", share=0.0, public=""),
            probes=probes(rows=(), more="", lines=()), contrasts=(),
        ),
        own_page(
            expression='animal AND "my red"',
            build=build(headline="It cannot be made", error="There is no concept “my red” any more.", public=""),
        ),
    ),
    "own/delete.html": (
        c.DeletePage(shell(title="Delete"), OWN, "my red", 12, "", "", False),
        c.DeletePage(shell(title="Delete"), OWN, LONG[:80], 12, "“warm”, “hot”", f"“{LONG[:80]}”", True),
    ),
    "own/add.html": (add_page(), add_page(error="The answer does not contain it.", picture="", answer=LONG)),
}  # fmt: skip
FRAGMENTS = {
    "own/_build.html": ("build", (build(), building(), build(error="It failed.", button="Build the rest"))),
    "own/_probes.html": ("probes", (probes(), probes(rows=(), more="", lines=()))),
}
