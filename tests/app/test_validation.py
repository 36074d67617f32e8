"""Concepts' validation and collaboration: as jobs, on the concept's page, as figures and in the report."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import figures, library, own, queries, validations
from app.conceptjobs import Room
from app.tables import JobRow, OwnConcept, ProbeRow
from app.validating import Steps, steps
from app.views.validation import _said
from engine.contract import RequestError, concepts
from engine.fake import FakeEngine
from tests.app.conftest import Browser, serving, until

results = concepts.results
MODEL = "fake-1"


def ask(browser: Browser, concept: str, kind: str = "validate", **fields: Any) -> JobRow:
    """Have it measured; its row when it is over."""
    response = browser.http.post(
        "/validation", data={"concept": concept, "kind": kind, **fields}, follow_redirects=False
    )
    assert response.status_code == 303, response.text
    assert response.headers["location"].endswith("#validation")

    def read() -> JobRow | None:
        with browser.services.database.read() as session:
            row = queries.concept(session, MODEL, concept)
            assert row is not None
            return validations.newest(session, row).get(kind)

    row: JobRow = until(read, lambda row: row is not None and not row.live)
    return row


def make(browser: Browser, name: str, says: str, count: int, **fields: Any) -> None:
    """An own concept with built probes, as the engine's evidence has them, in the library."""
    engine = FakeEngine()
    probes = [concepts.probes.Probe(None, f"What is this, {k}?", f"a {says}", says) for k in range(count)]
    found = engine.probe_evidence(probes).results
    services = browser.services
    with services.database.write() as session:
        given = {"map": "linear", "quantile": 0.9, "mode": "raw", "contrast": [], **fields}
        row = OwnConcept(id=name, model_revision=MODEL, name=name, kind="own", forms=[says], **given)
        session.add(row)
        session.flush()
        for probe, result in zip(probes, found, strict=True):
            made = ProbeRow(concept_id=name, source="test", question=probe.question, answer=probe.answer, says=says)
            made.shares = result.shares.to_bytes()
            session.add(made)
    with services.database.write() as session:
        own.adopt(session, services.worker.info, engine)
        library.copy(session, MODEL, engine.library())


def room_of(browser: Browser) -> Room:
    services, engine = browser.services, FakeEngine()
    assert services.worker.info is not None
    with services.database.write() as session:
        own.adopt(session, services.worker.info, engine)
        library.copy(session, MODEL, engine.library())
    return Room(engine, services.worker.info, services.database, services.store)


def test_a_librarys_concept_is_tested_on_probes_of_the_test_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    original = FakeEngine.validate_concept

    def spied(self: FakeEngine, candidate: Any, *rest: Any) -> Any:
        seen.append(candidate)
        return original(self, candidate, *rest)

    monkeypatch.setattr(FakeEngine, "validate_concept", spied)
    with serving(tmp_path) as browser:
        row = ask(browser, "penguin")
        assert row.state == "done", row.error
        (candidate,) = seen
        engine = FakeEngine()
        build = engine.world_probes("penguin", 24, "build")
        test = engine.world_probes("penguin", 12, "test")
        assert [probe.picture.tobytes() for probe in candidate.probes] == [probe.picture.tobytes() for probe in test]
        assert not {p.picture.tobytes() for p in candidate.probes} & {p.picture.tobytes() for p in build}
        assert candidate.evidence.n_probes == 24
        assert {probe.says for probe in candidate.others} == set(row.result["compared"])
        assert "penguin" not in row.result["compared"]
        assert candidate.contrast is not None
        shares = np.mean([rest.mean() for rest in _evidence_of(engine, row.result["compared"])], axis=0)
        assert np.allclose(candidate.contrast, shares, atol=1e-6)
        with browser.services.database.read() as session:
            known = queries.concept(session, MODEL, "penguin").figures
        assert known["own"] == round(row.result["own"]["value"], 4) < known["plain"] == 1
        assert known["passes"] == 1
        assert known["held-out probes"] == 12
        assert all(isinstance(value, float) for value in known.values())


def _evidence_of(engine: FakeEngine, names: list[str]) -> list[Any]:
    found = []
    for name in names:
        probes = engine.world_probes(name, 4, "build")
        shares = [result.shares for result in engine.probe_evidence(probes).results]
        found.append(concepts.evidence.Evidence((4, 64)).add(shares))
    return found


