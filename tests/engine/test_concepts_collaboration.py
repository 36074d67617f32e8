"""Synergy and interactions against exact loops, and on a model where nothing interacts (METHODS.md §2.5)."""

import numpy as np
import pytest
import torch

from engine.concepts.collaboration import collaboration, cut
from engine.concepts.membership import Ready, prepare_one
from engine.concepts.probes import Probe
from engine.concepts.results import collaboration_runs, mean_interval, proportion, wilson
from engine.contract import Cancelled, RequestError
from engine.hooks import count_hooks
from engine.loading import Loaded
from tests.engine import tiny

PROBES = [Probe(tiny.picture(k), "what is this?", "a red star", "red") for k in range(3)]


def some_memberships() -> np.ndarray:
    mu = np.zeros((3, 48), np.float32)
    mu[0, 5], mu[1, 7], mu[2, 3], mu[2, 9], mu[1, 1], mu[0, 0] = 1, 0.9, 0.8, 0.8, 0.6, 0.4
    return mu


def without(model: Loaded, ready: Ready, neurons: list[int]) -> float:
    """S with these neurons' activations set to zero, by hooks of the test's own."""

    def edit(layer: int, activations: torch.Tensor) -> torch.Tensor:
        changed = activations.clone()
        for flat in neurons:
            if flat // 48 == layer:
                changed[..., flat % 48] = 0
        return changed

    with tiny.edited(model.model, edit):
        rows = tiny.logits(model.model, ready.prompt, ready.answer_ids)
    return float(tiny.span_logprob(rows, ready.prompt, ready.answer_ids, ready.target.start, ready.target.end or 0))


def test_the_cut_is_ordered_and_limited() -> None:
    assert cut(some_memberships(), 0.5) == [5, 55, 99, 105, 49]
    assert cut(some_memberships(), 0.0)[-1] == 0
    assert cut(some_memberships(), 0.0, 2) == [5, 55]


def test_effects_are_those_of_exact_loops(model: Loaded) -> None:
    found = collaboration(model, some_memberships(), PROBES, alpha=0.5, top=4, batch=5)
    members = [5, 55, 99, 105, 49]
    assert found.members == ("text.0.5", "text.1.7", "text.2.3", "text.2.9", "text.1.1")
    assert found.top == found.members[:4]
    joint, apart, pair = [], [], []
    for probe in PROBES:
        ready = prepare_one(model, probe)
        whole = without(model, ready, [])
        effect = {n: whole - without(model, ready, [n]) for n in members}
        joint.append(whole - without(model, ready, members))
        apart.append(sum(effect.values()))
        pair.append(whole - without(model, ready, [55, 105]) - effect[55] - effect[105])
    assert found.joint.value == pytest.approx(np.mean(joint), abs=1e-3)
    assert found.apart.value == pytest.approx(np.mean(apart), abs=1e-3)
    assert found.synergy.value == pytest.approx(np.mean(joint) - np.mean(apart), abs=1e-3)
    assert found.synergy.low <= found.synergy.value <= found.synergy.high
    assert found.interactions[1, 3] == pytest.approx(np.mean(pair), abs=1e-3)
    assert np.array_equal(found.interactions, found.interactions.T)
    assert not found.interactions.diagonal().any()
    assert found.errors[1, 3] == pytest.approx(np.std(pair, ddof=1) / 3**0.5, abs=1e-3)
    assert abs(found.interactions).max() > 1e-3
    assert count_hooks(model.model) == 0


def test_where_neurons_only_add_up_there_is_no_synergy(model: Loaded) -> None:
    own = tiny.changed(model)
    own.model.model.language_model.norm = torch.nn.Identity()
    mu = np.zeros((3, 48), np.float32)
    mu[2, :6] = 1  # the last layer writes straight into the logits
    added = collaboration(own, mu, PROBES[:2], quantity="logit")
    assert abs(added.joint.value) > 0.1
    assert added.synergy.value == pytest.approx(0, abs=1e-3)
    assert np.abs(added.interactions).max() < 1e-3
    mu[1, :6] = 1  # an earlier layer is read by the last one
    assert abs(collaboration(own, mu, PROBES[:2], quantity="logit").synergy.value) > 0.01


def test_progress_ends_at_the_estimate_and_it_can_be_stopped(model: Loaded) -> None:
    told: list[tuple[int, int]] = []
    collaboration(model, some_memberships(), PROBES, top=4, batch=6, on_progress=lambda n, of: told.append((n, of)))
    runs = collaboration_runs(5, 4, 3)
    assert runs == 3 * (1 + 1 + 5 + 6)
    assert told[-1] == (runs, runs)
    assert [n for n, _ in told] == sorted(n for n, _ in told)
    with pytest.raises(Cancelled):
        collaboration(model, some_memberships(), PROBES, cancelled=lambda: True)
    with pytest.raises(RequestError, match="has 1 neurons and there are 3 probes"):
        collaboration(model, some_memberships(), PROBES, alpha=0.95)


def test_intervals_of_figures() -> None:
    assert wilson(0, 0) == (0, 1)
    low, high = wilson(8, 10)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert proportion([True, False]).value == 0.5
    assert np.isnan(proportion([]).value)
    found = mean_interval([1.0, 2.0, 3.0])
    assert found.low < found.value == 2 < found.high
    assert mean_interval([]).n == 0
