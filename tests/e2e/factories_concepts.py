"""Contexts of the pages about concepts and of their algebra."""

import dataclasses
from typing import Any

from app import contexts as c
from tests.e2e import factories_making
from tests.e2e.factories import (
    SIZE,
    STATE,
    choice,
    heat_cells,
    membership,
    picture_uri,
    replaced,
    shell,
)

ODD = "<script>alert(1)</script>"
LAYERS = tuple(c.LayerBar(str(n), (n + 1) / 6, str(7 * n)) for n in range(6))
EXAMPLE = c.ExampleView(
    STATE,
    picture_uri(),
    SIZE,
    SIZE,
    heat_cells(SIZE, SIZE),
    "What is on the left?",
    "a traffic light",
    "number 1, 0.42",
)
PROBE = c.ProbeView(picture_uri(), "What is it?", ODD, "“ball” has probability 91 %", refused=False)
LIKENESS = {
    "data": [
        {"type": "heatmap", "z": [[100, 3], [3, 100]], "x": ["red", ODD], "y": ["red", ODD], "meta": "membership"}
    ],
    "layout": {"meta": {"spelled": ["red", ODD]}},
}


CONCEPT = c.ConceptLine("traffic light", "object", 240, "31.7", 128, "/concepts/traffic%20light")
MEASUREMENT = c.MeasurementView("validate", "Validation", "", live=False, teach="It takes a minute.")


def validation(**changes: Any) -> c.ValidationView:
    view = c.ValidationView(
        action="/validation", hidden=(("concept", "dog"),), live=False, events="", report="/concepts/report",
        validation=MEASUREMENT, weak=False, verdict="", because="", how="", controls=(), criteria=(), facts=(),
        collaboration=MEASUREMENT, alpha="0.5", top="12", limits=("0.1", "1", "0.05", "2", "20"), said=(), matrix=None,
        columns=(), rows=(), over="",
    )  # fmt: skip
    return replaced(view, changes)


def concepts_page(**changes: Any) -> c.ConceptsPage:
    names = ("traffic light", "penguin", "pizza", "red", "two", "on the left", "animal", ODD)
    lines = tuple(dataclasses.replace(CONCEPT, name=name, weak="It failed." * (name == "two")) for name in names)
    kinds = (choice("all", True), choice("object"), choice("category"), choice("colour"), choice("count"))
    sorts = (
        choice("concept", value="name"), choice("kind", True), choice("cardinality Σμ", value="cardinality"),
        choice("probes", value="probes"),
    )  # fmt: skip
    page = c.ConceptsPage(
        shell(title="Concepts", active="concepts"), "", "", "", kinds, sorts, lines, 64, ""
    )  # fmt: skip
    return replaced(page, changes)


def concept_page(**changes: Any) -> c.ConceptPage:
    members = tuple(
        c.MemberRow(n, f"text.{n % 6}.{n}", n % 6, 1 / n**0.5, f"{1 / n**0.5:.2f}", (membership("vehicle", 0.4),))
        for n in range(1, 40)
    )
    bars = {"data": [{"type": "bar", "x": list(range(6)), "y": [0.3, 1.2, 4.1, 9.8, 12.2, 4.1]}], "layout": {}}
    bands = {"data": [{"type": "heatmap", "z": [[1, 2], [3, 4]], "meta": "membership"}], "layout": {}}
    near = tuple(
        c.AlikeRow(name, f"/concepts/{name}", 0.4, "0.40", "/algebra?expression=a") for name in ("dog", "cat", ODD)
    )
    inside = tuple(dataclasses.replace(row, text=f"traffic light is 0.40 inside {row.name}") for row in near)
    page = c.ConceptPage(
        shell=shell(title="traffic light", active="concepts"),
        concept=CONCEPT,
        facts=(("cardinality Σμ", "31.7", "The sum of all memberships"), ("core", "12", "Neurons with μ = 1")),
        cut=c.CutView("/concepts/traffic%20light", "0.50", "39 neurons, with 61 % of the cardinality", LAYERS, members),
        bands=bands,
        band_columns=("layer", "0–0.5", "0.5–1"),
        band_rows=(("0", "1", "3"), ("1", "2", "4")),
        figure=bars,
        layers=(("0", "0.3"), ("1", "1.2"), ("2", "4.1"), ("3", "9.8"), ("4", "12.2"), ("5", "4.1")),
        near=near,
        inside=inside,
        holds=inside,
        examples=(EXAMPLE,) * 6,
        probes=(),
        probes_note="",
        derived=None,
        figures=(("own answers after ablation", ".39"), ("random set", ".98")),
        recipe=(("mode", "specific"),),
        algebra="/algebra?expression=traffic%20light",
        own="",
        validation=validation(),
    )
    return replaced(page, changes)


