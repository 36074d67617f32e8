"""The built-in world's evaluation set: every kind of question, in easy pictures and in hard ones. Torch-free.

Hard: grain (noise), blur, things half covered (occlusion), small things, drawing styles that training never saw (held
style), and four things in a picture. Scenes are drawn from a seed of their own for each split, kind and condition, so
that no two of them share a scene; training, probes and `engine.builtin.evaluate` use others again.
"""

import dataclasses
import functools
import itertools
import random
from collections.abc import Iterator

from engine.builtin import questions, scenes, world
from engine.errors import UnknownName
from engine.evaluation.contract import EASY, SPLITS, Item, ItemSet, Settings

KINDS = questions.KINDS
CONDITIONS: dict[str, scenes.Conditions] = {
    EASY: scenes.PLAIN_CONDITIONS,
    "noise 40": scenes.Conditions(noise=40),
    "noise 70": scenes.Conditions(noise=70),
    "blur": scenes.Conditions(blur=3.0),
    "occlusion": scenes.PLAIN_CONDITIONS,
    "small": scenes.PLAIN_CONDITIONS,
    "held style": scenes.PLAIN_CONDITIONS,
    "four things": scenes.PLAIN_CONDITIONS,
}
"""Conditions by name, and how their scenes are rendered. Noise is the standard deviation of grey levels, blur a radius
in pixels of the 126 × 126 picture."""
SHRUNK = 0.45
"""Side of a small thing, of its side in the easy scene; its centre stays where it was."""
LEAST_SIDE = 14
COVERED = 0.5
"""Part of a thing's box that occlusion covers, from one of its four sides."""
FOUR = scenes.Mix(counts=(0.0, 0.0, 0.0, 1.0), crowd=0.5)
ALL_THINGS = ("object", "colour", "shape")
GROUPS: dict[str, tuple[str, ...]] = {
    "name": ALL_THINGS, "side": ALL_THINGS, "catname": ("object",), "count": ("count",), "countcat": ("count",),
    "exist": ("yes or no",), "existcat": ("yes or no",), "category": ("category", "object"), "color": ("colour",),
    "shape": ("shape",), "relation": ALL_THINGS, "next": ALL_THINGS, "position": ("place",),
    "describe": ALL_THINGS, "twohop": ("object",),
}  # fmt: skip
"""Kinds of concepts that an answer names. Those of yes, no and places are built from the set's build questions."""
_UNSEEN = tuple(entry.name for entry in world.OBJECTS if entry.held_style)


def asked_under(kind: str, condition: str) -> bool:
    """Whether this kind of question can be asked of scenes of this condition."""
    if condition == "four things":
        return kind not in ("name", "next")  # about one thing, about two
    return condition != "held style" or kind not in ("color", "shape")  # a coloured shape has no drawing style


def _scene(rng: random.Random, condition: str) -> scenes.Scene:
    if condition == "four things":
        return scenes.make_scene(rng, mix=FOUR)
    if condition == "held style":
        names = scenes.choose_names(rng, scenes.PLAIN)
        return scenes.make_scene(rng, [rng.choice(_UNSEEN) for _ in names], held_style=True)
    scene = scenes.make_scene(rng)
    if condition != "small":
        return scene
    return dataclasses.replace(scene, things=tuple(_shrunk(thing) for thing in scene.things))


def _shrunk(thing: scenes.Thing) -> scenes.Thing:
    side = max(LEAST_SIDE, round(thing.side * SHRUNK))
    shift = (thing.side - side) // 2
    return dataclasses.replace(thing, left=thing.left + shift, top=thing.top + shift, side=side)


def covered(drawn: scenes.Picture, seed: int) -> scenes.Pixels:
    """The picture with a part of each thing's box under a plain grey bar, from a side drawn by `seed`."""
    rng = scenes.seeded("cover", seed)
    pixels = drawn.pixels.copy()
    for left, top, right, bottom in drawn.boxes:
        across, down = round((right - left) * COVERED), round((bottom - top) * COVERED)
        bars = ((left, top, left + across, bottom), (right - across, top, right, bottom),
                (left, top, right, top + down), (left, bottom - down, right, bottom))  # fmt: skip
        bar = rng.choice(bars)
        pixels[bar[1] : bar[3], bar[0] : bar[2]] = rng.randint(60, 190)
    return pixels


@functools.lru_cache(maxsize=512)
def picture_of(scene: scenes.Scene, condition: str) -> scenes.Pixels:
    """The scene's picture (SIZE, SIZE, 3) in this condition."""
    drawn = scenes.render(scene, CONDITIONS[condition])
    return covered(drawn, scene.seed) if condition == "occlusion" else drawn.pixels


def _cell(kind: str, condition: str, split: str, seed: int) -> Iterator[Item]:
    rng = scenes.seeded("evaluation", split, seed, kind, condition)
    for number in itertools.count():
        qa = None
        while qa is None:
            scene = _scene(rng, condition)
            qa = questions.ask(scene, kind, rng)
        yield Item(
            f"{split}/{kind}/{condition}/{number}", kind, condition, split, qa.question, (qa.answer,),
            functools.partial(picture_of, scene, condition), GROUPS[kind], qa.span,
        )  # fmt: skip


def builtin_items(settings: Settings) -> ItemSet:
    """The set's questions: `settings.build`, `dev` and `limit` of build, dev and test for each kind in each condition.
    Raises UnknownName for kinds or conditions that the set has not."""
    for what, asked, known in (
        ("kind of question", settings.kinds, KINDS),
        ("condition", settings.conditions, tuple(CONDITIONS)),
    ):
        for name in asked:
            if name not in known:
                raise UnknownName(f"The built-in set has no {what} {name!r}. Choose of {', '.join(known)}.")
    numbers = {"build": settings.build, "dev": settings.dev, "test": settings.limit}
    return ItemSet(
        tuple(
            item
            for kind in settings.kinds or KINDS
            for condition in settings.conditions or CONDITIONS
            if asked_under(kind, condition)
            for split in SPLITS
            for item in itertools.islice(_cell(kind, condition, split, settings.seed), numbers[split])
        )
    )
