"""Does a concept work? Each figure against a loop of the test's own, the criteria, the shuffle (METHODS.md §2)."""

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.attribution.effects import zeroed
from engine.concepts import library, report, validation
from engine.concepts.building import probe_evidence
from engine.concepts.evidence import Evidence
from engine.concepts.membership import prepare_one
from engine.concepts.pointing import chance, concept_map, last_layer_attention, on_thing, points
from engine.concepts.probes import Probe
from engine.concepts.results import FIGURES, Candidate, criteria, mean_interval, proportion
from engine.concepts.validation import baseline_evidence, dealt_out, overlap, random_set, right_under, split_half
from engine.contract import Cancelled, Concept, NeuronTurn, Question, RequestError, Steering, Target
from engine.hooks import count_hooks, intervene
from engine.interventions import NO_EDITS
from engine.loading import Loaded
from engine.local import LocalEngine
from tests.engine import tiny


def says_first(loaded: Loaded, seed: int, box: tuple[float, float, float, float] | None = None) -> tuple[Loaded, Probe]:
    """A model whose end token is the one that follows its own first answer token, and the probe that it gets right."""
    own = tiny.changed(loaded)
    picture = tiny.picture(seed)
    ready = prepare_one(own, Probe(picture, "what is this?", "red", "red"))
    chosen, _ = tiny.greedy(own.model, ready.prompt, 2)
    own.model.generation_config.eos_token_id = chosen[1]
    return own, Probe(picture, "what is this?", "red", "red", box)