def similar_page(**changes: Any) -> c.SimilarPage:
    pair = c.PairRow("dog", STATE, ODD, STATE, 0.4, "0.40", "0.61", "0.55", "/algebra?expression=dog")
    page = c.SimilarPage(
        shell(title="Similar concepts", active="concepts"), "similarity",
        (choice("similarity", True), choice("inclusion")), (choice("all", True), choice("object (12)")), LIKENESS,
        "Σ min / Σ max", (pair,), "",
    )  # fmt: skip
    return replaced(page, changes)


def result(**changes: Any) -> c.ResultView:
    members = tuple(
        c.ResultMember(n, f"text.2.{n}", 1 / n, f"{1 / n:.2f}", ((1.0, "1.00"), (1 / n, f"{1 / n:.2f}")), STATE)
        for n in range(1, 30)
    )
    view = c.ResultView(
        f"dog AND {ODD}", (("cardinality Σμ", "31.7", "The sum"),), "12 neurons", LAYERS,
        (c.OperandView("dog", STATE, "Σμ 50.0"), c.OperandView(ODD, STATE, "Σμ 60.0")), members,
        (c.VennPart("only dog", "40.0", 0.0, 0.4, "one"), c.VennPart("both", "10.0", 0.4, 0.1, "both"),
         c.VennPart(f"only {ODD}", "50.0", 0.5, 0.5, "other")), ("Not idempotent: dog AND dog has Σμ 20.",),
    )  # fmt: skip
    return replaced(view, changes)


def algebra_page(**changes: Any) -> c.AlgebraPage:
    page = c.AlgebraPage(
        shell(title="Algebra", active="concepts"), f"dog AND {ODD}", "product", "0.50",
        (choice("min-max", value="min-max"), choice("product", True, "product")), "memberships multiply",
        ("dog", ODD), (choice("dog AND cat"),), None, result(), "", "",
    )  # fmt: skip
    return replaced(page, changes)


def own_page() -> c.ConceptPage:
    page = concept_page()
    members = tuple(
        replaced(row, {"interval": "0.30 – 0.80", "low": 0.3, "high": 0.8, "href": STATE}) for row in page.cut.members
    )
    return concept_page(
        concept=replaced(page.concept, {"weak": "Its validation failed."}),
        cut=replaced(page.cut, {"members": members, "about": "Intervals: 95 %, by bootstrap over 8 probes."}),
        probes=(PROBE, replaced(PROBE, {"src": "", "refused": True, "state": "refused: too long"})),
        probes_note="2",
        own="/concepts/own/a",
    )


def derived_page() -> c.ConceptPage:
    derived = c.DerivedView(f"dog AND {ODD}", "product", "/algebra?expression=dog", "/concepts/own/a/delete")
    return concept_page(derived=derived, near=(), examples=(), cut=replaced(concept_page().cut, {"members": ()}))


PAGES = {
    "concepts/index.html": (
        concepts_page(),
        concepts_page(concepts=(), query="zebre", kind="object", sort="name", empty="None is called “zebre”."),
    ),
    "concepts/show.html": (concept_page(latents=factories_making.OF_CONCEPT), own_page(), derived_page()),
    "concepts/similar.html": (similar_page(), similar_page(figure={}, pairs=(), empty="There are no two concepts.")),
    "algebra/index.html": (
        algebra_page(),
        algebra_page(result=None, mistake=c.MistakeView("dog AND ", ODD, "", "There is no such concept.")),
        algebra_page(expression="", result=None),
        algebra_page(save_name=ODD, save_error="There is a concept of that name already."),
        algebra_page(result=result(members=(), venn=(), laws=())),
    ),
}
