"""What `ask` and `attribute` promise about an attribution: shapes, sums, orders, and when there is no heat map."""

import numpy as np
import pytest

from engine.contract import (
    MAPPED,
    METHODS,
    MODALITIES,
    Asked,
    Attribution,
    BadTarget,
    Cancelled,
    ConceptTurn,
    Engine,
    Question,
    Steering,
    Target,
)


@pytest.fixture(scope="session", params=list(METHODS))
def every(request: pytest.FixtureRequest, engine: Engine, question: Question, ids: list[int]) -> Attribution:
    """The whole answer's attribution by each method, with all neurons listed."""
    return engine.attribute(question, ids, Target(), request.param, top=engine.info().n_neurons)


def close(ours: object, theirs: object) -> bool:
    theirs = np.asarray(theirs, np.float64)
    return bool(np.abs(np.asarray(ours, np.float64) - theirs).max() <= 1e-4 * max(1.0, np.abs(theirs).max()))


def test_arrays_have_their_shapes_and_are_float32(engine: Engine, every: Attribution) -> None:
    info, grid = engine.info(), every.grid
    positions = len(every.modality_of_position)
    assert grid is not None
    assert every.scores.shape == (info.n_layers, info.d_mlp)
    assert every.layer_sums.shape == (info.n_layers, len(MODALITIES))
    assert every.positions.shape == (info.n_layers, positions)
    assert every.method in METHODS
    arrays = [every.scores, every.layer_sums, every.positions]
    arrays += [heat for heat in (every.heat, *(neuron.heat for neuron in every.neurons[:3])) if heat is not None]
    assert all(array.dtype == np.float32 for array in arrays)
    assert all(np.isfinite(array).all() for array in arrays)
    assert isinstance(every.value, float)
    assert all(check.holds for check in every.checks)


def test_methods_that_score_image_positions_have_heat_maps_and_others_none(every: Attribution) -> None:
    heats = [every.heat, *(entry.heat for entry in every.neurons), *(entry.heat for entry in every.concepts)]
    if every.method not in MAPPED:
        assert all(heat is None for heat in heats)
    else:
        grid = every.grid
        assert grid is not None
        assert all(heat is not None and heat.shape == (grid.rows, grid.cols) for heat in heats)


def test_each_layers_map_adds_up_to_the_whole(every: Attribution) -> None:
    if every.method not in MAPPED:
        assert every.layer_heats is None
        return
    assert every.heat is not None
    assert every.layer_heats is not None
    assert every.layer_heats.shape == (len(every.scores), *every.heat.shape)
    assert every.layer_heats.dtype == np.float32
    assert close(every.layer_heats.sum(0), every.heat)
    assert close(every.layer_heats.sum((1, 2)), every.layer_sums[:, MODALITIES.index("image")])
    for layer, heat in enumerate(every.layer_heats):
        assert close(heat, sum(neuron.heat for neuron in every.neurons if neuron.layer == layer))
    assert np.abs(every.layer_heats[:-1]).max(axis=(1, 2)).min() > 0  # the last layer's MLP acts at its own position


def test_neurons_show_their_activation_on_the_patches(every: Attribution) -> None:
    """Bounded by the peak over all positions; none where only the positions that predict the answer are read."""
    maps = [neuron.activation for neuron in every.neurons]
    if every.method not in (*MAPPED, "ablation"):
        assert all(activation is None for activation in maps)
        return
    assert every.grid is not None
    for neuron, activation in zip(every.neurons, maps, strict=True):
        assert activation is not None
        assert activation.shape == (every.grid.rows, every.grid.cols)
        assert activation.dtype == np.float32
        assert np.abs(activation).max() <= abs(neuron.peak) + 1e-5
    assert any(np.ptp(activation) > 0 for activation in maps if activation is not None)


def test_an_activation_belongs_to_the_run_and_not_to_the_target(
    engine: Engine, question: Question, ids: list[int], asked: Asked
) -> None:
    again = engine.attribute(question, ids, Target(leave_out=("special", "high-norm")), top=engine.info().n_neurons)
    maps = {neuron.neuron: neuron for neuron in again.neurons}
    for neuron in asked.attribution.neurons[:10]:
        other = maps[neuron.neuron]
        assert neuron.activation is not None
        assert other.activation is not None
        if other.peak == pytest.approx(neuron.peak):
            assert np.allclose(other.activation, neuron.activation, atol=1e-5)


def test_all_sums_agree(every: Attribution) -> None:
    by_kind = [
        every.positions[:, [kind == modality for kind in every.modality_of_position]].sum(1) for modality in MODALITIES
    ]
    assert np.abs(every.scores).max() > 0
    assert close(every.scores.sum(1), every.positions.sum(1))
    assert close(every.layer_sums, np.stack(by_kind, -1))
    if every.heat is not None:
        assert close(every.heat.sum(), every.layer_sums[:, MODALITIES.index("image")].sum())
        assert close(sum(neuron.heat for neuron in every.neurons if neuron.heat is not None), every.heat)


