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
from tests.engine import tiny

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


def test_a_layers_map_is_the_sum_of_its_neurons(result: Attribution, raw: np.ndarray) -> None:
    kinds = np.array(result.modality_of_position)
    assert result.layer_heats is not None
    assert near(result.layer_heats, raw[:, kinds == "image"].sum(2).reshape(3, 4, 4))
    assert result.heat is not None
    assert near(result.heat, result.layer_heats.astype(np.float64).sum(0))


@pytest.mark.parametrize("method", ["gradient", "integrated", "ablation"])
def test_a_neurons_activation_map_is_what_its_mlp_computes(
    engine: LocalEngine, model: Loaded, question: Question, method: str
) -> None:
    """The activations recomputed from the MLP's input by its own weights, on image positions."""
    prompt = build_prompt(model, question)
    layers = tiny.decoder_of(model.model).layers
    entered: list[torch.Tensor] = []
    handles = [layer.mlp.register_forward_pre_hook(lambda _m, args: entered.append(args[0][0])) for layer in layers]
    tiny.logits(model.model, prompt, ANSWER)
    for handle in handles:
        handle.remove()
    found = engine.attribute(question, ANSWER, Target(leave_out=("special",)), method, top=20)
    assert len(found.neurons) == 20
    for neuron in found.neurons:
        mlp, states = layers[neuron.layer].mlp, entered[neuron.layer][prompt.image_positions]
        gate, up = mlp.gate_proj.weight[neuron.index], mlp.up_proj.weight[neuron.index]
        expected = (torch.nn.functional.silu(states @ gate) * (states @ up)).reshape(4, 4).numpy()
        assert neuron.activation is not None
        assert np.abs(neuron.activation - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("method", ["direct", "pan", "logprob_increase"])
def test_methods_that_read_the_predicting_positions_show_no_activation(
    engine: LocalEngine, question: Question, method: str
) -> None:
    found = engine.attribute(question, ANSWER, Target(), method, top=3)
    assert found.layer_heats is None
    assert all(neuron.activation is None for neuron in found.neurons)


def test_scores_are_dealt_over_cells_and_activations_averaged() -> None:
    """Three positions on two cells: one each, and one that covers both, as a thumbnail under two tiles."""
    grid, spread = Grid(1, 2, (0, 0, 20, 10)), torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]])
    modality = ["template", *["image"] * 3, "answer"]
    scores, activations = torch.zeros(5, 2), torch.zeros(5, 2)
    scores[1:4, 1] = torch.tensor([4.0, 6.0, 2.0])
    activations[1:4, 1] = torch.tensor([3.0, 9.0, 6.0])
    scored = Scored([scores], torch.tensor([[0.0, 9.0]]), 0.0, activations=[activations])
    result = build("gradient", Target(), scored, modality, grid, None, 2, spread)
    first, second = result.neurons
    assert (first.index, first.peak) == (1, 9.0)
    assert first.heat is not None
    assert first.heat.tolist() == [[5, 7]]
    assert first.activation is not None
    assert first.activation.tolist() == [[4, 8]]  # (3 + 6/2) / 1.5 and (9 + 6/2) / 1.5
    assert result.heat is not None
    assert result.heat.tolist() == [[5, 7]]
    assert second.activation is not None
    assert not second.activation.any()


def test_where_scores_cancel_by_construction_every_layers_map_is_empty() -> None:
    scores = torch.ones(3, 2)
    scored = Scored([scores, scores], torch.zeros(2, 2), 0.0, cancels=True)
    result = build("gradient", Target(), scored, ["template", "image", "image"], Grid(1, 2, (0, 0, 2, 1)), None, 1)
    assert result.layer_heats is not None
    assert result.layer_heats.shape == (2, 1, 2)
    assert not result.layer_heats.any()
    assert result.heat is not None
    assert not result.heat.any()
    assert result.neurons[0].heat is not None
    assert result.neurons[0].heat.all()


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
