"""Probes: pictures with a question whose answer expresses one concept, and where the concept is.  Torch-free.

Concepts of the world are its objects, their categories, colours, shapes and counts. The three splits draw scenes from
seeds of their own, none of which training, evaluation or samples use: build concepts on "build", choose on "dev",
report on "test"."""

import random
from dataclasses import dataclass
from typing import Final, Literal

from engine.builtin import questions, scenes, world

Split = Literal["build", "dev", "test"]
Kind = Literal["object", "category", "colour", "shape", "count"]
SPLITS: Final[tuple[Split, ...]] = ("build", "dev", "test")


@dataclass(frozen=True)
class Concept:
    """Something that an answer can express, by its name in the world's words ("traffic light", "sea animal", "red",
    "two")."""

    name: str
    kind: Kind


@dataclass(frozen=True)
class Probe:
    """One question about one picture (SIZE, SIZE, 3). `span_text` is the part of the answer that says the concept
    (answers about categories read "penguin: animal"); `box` is the thing's, in pixels (left, top, right, bottom),
    None where no one thing is meant."""

    picture: scenes.Pixels
    question: str
    answer: str
    span_text: str
    box: scenes.Box | None


def concept_names() -> tuple[Concept, ...]:
    """Every concept of the world: objects, categories, colours, shapes, counts from one to four. Names are unique."""
    kinds: tuple[tuple[Kind, tuple[str, ...]], ...] = (
        ("object", world.NAMES),
        ("category", world.CATEGORIES),
        ("colour", tuple(world.COLOURS)),
        ("shape", world.SHAPES),
        ("count", world.NUMBERS[1:]),
    )
    return tuple(Concept(name, kind) for kind, names in kinds for name in names)


_CONCEPTS: Final = {concept.name: concept for concept in concept_names()}
_ASKED: Final[dict[Kind, tuple[str, ...]]] = {
    "object": ("name", "side", "catname"),
    "category": ("category",),
    "colour": ("color",),
    "shape": ("shape",),
    "count": ("count", "countcat"),
}


def concept(name: str) -> Concept:
    """The concept of this name; an unknown name raises with near misses."""
    if name not in _CONCEPTS:
        near = [known for known in _CONCEPTS if known[:2] == name[:2]] or list(_CONCEPTS)[:5]
        raise ValueError(f"no concept {name!r} in the built-in world; near: {', '.join(near)}")
    return _CONCEPTS[name]


def probes(
    name: str, n: int, seed: int, split: Split, conditions: scenes.Conditions = scenes.PLAIN_CONDITIONS
) -> list[Probe]:
    """`n` probes of a concept; the same arguments give the same probes, and different splits share no scene."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; one of {', '.join(SPLITS)}")
    wanted = concept(name)
    rng = scenes.seeded("probe", split, name, seed)
    found: list[Probe] = []
    while len(found) < n:
        scene = scenes.make_scene(rng, _things(wanted, rng))
        for _ in range(6):
            qa = questions.ask(scene, rng.choice(_ASKED[wanted.kind]), rng)
            if qa is not None and qa.span == name:
                drawn = scenes.render(scene, conditions)
                box = drawn.boxes[qa.thing] if qa.thing is not None and wanted.kind != "count" else None
                found.append(Probe(drawn.pixels, qa.question, qa.answer, qa.span, box))
                break
    return found


def _things(wanted: Concept, rng: random.Random) -> list[str]:
    """Names of one or two things (for a count: as many as it says and perhaps others) that let the concept be asked
    about."""
    if wanted.kind == "count":
        number = world.NUMBERS.index(wanted.name)
        name = rng.choice([name for name in world.NAMES if world.number_of(name) != "m"])
        names = [name] * number + [rng.choice(world.NAMES) for _ in range(rng.randint(0, 4 - number))]
    else:
        if wanted.kind == "object":
            name = wanted.name
        elif wanted.kind == "category":
            name = rng.choice(world.IN_CATEGORY[wanted.name])
        elif wanted.kind == "colour":
            name = f"{wanted.name} {rng.choice(world.SHAPES)}"
        else:
            name = f"{rng.choice(list(world.COLOURS))} {wanted.name}"
        names = [name] if rng.random() < 0.5 else [name, rng.choice(world.NAMES)]
    rng.shuffle(names)
    return names