def test_figures_outlive_a_new_library_but_not_new_memberships(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        make(browser, "ice", "penguin", 4)
        services = browser.services
    with serving(tmp_path) as browser:
        services = browser.services
        ask(browser, "pizza")
        assert ask(browser, "ice").state == "done"

        def figures_of(name: str) -> dict[str, float]:
            with services.database.read() as session:
                return dict(queries.concept(session, MODEL, name).figures)

        before = figures_of("pizza"), figures_of("ice")
        assert "passes" in before[0]
        assert "passes" in before[1]
        make(browser, "another", "lemon", 2)
        assert (figures_of("pizza"), figures_of("ice")) == before, "the library changed, these memberships did not"
        with services.database.write() as session:
            session.get_one(OwnConcept, "ice").quantile = 0.5
        room_of(browser)
        assert figures_of("pizza") == before[0]
        assert figures_of("ice") == {}, "what was validated is not what there is now"


def test_an_own_concept_is_cross_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    original = FakeEngine.validate_concept

    def spied(self: FakeEngine, candidate: Any, *rest: Any) -> Any:
        seen.append(candidate)
        return original(self, candidate, *rest)

    monkeypatch.setattr(FakeEngine, "validate_concept", spied)
    with serving(tmp_path) as browser:
        make(browser, "fruit", "lemon", 6)
        make(browser, "ice", "penguin", 8, mode="specific", contrast=["fruit"])
    with serving(tmp_path) as browser:
        row = ask(browser, "ice")
        assert row.state == "done", row.error
        questions = [[probe.question for probe in candidate.probes] for candidate in seen]
        even = [f"What is this, {k}?" for k in range(0, 8, 2)]
        odd = [f"What is this, {k}?" for k in range(1, 8, 2)]
        assert questions == [odd, even]
        with browser.services.database.read() as session:
            whole, fruit = (own.evidence(session, name, (4, 64)) for name in ("ice", "fruit"))
        for fold, candidate in enumerate(seen):
            half = concepts.evidence.Evidence((4, 64), whole.rows[fold::2])
            against = concepts.evidence.Evidence((4, 64), fruit.rows[fold::2]).mean()
            assert np.array_equal(candidate.memberships, half.memberships("linear", 0.9, "specific", against))
            assert {probe.says for probe in candidate.others} == {"lemon"}
            assert [probe.question for probe in candidate.others] == (odd if fold == 0 else even)[:3]
        assert row.result["own"]["n"] == 8
        assert row.result["compared"] == ["fruit"]
        assert "Cross-fitted" in row.result["how"]


def test_folds_are_counted_together() -> None:
    engine, probes = FakeEngine(), FakeEngine().world_probes("penguin", 5, "test")
    evidence = concepts.evidence.Evidence((4, 64))
    memberships = engine.library().concepts[0].memberships

    def candidate(name: str, count: int) -> Any:
        given = (memberships, evidence, None, memberships, memberships, probes[:count], probes[:2])
        return results.Candidate(name, "own", *given)

    folds = [engine.validate_concept(candidate(name, count)) for name, count in (("a", 5), ("b", 3))]
    both = results.pooled(folds)
    assert both.own.n == 8
    assert both.own.value * 8 == sum(row[1] for fold in folds for row in fold.answers)
    assert (both.own.low, both.own.high) == results.wilson(round(both.own.value * 8), 8)
    assert both.others_own.n == 4
    hits = sum(round(fold.pointing["concept"].value * fold.pointing["concept"].n) for fold in folds)
    assert both.pointing["concept"].value == pytest.approx(hits / 8)
    gap = np.array([row[2] - row[1] for fold in folds for row in np.array(fold.answers, float)])
    assert str(results.mean_interval(gap)) in both.criteria[0].detail


@pytest.mark.parametrize(
    ("count", "fields", "words"),
    [
        (3, {}, "has 3 probes that the model took; validation holds half of them out and needs at least 4"),
        (0, {"expression": "pizza AND red"}, "is derived from other concepts and has no probes of its own"),
    ],
)
def test_what_cannot_be_validated_says_why(tmp_path: Path, count: int, fields: dict[str, str], words: str) -> None:
    with serving(tmp_path) as browser:
        make(browser, "mine", "penguin", count, **fields)
    with serving(tmp_path) as browser:
        row = ask(browser, "mine")
        assert row.state == "failed"
        assert words in row.error
        assert "Validate again" not in browser.http.get("/concepts/mine").text, "what cannot be is not offered"


def test_steps_never_pass_their_end() -> None:
    told: list[tuple[int, int]] = []
    at = Steps(lambda done, total: told.append((done, total)), steps(0))
    for size in (24, 24, 24, 24, 24, 24):
        at.part(size)(1, 2)
        at.part(0)(1, 1)
    assert told == sorted(told)
    assert all(done <= total == steps(0) for done, total in told)


def test_collaboration_is_estimated_measured_and_said(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        page = browser.http.get("/concepts/penguin").text
        runs = results.collaboration_runs(12, 12, 8)
        assert f"That takes {runs} runs of the model." in page
        row = ask(browser, "penguin", "collaborate", alpha="0.5", top="6")
        assert row.state == "done", row.error
        assert row.total == results.collaboration_runs(12, 6, 8)
        assert np.array(row.result["interactions"]).shape == (6, 6)
        assert np.allclose(np.diag(row.result["interactions"]), 0)
        page = browser.http.get("/concepts/penguin").text
        assert "they stand in for one another" in page
        assert 'id="validation-matrix"' in page
        again = ask(browser, "penguin", "collaborate", alpha="0.5", top="6")
        assert again.id == row.id
        other = ask(browser, "penguin", "collaborate", alpha="0.25", top="6")
        assert other.id != row.id
        assert len(other.result["members"]) > len(row.result["members"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"alpha": "0"}, "α is 0; it must lie between 0.05 and 1."),
        ({"top": "99"}, "asked for 99 neurons; it takes 2 to 24"),
        ({"kind": "guess"}, "There is no measurement “guess” of a concept"),
        ({"concept": "pengiun"}, "Did you mean penguin"),
        ({"alpha": "x"}, "alpha cannot be read"),
    ],
)
def test_what_cannot_be_asked(shared: Browser, fields: dict[str, str], words: str) -> None:
    data = {"concept": "penguin", "kind": "collaborate", **fields}
    response = shared.http.post("/validation", data=data)
    assert response.status_code in (404, 422)
    assert words in response.text


