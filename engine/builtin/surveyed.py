"""Scenes of the little world, each with one question, for a survey of neurons: mixed as in training, from seeds of
their own.  Torch-free."""

from collections.abc import Iterator
from itertools import islice

from engine.builtin import questions
from engine.builtin import scenes as drawn


def _all() -> Iterator[tuple[drawn.Pixels, str]]:
    rng = drawn.seeded("survey", "build")
    while True:
        scene = drawn.make_scene(rng)
        asked = (questions.ask(scene, kind, rng) for kind in rng.sample(questions.KINDS, len(questions.KINDS)))
        qa = next((one for one in asked if one is not None), None)
        if qa is not None:
            yield drawn.render(scene).pixels, qa.question


def scenes(n: int) -> list[tuple[drawn.Pixels, str]]:
    """The first `n` of a fixed list: (picture, question)."""
    return list(islice(_all(), n))
