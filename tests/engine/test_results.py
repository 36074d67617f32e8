"""An attribution's totals agree with one another: by neuron, modality, layer, position, patch and concept."""

import numpy as np
import pytest
import torch

from engine.attribution.gradient import gradient
from engine.attribution.result import Scored, build, rank
from engine.concepts import library as libraries
from engine.concepts.library import QUANTILE
from engine.contract import MODALITIES, Attribution, Concept, Grid, Library, NonFinite, Question, Target
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import build_prompt
from engine.running import embed, picture_features, with_answer

ANSWER = [700, 701, 702]


@pytest.fixture(scope="module")
def known(model: Loaded) -> Library:
    rng = np.random.default_rng(3)
    sparse = [(rng.uniform(0, 1, (3, 48)) * (rng.uniform(0, 1, (3, 48)) > 0.7)).astype(np.float32) for _ in range(4)]
    names = ("red", "penguin", "two", "animal")
    return Library("made", tuple(Concept(name, "kind", 3, mu) for name, mu in zip(names, sparse, strict=True)))


@pytest.fixture(scope="module")
def raw(model: Loaded, question: Question) -> np.ndarray:
    """Every score (n_layers, pos, d_mlp)."""
    prompt = build_prompt(model, question)
    embeddings = embed(model, with_answer(prompt, ANSWER), picture_features(model, prompt.pixels))
    return torch.stack(gradient(model, embeddings, ANSWER, Target()).scores).numpy().astype(np.float64)


@pytest.fixture(scope="module")
def result(model: Loaded, question: Question, known: Library) -> Attribution:
    engine = LocalEngine(model)
    engine._library, engine._matrix = known, libraries.matrix(known, "cpu")
    return engine.attribute(question, ANSWER, Target(), top=144)


def near(ours: object, theirs: np.ndarray) -> bool:
    return bool(np.abs(np.asarray(ours) - theirs).max() <= 1e-5 * np.abs(theirs).max())


def test_totals_are_sums_of_the_scores(result: Attribution, raw: np.ndarray) -> None:
    kinds = np.array(result.modality_of_position)
    assert near(result.scores, raw.sum(1))
    assert near(result.positions, raw.sum(2))
    by_kind = np.stack([raw[:, kinds == kind].sum((1, 2)) for kind in MODALITIES], -1)
    assert near(result.layer_sums, by_kind)
    assert result.heat is not None
    assert near(result.heat, raw[:, kinds == "image"].sum((0, 2)).reshape(4, 4))
    assert result.heat.sum() == pytest.approx(result.layer_sums[:, 0].sum(), abs=1e-5)


def test_each_neurons_parts_are_its_own(result: Attribution, raw: np.ndarray) -> None:
    kinds = np.array(result.modality_of_position)
    assert len(result.neurons) == 144
    for neuron in result.neurons[:20]:
        own = raw[neuron.layer, :, neuron.index]
        assert neuron.score == pytest.approx(own.sum(), abs=1e-5)
        assert sum(neuron.by_modality) == pytest.approx(neuron.score, abs=1e-5)
        assert near(neuron.by_modality, np.array([own[kinds == kind].sum() for kind in MODALITIES]))
        assert neuron.heat is not None
        assert near(neuron.heat, own[kinds == "image"].reshape(4, 4))
        assert 0 <= neuron.image_share <= 1


def test_concept_scores_and_heat_maps_are_weighted_by_membership(
    result: Attribution, raw: np.ndarray, known: Library
) -> None:
    kinds = np.array(result.modality_of_position)
    expected = {}
    for concept in known.concepts:
        weighted = raw * concept.memberships[:, None, :]
        expected[concept.name] = (weighted.sum(), weighted[:, kinds == "image"].sum((0, 2)).reshape(4, 4))
    assert {entry.concept for entry in result.concepts} == set(expected)
    for entry in result.concepts:
        score, heat = expected[entry.concept]
        assert entry.score == pytest.approx(score, abs=1e-4)
        assert entry.heat is not None
        assert np.abs(entry.heat - heat).max() < 1e-4 * max(1, np.abs(heat).max())


def test_concepts_are_ordered_by_likeness_to_the_targets_own_fuzzy_set(
    result: Attribution, raw: np.ndarray, known: Library
) -> None:
    """Positive scores up to their own quantile, against each concept: Σ min / Σ max, written out in numpy."""
    positive = np.maximum(raw.sum(1), 0)
    own = np.minimum(positive / np.quantile(positive, QUANTILE), 1)
    expected = {
        c.name: np.minimum(c.memberships, own).sum() / np.maximum(c.memberships, own).sum() for c in known.concepts
    }
    assert [entry.concept for entry in result.concepts] == sorted(expected, key=lambda name: (-expected[name], name))
    for entry in result.concepts:
        assert entry.similarity == pytest.approx(expected[entry.concept], abs=1e-4)


def test_neurons_are_ranked_by_magnitude_and_ties_by_place(result: Attribution) -> None:
    order = [(-abs(neuron.score), neuron.layer, neuron.index) for neuron in result.neurons]
    assert order == sorted(order)
    tied = torch.zeros(3, 5)
    tied[2, 1], tied[0, 4], tied[1, 0], tied[0, 2] = 1.0, -1.0, 2.0, 1.0
    assert rank(tied, 6) == [5, 2, 4, 11, 0, 1]
    assert rank(tied, 10**6) == [5, 2, 4, 11, *(k for k in range(15) if k not in (5, 2, 4, 11))]


def test_a_neurons_image_share_is_by_magnitude(result: Attribution) -> None:
    for neuron in result.neurons[:10]:
        parts = [abs(part) for part in neuron.by_modality]
        assert neuron.image_share == pytest.approx(parts[0] / sum(parts))


@pytest.mark.parametrize("method", ["gradient", "direct"])
def test_no_heat_map_where_there_is_no_picture_or_no_image_position_is_scored(
    engine: LocalEngine, question: Question, method: str
) -> None:
    without = engine.attribute(Question(None, "what is this?"), ANSWER, Target(), method)
    assert without.grid is None
    assert without.heat is None
    assert all(neuron.heat is None for neuron in without.neurons)
    assert "image" not in without.modality_of_position
    assert not without.layer_sums[:, 0].any()
    direct = engine.attribute(question, ANSWER, Target(), "direct")
    assert direct.heat is None
    assert all(neuron.heat is None for neuron in direct.neurons)


def test_a_score_that_is_not_finite_is_refused_with_its_layer() -> None:
    scores = [torch.zeros(2, 3), torch.tensor([[0.0, 1, 2], [3, torch.inf, 5]])]
    scored = Scored(scores, torch.zeros(2, 3), 0.0)
    with pytest.raises(NonFinite, match="the scores of layer 1"):
        build("gradient", Target(), scored, ["template", "answer"], None, None, 5)


def test_a_planted_score_lies_in_its_cell_counted_by_rows_from_the_top() -> None:
    scores = torch.zeros(8, 3)
    scores[1 + 4, 2] = 7.0
    modality = ["template", *["image"] * 6, "answer"]
    grid = Grid(2, 3, (0, 0, 30, 20))
    result = build("gradient", Target(), Scored([scores], torch.zeros(1, 3), 0.0), modality, grid, None, 1)
    assert result.heat is not None
    assert result.heat.tolist() == [[0, 0, 0], [0, 7, 0]]
    assert result.neurons[0].by_modality == (7.0, 0.0, 0.0, 0.0)
    assert result.neurons[0].neuron == "text.0.2"