def test_an_empty_cut_fails_with_the_engines_sentence(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        row = ask(browser, "penguin", "collaborate", alpha="1", top="6")
        assert row.state == "failed"
        assert "collaboration takes 2. Lower α" in row.error


def test_synergy_in_words() -> None:
    def joint(value: float, low: float, high: float, pair: float | None) -> dict[str, Any]:
        some = {"value": 1.0, "low": 0.5, "high": 1.5, "n": 8}
        matrix = [[0.0, pair], [pair, 0.0]]
        synergy = {"value": value, "low": low, "high": high, "n": 8}
        told = {"members": ["a"] * 5, "top": ["text.0.1", "text.1.2"], "interactions": matrix}
        return {"joint": some, "apart": some, "synergy": synergy, **told}

    needs = _said(joint(2.1, 1.2, 3.0, 0.4))
    assert needs[0] == "Together these 5 neurons carry 2.100 nats more than one by one: they need one another."
    assert needs[2] == "Of the pairs, text.0.1 and text.1.2 need one another most: +0.400 nats."
    assert "less than one by one: they stand in for one another" in _said(joint(-2.1, -3, -1, -0.4))[0]
    assert "about what they carry one by one" in _said(joint(0.1, -1, 1, None))[0]
    assert len(_said(joint(0.1, -1, 1, None))) == 2


def test_the_matrix_keeps_its_diagonal_apart() -> None:
    from plotly import graph_objects

    made = figures.interactions(["text.0.1", "text.1.2"], [0.5, 0.25], [[0.0, -2.0], [-2.0, None]])
    pairs, alone = made["data"]
    assert pairs["z"] == [[None, -2.0], [-2.0, None]]
    assert (pairs["zmin"], pairs["zmax"]) == (-2.0, 2.0)
    assert alone["z"] == [[0.5, None], [None, 0.25]]
    assert alone["zmin"] == 0
    json.dumps(made, allow_nan=False)
    graph_objects.Figure(made)


def test_it_streams_and_can_be_stopped(tmp_path: Path) -> None:
    with serving(tmp_path, lambda: FakeEngine(0.05)) as browser:
        data = {"concept": "penguin", "kind": "validate"}
        browser.http.post("/validation", data=data, follow_redirects=False)
        page = browser.http.get("/concepts/penguin").text
        assert 'sse-connect="/validation/events?concept=penguin"' in page

        def row() -> JobRow:
            with browser.services.database.read() as session:
                concept = queries.concept(session, MODEL, "penguin")
                assert concept is not None
                return validations.newest(session, concept)["validate"]

        until(row, lambda found: found.done > 0)
        cancelled = browser.http.post(f"/validation/{row().id}/cancel", follow_redirects=False)
        assert cancelled.status_code == 303
        until(row, lambda found: found.state == "cancelled")
        assert "Cancelled; nothing was kept." in browser.http.get("/concepts/penguin").text
        with browser.services.database.read() as session:
            assert "passes" not in queries.concept(session, MODEL, "penguin").figures
        stream = browser.http.get("/validation/events?concept=penguin").text
        assert stream.count("event: validation") == 1
        assert stream.rstrip().splitlines()[-1].startswith(("event: end", "data"))
        assert browser.http.post("/validation/nothing/cancel").status_code == 404
        assert browser.http.get("/validation/events?concept=nobody").status_code == 404


def weaken(browser: Browser, name: str) -> None:
    with browser.services.database.write() as session:
        row = queries.concept(session, MODEL, name)
        assert row is not None
        row.figures = {"passes": 0.0, "plain": 1.0, "own": 0.9, "held-out probes": 12.0, "tokens": 1.0}


def test_a_weak_concept_is_marked_wherever_it_appears(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        url = browser.ask("What is this?")
        leading = browser.data(url)["concepts"][0]["name"]
        assert "weak" not in browser.http.get(url).text
        weaken(browser, leading)
        with browser.services.database.read() as session:
            facts = queries.concept_facts(session, MODEL)
        assert [fact.name for fact in facts.values() if fact.weak] == [leading]
        run = browser.http.get(f"{url}?add={leading}").text
        assert 'class="weak"' in run
        assert "weak: " in run, "in the title of its chips"
        concept = browser.http.get(f"/concepts/{leading}").text
        assert "Weak." in concept
        assert "of 12 held-out answers, 100 % are right, and without its neurons 90 %" in concept
        assert "weak" in browser.http.get("/concepts").text


def test_the_report(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        assert "0 of 0 validated concepts pass; 12 are not validated" in browser.http.get("/concepts/report").text
        ask(browser, "penguin")
        weaken(browser, "pizza")
        page = browser.http.get("/concepts/report").text
        assert "1 of 2 validated concepts pass; 10 are not validated" in page
        told = browser.http.get("/concepts/report.json").json()
        rows = {row["name"]: row for row in told["concepts"]}
        penguin = rows["penguin"]
        assert penguin["own"] == pytest.approx(penguin["figures"]["plain"] - penguin["figures"]["own"])
        assert (penguin["passes"], rows["pizza"]["passes"], rows["red"]["passes"]) == (True, False, None)
        groups = {row["group"]: row for row in told["summary"]}
        assert groups["all"]["concepts"] == 2
        assert groups["all"]["passes"]["value"] == 0.5
        assert groups["all"]["own"]["value"] == pytest.approx((penguin["own"] + 0.1) / 2)
        assert "several tokens" not in groups
        lines = list(csv.DictReader(io.StringIO(browser.http.get("/concepts/report.csv").text)))
        assert {line["concept"] for line in lines} == set(rows)
        assert float(next(line for line in lines if line["concept"] == "pizza")["own"]) == pytest.approx(0.1)
        by_drop = browser.http.get("/concepts/report?sort=own").text
        assert by_drop.index('href="/concepts/penguin"') < by_drop.index('href="/concepts/pizza"')
        assert by_drop.index('href="/concepts/pizza"') < by_drop.index('href="/concepts/animal"')


def test_shipped_figures_reach_the_rows_of_the_same_library(tmp_path: Path) -> None:
    """An upgrade may bring figures for memberships that are there already."""
    with serving(tmp_path) as browser:
        engine = FakeEngine()
        for concept in engine.library().concepts:
            concept.figures["passes"] = 0.0
        with browser.services.database.write() as session:
            assert not library.copy(session, MODEL, engine.library()), "nothing is copied again"
        with browser.services.database.read() as session:
            assert all(fact.weak for fact in queries.concept_facts(session, MODEL).values())
            row = queries.concept(session, MODEL, "penguin")
            assert row.figures["own accuracy"] == 0.25


def test_a_model_without_a_world_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from app import validating

    monkeypatch.setattr(FakeEngine, "world_concepts", lambda _self: ())
    with serving(tmp_path) as browser:
        room = room_of(browser)
        with pytest.raises(RequestError, match="No held-out probes of “penguin” are known"):
            validating.validate(room, {"concept": "penguin", "alpha": 0.5, "stamp": ""}, lambda *_: None, lambda: False)
        make(browser, "ice", "penguin", 4)
        room = room_of(browser)
        with pytest.raises(RequestError, match="nothing to compare “ice” with: build a second concept"):
            validating.validate(room, {"concept": "ice", "alpha": 0.5, "stamp": ""}, lambda *_: None, lambda: False)
