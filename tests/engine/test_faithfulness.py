"""Deletion curves against weight surgery, rank correlation against its definition, cancelling, figures."""

import numpy as np
import pytest
import torch

from engine.attribution import faithfulness
from engine.attribution.effects import Subject, subject_of
from engine.attribution.faithfulness import descending, measure, neuron_scores, sampled
from engine.concepts.membership import Ready
from engine.contract import Cancelled, Faithfulness, NeuronTurn, Question, Steering, Target
from engine.hooks import count_hooks
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.measures import mean_over_log, ranks, spearman
from engine.prompts import Prompt, build_prompt
from engine.running import picture_features
from engine.targets import Part
from tests.engine import tiny

ANSWER = (700, 701, 686)


@pytest.fixture(scope="module")
def prompt(model: Loaded, question: Question) -> Prompt:
    return build_prompt(model, question)


@pytest.fixture(scope="module")
def subject(model: Loaded, prompt: Prompt) -> Subject:
    features = picture_features(model, prompt.pixels)
    return subject_of(model, prompt, features, [Part(1, ANSWER, Target(0, 3))])


@pytest.fixture(scope="module")
def scores(subject: Subject) -> np.ndarray:
    return neuron_scores(subject, "gradient")


@pytest.fixture(scope="module")
def found(subject: Subject, scores: np.ndarray) -> Faithfulness:
    return measure(subject, scores, "gradient", top=20, others=10, batch=7)


