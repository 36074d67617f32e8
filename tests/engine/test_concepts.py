"""Fuzzy sets, evidence and the library on disk (METHODS.md §2)."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from engine.concepts import library as libraries
from engine.concepts.fuzzy import MAPS, alpha_cut, cardinality, evidence_share
from engine.concepts.membership import Probe, encode_answer, evidence, prepare, probe_scores, says_it, specific
from engine.contract import Concept, Floats, ModelRefused, Question, RequestError, Target
from engine.loading import Loaded
from engine.local import LocalEngine
from tests.engine import tiny

degree = st.floats(0, 1, width=32, allow_subnormal=False)
some_evidence = arrays(np.float32, (3, 8), elements=st.floats(-1, 1, width=32, allow_subnormal=False))


@settings(max_examples=50, deadline=None)
@given(some_evidence, st.sampled_from(sorted(MAPS)), st.floats(0.5, 0.99))
def test_memberships_are_degrees_that_grow_with_the_evidence(scores: Floats, name: str, quantile: float) -> None:
    share = evidence_share(scores)
    assert share.min() >= 0
    assert float(share.sum()) == pytest.approx(1 if (scores > 0).any() else 0, abs=1e-4)
    degrees = MAPS[name](share, quantile)
    assert degrees.shape == share.shape
    assert degrees.dtype == np.float32
    assert 0 <= degrees.min() <= degrees.max() <= 1
    assert not degrees[share == 0].any()
    order = np.argsort(share, axis=None)
    assert (np.diff(degrees.ravel()[order]) >= -1e-6).all()


@settings(max_examples=50, deadline=None)
@given(some_evidence, degree, degree)
def test_alpha_cuts_are_nested(scores: Floats, one: float, other: float) -> None:
    degrees = np.maximum(scores, 0)
    low, high = sorted((one, other))
    assert not (alpha_cut(degrees, high) & ~alpha_cut(degrees, low)).any()
    assert (alpha_cut(degrees, 0) == (degrees > 0)).all()
    assert cardinality(degrees) == pytest.approx(float(degrees.astype(np.float64).sum()))


def test_a_scale_of_the_scores_does_not_change_the_evidence() -> None:
    scores = np.random.default_rng(0).normal(size=(3, 48)).astype(np.float32)
    assert np.allclose(evidence_share(scores), evidence_share(scores * 37), atol=1e-7)


def test_specific_evidence_leaves_out_what_the_others_share() -> None:
    own = np.array([0.5, 0.3, 0.2], np.float32)
    others = [np.array([0.5, 0.1, 0.0], np.float32), np.array([0.7, 0.1, 0.0], np.float32)]
    assert specific(own, others).tolist() == pytest.approx([0, 0.2, 0.2])
    assert specific(own, []) is own


# Probes


def test_an_expected_answers_span_is_the_tokens_that_say_the_concept(builtin: Loaded) -> None:
    tokenizer = builtin.processor.tokenizer
    ids, target = encode_answer(builtin, "a red star and a polar bear", "polar bear")
    assert tokenizer.decode(ids) == " a red star and a polar bear"
    assert tokenizer.decode(ids[target.start : target.end]) == " polar bear"
    assert encode_answer(builtin, "penguin", "penguin")[1] == Target(0, len(tokenizer(" penguin")["input_ids"]))
    with pytest.raises(RequestError, match="does not contain 'dog'"):
        encode_answer(builtin, "a red star", "dog")


def test_evidence_is_the_mean_share_of_the_probes_gradient_scores(model: Loaded) -> None:
    probes = [
        Probe(tiny.picture(seed), "what is this?", answer, "red") for seed, answer in ((1, "red"), (2, "a red star"))
    ]
    ready = prepare(model, probes)
    engine = LocalEngine(model)
    shares = []
    for probe, entry in zip(probes, ready, strict=True):
        scores = engine.attribute(Question(probe.picture, probe.question), entry.answer_ids, entry.target).scores
        assert np.allclose(probe_scores(model, entry), scores, atol=1e-5)
        positive = np.maximum(scores, 0)
        shares.append(positive / positive.sum())
    assert np.allclose(evidence(model, ready), np.mean(shares, axis=0), atol=1e-6)


def test_a_probe_is_passed_when_greedy_decoding_would_say_exactly_it(model: Loaded, question: Question) -> None:
    own = tiny.changed(model)
    ready = prepare(own, [Probe(question.picture, question.text, "red", "red")])[0]
    chosen, _ = tiny.greedy(own.model, ready.prompt, 3)
    said = dataclasses.replace(ready, answer_ids=tuple(chosen[:2]))
    assert not says_it(own, said)
    own.model.generation_config.eos_token_id = chosen[2]
    assert says_it(own, said)
    assert not says_it(own, dataclasses.replace(ready, answer_ids=(chosen[0], 5)))
    assert not says_it(own, dataclasses.replace(ready, answer_ids=tuple(chosen[:1])))


# The library on disk


def concepts(shape: tuple[int, int] = (3, 48)) -> list[Concept]:
    rng = np.random.default_rng(1)
    made = [rng.uniform(0, 1, shape).astype(np.float32) for _ in range(2)]
    return [Concept(name, "colour", 5, mu, {"own": 0.5}) for name, mu in zip(("red", "<b>é"), made, strict=True)]


def test_a_library_comes_back_to_within_half_a_step(tmp_path: Path) -> None:
    saved = concepts()
    libraries.save(tmp_path, saved, {"model_revision": "abc", "map": "linear"})
    loaded = libraries.load(tmp_path, "abc", (3, 48))
    assert [(c.name, c.kind, c.probes, c.figures) for c in loaded.concepts] == [
        (c.name, c.kind, c.probes, c.figures) for c in saved
    ]
    for ours, theirs in zip(loaded.concepts, saved, strict=True):
        assert ours.memberships.dtype == np.float32
        assert np.abs(ours.memberships - theirs.memberships).max() <= 0.5 / 255 + 1e-6
    assert loaded.recipe["map"] == "linear"
    again = libraries.load(tmp_path, "abc", (3, 48))
    assert again.revision == loaded.revision
    libraries.save(tmp_path, saved[:1], {"model_revision": "abc"})
    assert libraries.load(tmp_path, "abc", (3, 48)).revision != loaded.revision


def test_a_library_of_another_model_is_refused(tmp_path: Path) -> None:
    assert libraries.load(tmp_path, "abc", (3, 48)).concepts == ()
    libraries.save(tmp_path, concepts(), {"model_revision": "abc"})
    with pytest.raises(ModelRefused, match=r"built for model revision abc, not xyz\. Rebuild it"):
        libraries.load(tmp_path, "xyz", (3, 48))
    with pytest.raises(ModelRefused, match="neurons"):
        libraries.load(tmp_path, "abc", (3, 49))
    about = json.loads((tmp_path / "library.json").read_text("utf-8"))
    assert [entry["name"] for entry in about["concepts"]] == ["red", "<b>é"]


def test_the_matrix_holds_one_concept_a_row() -> None:
    made = concepts()
    table = libraries.matrix(libraries.Library("r", tuple(made)), "cpu")
    assert table.names == ("red", "<b>é")
    assert torch.equal(table.values[1].reshape(3, 48), torch.from_numpy(made[1].memberships))
    assert libraries.matrix(libraries.EMPTY, "cpu").names == ()
