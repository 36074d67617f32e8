"""The same numbers on a CUDA device as on the CPU, for the built-in model. Skipped, with the reason, without CUDA."""

import numpy as np

from engine.builtin import scenes
from engine.contract import ConceptTurn, Question, Steering
from engine.hooks import count_hooks
from engine.local import load_engine


def _question() -> Question:
    drawn = scenes.render(scenes.make_scene(scenes.seeded("gpu"), ["penguin", "pizza"]))
    return Question(drawn.pixels, "what is on the left?")


def test_cuda_gives_the_cpu_answer_and_ranking() -> None:
    on_cpu = load_engine(device="cpu").ask(_question())
    engine = load_engine(device="cuda")
    on_gpu = engine.ask(_question())
    assert on_gpu.answer.text == on_cpu.answer.text
    np.testing.assert_allclose(on_gpu.attribution.scores, on_cpu.attribution.scores, rtol=1e-2, atol=1e-5)
    ranked = [[n.neuron for n in result.attribution.neurons[:20]] for result in (on_cpu, on_gpu)]
    assert len(set(ranked[0]) & set(ranked[1])) >= 18
    assert count_hooks(engine.loaded.model) == 0


def test_cuda_steering_changes_the_answer_as_on_the_cpu() -> None:
    answers = []
    for device in ("cpu", "cuda"):
        engine = load_engine(device=device)
        original = engine.ask(_question()).answer
        steering = Steering((ConceptTurn(original.text, -1.0),))
        steered = engine.steer(_question(), [token.id for token in original.tokens], steering)
        answers.append((original.text, steered.answer.text))
    assert answers[0] == answers[1]