def without(model: Loaded, prompt: Prompt, neurons: list[int]) -> float:
    """S with the columns of these neurons' write vectors zeroed."""
    other = tiny.changed(model)
    with torch.no_grad():
        for flat in neurons:
            tiny.decoder_of(other.model).layers[flat // 48].mlp.down_proj.weight[:, flat % 48] = 0
    return float(tiny.span_logprob(tiny.logits(other.model, prompt, ANSWER), prompt, ANSWER, 0, 3))


def test_ranks_and_spearman_are_as_defined() -> None:
    assert ranks([10, 30, 20, 20]).tolist() == [1, 4, 2.5, 2.5]
    rng = np.random.default_rng(0)
    for _ in range(5):
        a, b = rng.permutation(30), rng.permutation(30)
        expected = 1 - 6 * ((a - b) ** 2).sum() / (30 * (30**2 - 1))
        assert spearman(a, b) == pytest.approx(expected)
    tied = rng.integers(0, 4, 30)
    mean_ranks = np.array([(tied < v).sum() + ((tied == v).sum() + 1) / 2 for v in tied])
    other = rng.normal(size=30)
    order = np.array([(other < v).sum() + 1 for v in other])
    assert spearman(tied, other) == pytest.approx(np.corrcoef(mean_ranks, order)[0, 1])
    assert spearman([1, 2, 3], [5, 50, 500]) == pytest.approx(1)
    assert spearman([1, 2, 3], [0, -1, -2]) == pytest.approx(-1)
    assert spearman([1, 1, 1], [1, 2, 3]) == 0


def test_means_over_sizes_weigh_each_doubling_alike() -> None:
    assert mean_over_log([1, 2, 4, 8], [1, 1, 1, 1]) == pytest.approx(1)
    assert mean_over_log([1, 10, 100], [0, 1, 2]) == pytest.approx(1)
    assert mean_over_log([1, 2, 8], [0, 3, 3]) == pytest.approx((1.5 * np.log(2) + 3 * np.log(4)) / np.log(8))
    assert mean_over_log([5], [7]) == 7


def test_rankings_break_ties_by_place() -> None:
    tied = np.array([[0.0, 2, 1], [2, -5, 1]], np.float32)
    assert descending(tied).tolist() == [1, 3, 2, 5, 0, 4]
    assert sampled(tied, 3, 0, 0) == [4, 1, 3]
    assert len(set(sampled(tied, 2, 3, 0))) == 5


def test_the_deletion_curve_is_weight_surgery(
    model: Loaded, prompt: Prompt, scores: np.ndarray, found: Faithfulness
) -> None:
    order = descending(scores).tolist()
    assert found.sizes == (1, 2, 5, 10, 20, 50)
    assert found.whole == pytest.approx(without(model, prompt, []), abs=1e-4)
    for k in (0, 2, 4):
        assert found.ranked[k] == pytest.approx(without(model, prompt, order[: found.sizes[k]]), abs=1e-3)
    assert found.emptied == pytest.approx(found.whole - without(model, prompt, list(range(144))), abs=1e-3)
    for name, effect in list(zip(found.sample, found.effects, strict=True))[:4]:
        _, layer, index = name.split(".")
        lost = found.whole - without(model, prompt, [int(layer) * 48 + int(index)])
        assert effect == pytest.approx(lost, abs=1e-3)
    assert len(found.random) == 3
    assert len(set(found.random)) == 3


def test_figures_follow_from_the_curves(scores: np.ndarray, found: Faithfulness) -> None:
    chance = np.mean(found.random, axis=0)
    assert found.area == pytest.approx(mean_over_log(found.sizes, chance - np.array(found.ranked)))
    assert found.auc == pytest.approx(mean_over_log(found.sizes, found.whole - np.array(found.ranked)))
    assert found.spearman == pytest.approx(spearman(found.scores, found.effects))
    assert found.total == pytest.approx(float(scores.sum()), abs=1e-3)
    assert found.completeness_error == pytest.approx(abs(found.total - found.emptied) / abs(found.emptied))
    assert found.unit == "log-probability"


def test_the_exact_ranking_correlates_perfectly_and_a_reversed_one_not_at_all(subject: Subject) -> None:
    exact = neuron_scores(subject, "ablation")
    perfect = measure(subject, exact, "ablation", top=30, others=10)
    reversed_ = measure(subject, -exact, "ablation", top=30, others=10)
    assert perfect.spearman == pytest.approx(1, abs=0.02)
    assert reversed_.spearman == pytest.approx(-1, abs=0.02)
    assert perfect.area > 0 > reversed_.area


def test_progress_is_told_and_it_stops_between_batches(model: Loaded, subject: Subject, scores: np.ndarray) -> None:
    told: list[tuple[int, int]] = []
    measure(subject, scores, "gradient", top=4, others=2, batch=8, on_progress=lambda done, n: told.append((done, n)))
    assert told[-1][0] == told[-1][1] == 1 + 4 * 6 + 1 + 6
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    calls: list[int] = []
    with pytest.raises(Cancelled):
        measure(subject, scores, "gradient", cancelled=lambda: len(calls) > 1, on_progress=lambda *_: calls.append(1))
    assert len(calls) == 2
    assert count_hooks(model.model) == 0


def test_the_engine_measures_the_steered_model_and_contrasts(engine: LocalEngine, question: Question) -> None:
    steering = Steering(neurons=(NeuronTurn(1, 3, "set", 0.0),))
    steered = engine.faithfulness(question, ANSWER, Target(), "direct", steering)
    value = engine.attribute(question, ANSWER, Target(), steering=steering).value
    assert steered.whole == pytest.approx(value, abs=1e-4)
    contrast = engine.faithfulness(question, ANSWER, Target(text=" red", against=" lemon", quantity="logit"))
    assert contrast.unit == "logit"
    target = Target(text=" red", against=" lemon")
    assert contrast.whole == pytest.approx(engine.attribute(question, ANSWER, target).value, abs=1e-3)


def test_intervals_contain_the_mean() -> None:
    mean, low, high = faithfulness.bootstrap([1.0, 2.0, 3.0, 4.0])
    assert low < mean == 2.5 < high
    assert all(np.isnan(value) for value in faithfulness.bootstrap([]))


def test_methods_are_compared_on_the_same_ablations(subject: Subject) -> None:
    rows = faithfulness.compare(subject, ["gradient", "pan"], 30, 16, 0)
    assert set(rows) == {"gradient", "pan"}
    summary = faithfulness.summary([rows, rows], ["gradient", "pan"])
    mean, low, high = summary["gradient"]["spearman"]
    assert low == pytest.approx(mean) == high == rows["gradient"]["spearman"]
    assert rows["gradient"]["spearman"] > rows["pan"]["spearman"]


def test_gradient_names_the_built_in_models_neurons(builtin: Loaded) -> None:
    ready: list[Ready] = faithfulness.held_out(builtin, 1, "dev", 0)
    subject = faithfulness.of_probe(builtin, ready[0])
    scores = neuron_scores(subject, "gradient")
    found = measure(subject, scores, "gradient", random_sets=1, top=20, others=0)
    assert found.area > 0
    assert found.whole < 0