def test_right_answers_under_edits_are_those_of_steered_greedy_decoding(model: Loaded) -> None:
    own, probe = says_first(model, 0)
    ready = prepare_one(own, probe)
    chosen, _ = tiny.greedy(own.model, ready.prompt, 1)
    said = dataclasses.replace(ready, answer_ids=tuple(chosen), target=Target(0, 1))
    many = [NO_EDITS, zeroed(range(144), 48), *(zeroed([n], 48) for n in range(0, 144, 12))]
    found = right_under(own, said, many)
    engine = LocalEngine(own)
    for row, right in zip(many, found, strict=True):
        with intervene(own.anatomy, [row]):
            logits = tiny.logits(own.model, ready.prompt, chosen)
        best = logits[ready.prompt.length - 1 :].argmax(-1).tolist()
        assert right == (best == [chosen[0], own.model.generation_config.eos_token_id])
    assert found[0]
    steering = Steering(neurons=tuple(NeuronTurn(n // 48, n % 48, "set", 0.0) for n in range(0, 144, 1)))
    answer = engine.generate_only(Question(probe.picture, probe.question, 3), steering)
    assert found[1] == ([token.id for token in answer.tokens] == chosen and answer.stopped == "end")
    assert count_hooks(own.model) == 0


def test_a_random_set_has_as_many_others_of_each_layer() -> None:
    chosen = [0, 1, 5, 50, 100, 101]
    drawn = random_set(chosen, 48, 3)
    assert not set(drawn) & set(chosen)
    assert sorted(n // 48 for n in drawn) == sorted(n // 48 for n in chosen)
    assert random_set(chosen, 48, 3) == drawn != random_set(chosen, 48, 4)
    with pytest.raises(RequestError, match="Layer 0 has too few"):
        random_set(list(range(30)), 48, 0)


def test_overlap_and_halves() -> None:
    a, b = np.zeros((2, 2, 30), np.float32)
    a[0, :20], b[0, 10:30] = 1, 1
    assert overlap(a, b) == 0.5
    assert overlap(a, a) == 1
    assert overlap(a, np.zeros_like(a)) == 0
    rng = np.random.default_rng(0)
    carriers = rng.exponential(size=(3, 48))

    def rows(noise: float) -> Evidence:
        from engine.concepts.evidence import pack
        from engine.concepts.fuzzy import evidence_share

        drawn = [np.float32(carriers * rng.exponential(noise, (3, 48)) if noise else carriers) for _ in range(10)]
        return Evidence((3, 48)).add(pack(evidence_share(share)) for share in drawn)

    same, correlation, _ = split_half(rows(0), None)
    assert same == 1
    assert correlation == pytest.approx(1, abs=1e-3)
    noisy, weaker, _ = split_half(rows(5), None)
    assert noisy < 1
    assert weaker < 0.95
    own = rows(0)
    _, _, halves = split_half(own, own.mean() / 2)
    assert np.allclose(halves[0], own.mean() / 2, atol=1e-6)


def test_the_baselines_evidence_is_pans_share(model: Loaded) -> None:
    probes = [Probe(tiny.picture(k), "what is this?", "a polar bear", "polar bear") for k in range(2)]
    engine = LocalEngine(model)
    shares = []
    for probe in probes:
        ready = prepare_one(model, probe)
        scores = engine.attribute(Question(probe.picture, probe.question), ready.answer_ids, ready.target, "pan").scores
        shares.append(np.maximum(scores, 0) / np.maximum(scores, 0).sum())
    assert np.allclose(baseline_evidence(model, probes), np.mean(shares, axis=0), atol=1e-6)
    with pytest.raises(Cancelled):
        baseline_evidence(model, probes, lambda: True)


def test_features_dealt_out_are_the_same_ones_elsewhere(model: Loaded) -> None:
    ready = prepare_one(model, Probe(tiny.picture(1), "what is this?", "red", "red"))
    dealt = dealt_out(ready, 0)
    assert dealt is not None
    assert ready.features is not None
    assert dealt.features is not None
    before, after = ready.features.features, dealt.features.features
    assert not torch.equal(before, after)
    assert torch.equal(before.sort(0).values, after.sort(0).values)
    assert torch.equal(ready.features.features, prepare_one(model, ready.probe).features.features)  # type: ignore[union-attr]
    mean = validation.mean_shares(model, [ready])
    assert np.allclose(mean, probe_evidence(model, [ready.probe]).results[0].shares.dense(), atol=1e-6)
    assert not np.allclose(mean, validation.mean_shares(model, [dealt]), atol=1e-5)
    assert dealt_out(prepare_one(model, Probe(None, "what is this?", "red", "red")), 0) is None


def test_a_concept_map_is_the_weighted_sum_of_its_neurons_maps(model: Loaded) -> None:
    box = (0.0, 0.0, 45.0, 35.0)
    ready = prepare_one(model, Probe(tiny.picture(2), "what is this?", "a red star", "red", box))
    mu = np.random.default_rng(0).uniform(size=(3, 48)).astype(np.float32)
    heat = concept_map(model, ready, mu)
    assert heat is not None
    found = LocalEngine(model).attribute(
        Question(ready.probe.picture, ready.probe.question), ready.answer_ids, ready.target, top=144
    )
    expected = sum(mu[n.layer, n.index] * n.heat for n in found.neurons if n.heat is not None)
    assert np.allclose(heat, expected, atol=1e-4)
    planted = np.zeros_like(heat)
    planted[0, 0] = 1
    assert points(ready, planted) == on_thing(ready, 0, 0)[0]
    assert 0 < chance(ready) < 1
    attention = last_layer_attention(model, ready)
    assert attention.shape == heat.shape
    assert 0 < attention.sum() <= 1
    assert concept_map(model, prepare_one(model, Probe(None, "what is red?", "red", "red")), mu) is None


def right(*columns: float) -> np.ndarray:
    """(20, columns): of each column that share right, the same probes first."""
    return np.stack([np.arange(20) < round(share * 20) for share in columns], 1).astype(float)


def test_criteria_follow_from_the_right_answers() -> None:
    clear = criteria(right(1, 0.2, 1, 0.6, 1), right(1, 1), 0.7, 0.5, 0.1, {})
    assert all(criterion.holds for criterion in clear)
    assert len(clear) == 6
    random = criteria(right(1, 0.2, 0.2, 0.6, 1), right(1, 1), 0.7, 0.5, 0.1, {})
    assert [c.name for c in random if not c.holds] == ["takes more of its own answers than as many random neurons"]
    broad = criteria(right(1, 0.2, 1, 0.2, 1), right(1, 0.3), 0.05, float("nan"), 0.1, {})
    assert [c.needed for c in broad if not c.holds] == [False, True, True]
    pointing = {"concept": proportion([True] * 18 + [False] * 2), "attention": proportion([True] * 20)}
    pointing["chance"] = mean_interval([0.1] * 20)
    pointed = criteria(right(1, 0.2, 1, 0.6, 1), right(1, 1), 0.7, 0.5, 0.1, pointing)
    assert [c.holds for c in pointed[-2:]] == [True, False]
    assert [c.needed for c in pointed[-2:]] == [True, False]


@pytest.fixture(scope="module")
def candidate(cropping: Loaded) -> tuple[Loaded, Candidate]:
    own, probe = says_first(cropping, 3, (0.0, 0.0, 45.0, 35.0))
    probes = [dataclasses.replace(probe, picture=tiny.picture(k)) for k in (3, 4, 5)]
    others = [Probe(tiny.picture(k), "what is this?", "blue", "blue") for k in (6, 7)]
    built = probe_evidence(own, probes).results
    evidence = Evidence((3, 48)).add(entry.shares for entry in built)
    mu = evidence.memberships("linear", 0.9)
    other = np.roll(mu, 7, axis=1)
    return own, Candidate("red", "colour", mu, evidence, None, other, other, probes, others, [other])


def test_a_validation_gathers_all_of_it(candidate: tuple[Loaded, Candidate]) -> None:
    own, given = candidate
    told: list[tuple[int, int]] = []
    found = validation.validate(own, given, on_progress=lambda n, of: told.append((n, of)))
    assert told == [(k, 5) for k in range(1, 6)]
    assert (found.name, found.tokens, found.alpha) == ("red", 1, 0.5)
    assert found.size == int((given.memberships >= 0.5).sum())
    chosen = np.flatnonzero(given.memberships.ravel() >= 0.5).tolist()
    kept = [right_under(own, prepare_one(own, probe), [zeroed(chosen, 48)])[0] for probe in given.probes]
    assert found.own == proportion(kept)
    assert found.others_own.n == 2
    assert 0 <= found.shuffled <= 1
    assert set(found.pointing) == {"concept", "attention", "chance"}
    assert found.passes == all(c.holds for c in found.criteria if c.needed)
    assert found.reason.startswith("Every condition" if found.passes else "Weak: ")
    assert count_hooks(own.model) == 0


def test_a_validation_can_be_stopped_and_says_what_it_needs(candidate: tuple[Loaded, Candidate]) -> None:
    own, given = candidate
    calls: list[int] = []
    with pytest.raises(Cancelled):
        validation.validate(own, given, cancelled=lambda: len(calls) > 1, on_progress=lambda *_: calls.append(1))
    assert len(calls) == 2
    with pytest.raises(RequestError, match=r"takes held-out probes of its own \(0 given\)"):
        validation.validate(own, dataclasses.replace(given, probes=[]))
    with pytest.raises(RequestError, match=r"an α-cut with neurons \(0 at α = 0\.5\)"):
        validation.validate(own, dataclasses.replace(given, memberships=np.zeros((3, 48), np.float32)))


def test_figures_join_the_library_and_leave_its_revision(tmp_path: Path) -> None:
    arguments = argparse.Namespace(split="test", alpha=0.5, probes=2, build_probes=4)
    made = [Concept(name, "object", 4, np.full((2, 3), 0.4, np.float32), {"cardinality": 2.4}) for name in ("a b", "c")]
    library.save(tmp_path / "library", made, {"model_revision": "m1"})
    before = library.load(tmp_path / "library", "m1", (2, 3))
    some = proportion([True, False])
    whole = {name: dataclasses.asdict(some) for name in FIGURES}
    entry = {**whole, "passes": False, "pointing": {}, "split_half": 0.123456, "tokens": 2}
    path = report.figures_path(tmp_path / "work", "m1", "a b", arguments)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(entry), "utf-8")
    assert report.into_library(tmp_path / "work", tmp_path / "library", arguments) == ["c"]
    after = library.load(tmp_path / "library", "m1", (2, 3))
    assert after.revision == before.revision
    first, second = after.concepts
    assert first.figures == {
        "cardinality": 2.4, "passes": 0.0, "plain": 0.5, "own": 0.5, "random": 0.5, "baseline": 0.5, "other": 0.5,
        "others plain": 0.5, "others own": 0.5, "split half": 0.1235, "tokens": 2.0, "held-out probes": 2.0,
    }  # fmt: skip
    assert second.figures == {"cardinality": 2.4}
