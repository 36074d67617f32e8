"""Concept algebra: expressions, their numbers, mistakes with their place, and derived concepts that are saved."""

import re

import numpy as np
import pytest
from sqlalchemy import select

from app.tables import ConceptRow, OwnConcept
from app.views import algebra
from engine.concepts import fuzzy
from engine.concepts.algebra import evaluate, parse
from engine.fake_world import CONCEPTS, memberships_of
from tests.app.conftest import Browser, serving, until

EVERY = {name: memberships_of(name) for name in CONCEPTS}


@pytest.mark.parametrize("family", fuzzy.FAMILIES)
@pytest.mark.parametrize("text", ["animal AND red", "animal or not red", '("polar bear" OR penguin) AND NOT animal'])
def test_the_result_is_that_of_the_exact_sets(shared: Browser, family: str, text: str) -> None:
    data = shared.http.get("/algebra.json", params={"expression": text, "family": family, "alpha": "0.3"}).json()
    wanted = evaluate(parse(text), EVERY, family)
    assert data["cardinality"] == pytest.approx(float(wanted.sum()), rel=1e-5)
    assert len(data["alpha_cut"]) == int((wanted >= 0.3).sum())
    assert data["layers"] == pytest.approx(wanted.sum(axis=1).tolist(), rel=1e-4)
    page = shared.http.get("/algebra", params={"expression": text, "family": family, "alpha": "0.3"})
    assert page.status_code == 200
    assert fuzzy.FAMILIES[family].words in page.text
    first = data["alpha_cut"][:100]
    assert re.findall(r'class="name"><a href="[^"]+">(text\.\d+\.\d+)<', page.text) == [m["id"] for m in first]


def test_members_stand_beside_their_membership_in_each_operand(shared: Browser) -> None:
    page = shared.http.get("/algebra?expression=penguin AND red&alpha=0").text
    row = re.search(r"text\.(\d+)\.(\d+)</a></th>(.*?)</tr>", page, re.DOTALL)
    if row is None:  # the two share no neuron
        assert not np.minimum(EVERY["penguin"], EVERY["red"]).any()
        return
    place = int(row[1]), int(row[2])
    shown = re.findall(r'<td class="figure">([\d.]+)</td>', row[3])
    assert shown[1:] == [f"{EVERY['penguin'][place]:.2f}", f"{EVERY['red'][place]:.2f}"]


def test_three_numbers_add_up_to_both_operands(shared: Browser) -> None:
    mu, nu = EVERY["penguin"], EVERY["lemon"]
    one, both, other = algebra.venn(mu, nu)
    assert one + both == pytest.approx(float(mu.sum()), rel=1e-5)
    assert both + other == pytest.approx(float(nu.sum()), rel=1e-5)
    page = shared.http.get("/algebra?expression=penguin OR lemon").text
    assert "only penguin" in page
    assert "only lemon" in page
    assert 'class="venn"' not in shared.http.get("/algebra?expression=penguin OR lemon OR red").text


def test_laws_that_do_not_hold_are_said_with_their_numbers(shared: Browser) -> None:
    def laws(family: str) -> str:
        return " ".join(
            re.findall(r'class="law">([^<]+)', shared.http.get(f"/algebra?expression=red&family={family}").text)
        )

    red = EVERY["red"]
    assert f"red AND red has Σμ {float((red * red).sum()):.1f}" in laws("product")
    assert "Not idempotent" not in laws("min-max")
    assert f"red AND NOT red is not empty: Σμ {float(np.minimum(red, 1 - red).sum()):.1f}" in laws("min-max")
    assert "AND NOT" not in laws("lukasiewicz")
    assert "Not idempotent" in laws("lukasiewicz")


@pytest.mark.parametrize(
    ("text", "marked"),
    [("animal AND and red", "and"), ("animal AND (red", " "), ("red AND zebre", "zebre"), ('red OR "blue', '"blue')],
)
def test_a_mistake_is_marked_at_its_place(shared: Browser, text: str, marked: str) -> None:
    response = shared.http.get("/algebra", params={"expression": text})
    assert response.status_code == 422
    found = re.search(r"<code>(.*?)<mark>(.*?)</mark>(.*?)</code>", response.text, re.DOTALL)
    assert found
    parts = [part.replace("&#34;", '"') for part in found.groups()]
    assert parts[1] == marked
    assert "".join(parts).rstrip() == text
    told = shared.http.get("/algebra.json", params={"expression": text})
    assert told.status_code == 422
    assert re.search(r"character \d+", told.json()["error"])


