"""The benchmark's own measures, its optional peers, and captum's integrated gradients as a second oracle."""

import numpy as np
import pytest
import torch

from engine import bench, bench_peers
from engine.attribution.gradient import gradient
from engine.attribution.integrated import integrated
from engine.contract import Question, Target
from engine.features import Inputs
from engine.hooks import count_hooks
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import Prompt, build_prompt
from engine.running import embed, picture_features, with_answer
from tests.engine import tiny

ANSWER = [700, 701, 686]
HOW = "an optional peer of the benchmark: pip install 'sfumato[peers]'"


@pytest.fixture(scope="module")
def prompt(model: Loaded, question: Question) -> Prompt:
    return build_prompt(model, question)


@pytest.fixture(scope="module")
def inputs(model: Loaded, prompt: Prompt) -> Inputs:
    return embed(model, with_answer(prompt, ANSWER), picture_features(model, prompt.pixels))


def test_peak_memory_is_the_most_that_is_held_at_once() -> None:
    def hold(count: int) -> list[torch.Tensor]:
        return [torch.zeros(2**18) for _ in range(count)]

    def one_after_the_other() -> None:
        for _ in range(5):
            hold(1)

    assert bench.peak_bytes(lambda: hold(5), "cpu") == pytest.approx(5 * 2**20, rel=0.01)
    assert bench.peak_bytes(one_after_the_other, "cpu") == pytest.approx(2**20, rel=0.01)


def test_every_round_runs_every_call() -> None:
    runs: list[str] = []
    times = bench.measure({"a": lambda: runs.append("a"), "b": lambda: runs.append("b")}, 3)
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}
    assert sorted(runs) == ["a"] * 5 + ["b"] * 5


def test_the_contenders_run_and_leave_nothing_behind(builtin_engine: LocalEngine) -> None:
    calls = bench.contenders(builtin_engine)
    for pair in bench.PAIRS:
        for name in pair:
            calls[name]()
    assert count_hooks(builtin_engine.loaded.model) == 0


def test_peers_agree_with_gradient(model: Loaded, inputs: Inputs) -> None:
    found = bench_peers.peers(model, inputs, ANSWER)
    if not found:
        pytest.skip(f"neither nnsight nor captum is installed: {HOW}")
    ours = gradient(model, inputs, ANSWER, Target()).scores
    for name, call in found.items():
        assert bench_peers.disagreement(call(), ours) < 1e-3, name
    assert bench_peers.disagreement([layer * 1.01 for layer in ours], ours) > 1e-3
    assert count_hooks(model.model) == 0
    assert not any(parameter.requires_grad for parameter in model.model.parameters())


def test_integrated_is_captums_integrated_gradients_of_the_gates(model: Loaded, inputs: Inputs, prompt: Prompt) -> None:
    """captum integrates S over one gate a neuron and position, from 0 to 1, by the same quadrature."""
    attr = pytest.importorskip("captum.attr", reason=HOW)

    def value(gates: torch.Tensor) -> torch.Tensor:
        with tiny.edited(model.model, lambda number, activation: activation * gates[:, number]):
            rows = model.model(**tiny.inputs(prompt, ANSWER), use_cache=False).logits[0]
        return tiny.span_logprob(rows, prompt, ANSWER, 0, len(ANSWER))[None]

    gates = torch.ones(1, 3, prompt.length + len(ANSWER), 48, requires_grad=True)
    theirs = attr.IntegratedGradients(value).attribute(
        gates, baselines=0.0, n_steps=12, method="gausslegendre", internal_batch_size=1
    )
    ours = torch.stack(integrated(model, inputs, ANSWER, Target(), steps=12).scores).numpy()
    assert np.abs(ours - theirs[0].detach().numpy()).max() < 1e-4 * np.abs(ours).max()
