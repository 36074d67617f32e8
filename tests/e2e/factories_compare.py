"""Contexts of the pages that lay two states side by side, filled with plausible values."""

import math
from typing import Any

from app import contexts as c
from tests.e2e.factories import RUN_LINES, SIZE, STATE, choice, heat_cells, membership, picture_uri, replaced, shell

HERE = "/compare?a=7f3a9c&b=81b2d4"
XSS = "<img src=x onerror=alert(1)>"


def compared(letter: str, **changes: Any) -> c.ComparedView:
    view = c.ComparedView(
        letter=letter, href=STATE, question="What is on the left?", answer="a traffic light", steering="",
        target="“traffic light”, 2 of 3 tokens", value="log-probability −0.10", method="gradient", model="",
        state="done", message="", waiting=False, src=picture_uri(), width=SIZE, height=SIZE, cells=heat_cells(),
        caption="The neurons that carried “traffic light”, each by its degree.", scale="",
    )  # fmt: skip
    return replaced(view, changes)


def place(score: float, rank: int) -> c.PlaceView:
    sign = "against" if score < 0 else "for"
    return c.PlaceView(f"{score:+.3f}".replace("-", "−"), min(1.0, abs(score)), sign, str(rank))


def carried(number: int) -> c.CarriedRow:
    name = f"text.{number * 7 % 6}.{number * 211 % 768}"
    a, b = math.sin(number), math.cos(3 * number)
    belongs = (membership("traffic light", 0.97), membership(XSS, 0.41))[: number % 3]
    return c.CarriedRow(
        name, place(a, number), place(b, number * 97), belongs, f"{HERE}&heat={name}", number == 2, STATE, STATE
    )


def compare_page(**changes: Any) -> c.ComparePage:
    groups = (
        c.CarriedGroup("both", "Carried both: 7", tuple(map(carried, range(1, 8))), ""),
        c.CarriedGroup("only_a", "Only A: 13", tuple(map(carried, range(8, 21))), ""),
        c.CarriedGroup("only_b", "Only B: 0", (), "Every one of B’s strongest neurons is among A’s."),
    )
    concepts = tuple(
        c.LikeRow(name, f"{0.6 / n:.2f}", 1 / n, f"{0.1 * n:.2f}", n / 5, HERE, n == 1)
        for n, name in enumerate(("traffic light", "penguin", "a concept of many words", XSS), start=1)
    )
    page = c.ComparePage(
        shell=shell(title="Compare", active="runs"), a=compared("A"), b=compared("B", answer="a tower"), waiting=False,
        url=HERE, swap=HERE, other="/compare?a=7f3a9c", export=HERE, notes=(),
        heats=(choice("what carried it", True), choice("traffic light"), choice("all neurons")), switch=(),
        layers=(choice("layer 0", value="layer:0"), choice("layer 1", value="layer:1")), hidden=(("a", "7f3a9c"),),
        scale="0.084", ends=("against", "for"), scale_note="",
        scales=(choice("one scale", True), choice("each its own")), unit="10⁻³",
        tops=(choice("top 20", True, "20"), choice("top 50", value="50")), groups=groups,
        figures=(("shared", "7 of 20", "the same"), ("Jaccard", "0.21", ""), ("similarity", "0.17", "")),
        concepts=concepts, no_neurons="",
    )  # fmt: skip
    return replaced(page, changes)


COMPARED = (
    compare_page(),
    compare_page(
        waiting=True, groups=(), figures=(), concepts=(), scale="", scales=(),
        b=compared("B", waiting=True, state="running", answer="", target="", value="", cells=(), message="It follows."),
    ),
    compare_page(
        notes=("The sides were answered by different models.",), groups=(), figures=(), unit="",
        no_neurons="These models do not share their neurons.", scale="", scales=(),
        scale_note="each side has its own scale", switch=(choice("contribution", True), choice("activation")),
        a=compared("A", src="", cells=(), model="builtin, 0123abcd, cpu, float32", steering="traffic light λ −1"),
        b=compared("B", question=XSS, answer=" ".join(["polar bear"] * 16), scale="0.2", message="Out of memory."),
    ),
)  # fmt: skip


def choose_page(**changes: Any) -> c.ChoosePage:
    side = c.ChosenView(
        "A", STATE, picture_uri(), "What is on the left?", "a traffic light", "traffic light λ −1",
        "“traffic light”, the whole answer", "gradient", "/compare",
    )  # fmt: skip
    page = c.ChoosePage(
        shell=shell(title="Compare", active="runs"),
        fields=(c.AddressField("b", "B: address of the other run’s page", XSS, f"“{XSS}” is not an address."),),
        hidden=(("a", "7f3a9c"),), chosen=(side,), error="3 runs are ticked.",
        suggestions=(choice("“light”, 1 of 2 tokens, by gradient"),), recent=RUN_LINES, recent_title="Other runs",
    )  # fmt: skip
    return replaced(page, changes)


CHOOSING = (
    choose_page(),
    choose_page(
        fields=(c.AddressField("a", "A", "", ""), c.AddressField("b", "B", "", "")), hidden=(), chosen=(), error="",
        suggestions=(), recent=(), recent_title="Recent runs",
    ),
)  # fmt: skip