def test_what_cannot_be_asked_is_refused(shared: Browser) -> None:
    assert shared.http.get("/algebra").status_code == 200
    assert shared.http.get("/algebra?expression=red&family=fuzzy").status_code == 422
    assert shared.http.get("/algebra?expression=red&alpha=7").status_code == 422
    assert shared.http.get("/algebra.json?expression=").status_code == 422
    assert shared.http.get("/algebra", params={"expression": "red " * 600}).status_code == 422


def save(browser: Browser, name: str, expression: str = "penguin OR red", family: str = "min-max") -> str:
    response = browser.http.post(
        "/algebra", data={"name": name, "expression": expression, "family": family}, follow_redirects=False
    )
    assert response.status_code == 303, response.text
    return str(response.headers["location"])


def test_a_derived_concept_is_listed_weighed_and_steered_with(browser: Browser) -> None:
    url = browser.ask("What is on the right?")
    assert save(browser, "red bird") == "/concepts/red%20bird"
    data = browser.http.get("/concepts/red%20bird.json").json()
    assert (data["kind"], data["expression"], data["family"]) == ("derived", "penguin OR red", "min-max")
    assert data["cardinality"] == pytest.approx(float(np.maximum(EVERY["penguin"], EVERY["red"]).sum()), rel=1e-5)
    assert "red bird" in browser.http.get("/concepts?kind=derived").text
    assert "red bird" in browser.http.get("/concepts/similar").text
    page = browser.http.get("/concepts/red%20bird").text
    assert "penguin OR red" in page
    child = browser.turn(url, "red bird", -1)
    assert browser.settled(child)["provenance"]["steering"]["concepts"] == [["red bird", -1.0]]
    later = browser.ask("Which colour is it?")
    assert "red bird" in [scored["name"] for scored in browser.data(later)["concepts"]]


def test_it_may_name_another_derived_concept_and_outlives_a_restart(browser: Browser) -> None:
    save(browser, "first", "penguin AND NOT red", "product")
    assert save(browser, "second", "first OR blue") == "/concepts/second"
    before = browser.http.get("/concepts/second.json").json()["alpha_cut"]
    folder = browser.services.settings.data_dir
    browser.services.worker.close()
    with serving(folder) as again:
        assert again.http.get("/concepts/second.json").json()["alpha_cut"] == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "name is empty"),
        ("penguin", "already"),
        ("Penguin", "already"),
        ("x" * 81, "at most 80"),
        ("new", "no address"),
    ],
)
def test_a_name_that_cannot_be_given_is_refused_beside_its_field(shared: Browser, name: str, said: str) -> None:
    response = shared.http.post("/algebra", data={"name": name, "expression": "red OR blue"})
    assert response.status_code == 422
    told = re.search(r'id="save-error">([^<]+)', response.text)
    assert told
    assert said in told[1]
    with shared.services.database.read() as session:
        assert not session.scalars(select(OwnConcept)).all()


def test_an_expression_that_is_none_is_not_saved(shared: Browser) -> None:
    assert shared.http.post("/algebra", data={"name": "x", "expression": "red AND"}).status_code == 422
    assert shared.http.post("/algebra", data={"name": "x", "expression": "red", "family": "?"}).status_code == 422


def test_a_deleted_derived_concept_leaves_the_library(browser: Browser) -> None:
    save(browser, "red bird")
    page = browser.http.get("/concepts/red%20bird").text
    delete = re.search(r'href="(/concepts/own/\w+/delete)"', page)
    assert delete
    assert browser.http.post(delete[1], follow_redirects=False).status_code == 303

    def there() -> list[str]:
        with browser.services.database.read() as session:
            return list(session.scalars(select(ConceptRow.name).where(ConceptRow.kind == "derived")))

    assert until(there, lambda names: not names) == []
    assert browser.http.get("/concepts/red%20bird").status_code == 404