def test_neurons_carry_their_parts(every: Attribution) -> None:
    for neuron in every.neurons[:50]:
        assert neuron.score == pytest.approx(float(every.scores[neuron.layer, neuron.index]), abs=1e-5)
        assert sum(neuron.by_modality) == pytest.approx(neuron.score, abs=1e-4)
        assert 0 <= neuron.image_share <= 1
        assert neuron.neuron == f"text.{neuron.layer}.{neuron.index}"
        assert np.isfinite(neuron.peak)
        if neuron.heat is not None:
            assert float(neuron.heat.sum()) == pytest.approx(neuron.by_modality[0], abs=1e-4)


def test_neurons_are_ordered_by_magnitude_and_each_is_listed_once(engine: Engine, every: Attribution) -> None:
    order = [(-abs(neuron.score), neuron.layer, neuron.index) for neuron in every.neurons]
    assert order == sorted(order)
    assert len({(neuron.layer, neuron.index) for neuron in every.neurons}) == engine.info().n_neurons


@pytest.mark.parametrize("top", [0, 1, 7])
def test_top_limits_the_list_alone(engine: Engine, question: Question, asked: Asked, ids: list[int], top: int) -> None:
    result = engine.attribute(question, ids, Target(), top=top)
    listed = [neuron.neuron for neuron in result.neurons]
    assert listed == [neuron.neuron for neuron in asked.attribution.neurons[:top]]
    assert close(result.scores, asked.attribution.scores)


def test_concepts_are_scored_by_membership(engine: Engine, every: Attribution) -> None:
    memberships = {concept.name: concept.memberships for concept in engine.library().concepts}
    assert {entry.concept for entry in every.concepts} == set(memberships)
    order = [(-entry.similarity, entry.concept) for entry in every.concepts]
    assert order == sorted(order)
    assert all(0 <= entry.similarity <= 1 for entry in every.concepts)
    for entry in every.concepts[:10]:
        mu = memberships[entry.concept]
        assert close(entry.score, (mu.astype(np.float64) * every.scores).sum())
        if entry.heat is not None:
            parts = (mu[n.layer, n.index] * n.heat for n in every.neurons if n.heat is not None)
            assert close(entry.heat, sum(parts))


def test_asking_attributes_the_whole_answer(
    engine: Engine, question: Question, ids: list[int], every: Attribution
) -> None:
    asked = engine.ask(question, every.method)
    assert [token.id for token in asked.answer.tokens] == ids
    assert close(asked.attribution.scores, every.scores)
    assert asked.attribution.value == pytest.approx(every.value, abs=1e-3)
    assert asked.attribution.modality_of_position == every.modality_of_position
    assert len(asked.attribution.neurons) == 50
    assert asked.attribution.target.start == 0
    assert asked.attribution.target.end in (None, len(ids))


def test_the_gradients_value_is_the_sum_of_log_probabilities(engine: Engine, question: Question, asked: Asked) -> None:
    logprobs = [token.logprob for token in asked.answer.tokens]
    assert asked.attribution.value == pytest.approx(sum(logprobs), abs=1e-3)
    ids = [token.id for token in asked.answer.tokens]
    assert engine.attribute(question, ids, Target(1, 2)).value == pytest.approx(logprobs[1], abs=1e-3)


@pytest.mark.parametrize("method", [method for method in METHODS if method not in ("pan", "ablation")])
def test_the_score_of_a_span_is_the_sum_over_its_tokens(
    engine: Engine, question: Question, ids: list[int], method: str
) -> None:
    whole = engine.attribute(question, ids[:2], Target(0, 2), method)
    parts = [engine.attribute(question, ids[:2], Target(k, k + 1), method) for k in range(2)]
    assert close(whole.scores, parts[0].scores + parts[1].scores)
    assert close(whole.positions, parts[0].positions + parts[1].positions)
    assert whole.value == pytest.approx(parts[0].value + parts[1].value, abs=1e-3)
    assert not close(parts[0].scores, parts[1].scores)


def test_a_token_owes_nothing_to_what_comes_after_it(engine: Engine, question: Question, ids: list[int]) -> None:
    result = engine.attribute(question, ids, Target(0, 1))
    first = result.modality_of_position.index("answer")
    assert not result.positions[:, first:].any()
    assert result.positions[:, first - 1].any()


@pytest.mark.parametrize(("start", "end"), [(0, 0), (1, 1), (1, 0), (-1, 1), (0, 99), (99, None)])
def test_a_target_that_is_empty_or_outside_the_answer_is_refused(
    engine: Engine, question: Question, ids: list[int], start: int, end: int | None
) -> None:
    with pytest.raises(BadTarget):
        engine.attribute(question, ids, Target(start, end))


def test_an_empty_answer_has_nothing_to_attribute(engine: Engine, question: Question) -> None:
    with pytest.raises(BadTarget):
        engine.attribute(question, [], Target())


def test_an_attribution_can_be_cancelled(engine: Engine, question: Question, ids: list[int]) -> None:
    with pytest.raises(Cancelled):
        engine.attribute(question, ids, Target(), cancelled=lambda: True)


def test_attribution_is_of_the_steered_model(engine: Engine, question: Question, ids: list[int]) -> None:
    steering = Steering((ConceptTurn(engine.library().concepts[0].name, -1.0),))
    plain = engine.attribute(question, ids, Target())
    steered = engine.attribute(question, ids, Target(), steering=steering)
    assert not close(steered.scores, plain.scores)
    assert steered.value == pytest.approx(sum(engine.steer(question, ids, steering).original_under_steered), abs=1e-3)
