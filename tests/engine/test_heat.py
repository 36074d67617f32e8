"""Is the heat over the thing that is asked about? On the built-in model, with scenes whose boxes are known."""

import numpy as np
import pytest

from engine.builtin import questions, scenes
from engine.contract import Question
from engine.local import LocalEngine
from engine.patches import cell_box


def two_things(number: int) -> tuple[scenes.Scene, int] | None:
    """A scene of two different things apart from left to right, and the index of the one on the right."""
    scene = scenes.make_scene(scenes.seeded("heat", number), None, scenes.Mix(counts=(0, 1, 0)))
    found = questions.sides(scene).get("on the right")
    if found is None:
        return None
    index = scene.things.index(found)
    other = scene.things[1 - index]
    apart = found.left >= other.left + other.side and found.name != other.name
    return (scene, index) if apart else None


def test_the_warmest_patch_lies_on_the_thing_that_the_answer_names(builtin_engine: LocalEngine) -> None:
    """Measured on an early checkpoint over 40 scenes: 38 in the thing's box (half a patch of margin), 37 nearer to it
    than to the other thing. The bound leaves room for other weights, and is far above a coin's toss."""
    scene_numbers = (number for number in range(200) if two_things(number))
    right, hits = 0, 0
    for number in [next(scene_numbers) for _ in range(14)]:
        found = two_things(number)
        assert found is not None
        scene, index = found
        drawn = scenes.render(scene, scenes.Conditions(noise=2.0))
        asked = builtin_engine.ask(Question(drawn.pixels, "what is on the right?", 8), top=1)
        if scene.things[index].name not in asked.answer.text:
            continue
        right += 1
        heat, grid = asked.attribution.heat, asked.attribution.grid
        assert heat is not None
        assert grid is not None
        row, column = np.unravel_index(int(heat.argmax()), heat.shape)
        left, top, end, bottom = cell_box(grid, int(row), int(column))
        a, b, c, d = drawn.boxes[index]
        hits += a - 7 <= (left + end) / 2 <= c + 7 and b - 7 <= (top + bottom) / 2 <= d + 7
    if right < 6:
        pytest.skip(f"the model names only {right} of 14 things; heat over a wrong answer says nothing")
    assert hits >= 0.6 * right
