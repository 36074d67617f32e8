"""Probes: pictures with a question whose answer expresses one concept, and where the concept is.  Torch-free.

Concepts of the world are its objects, their categories, colours, shapes, counts, and the relations between things. The
three splits draw scenes from seeds of their own, none of which training, evaluation or samples use: build concepts on
"build", choose on "dev", report on "test".

No answer of this world *says* a relation: asked what is to the left of the dog, the model names a thing. A relation's
probe is therefore a contrast. In a scene of three things the one asked about lies between the others; the target is
log p(the thing on the side asked for) − log p(the thing on the other side), so that only the relation decides it. For
"next to" there are two things, and the contrast is the thing asked about itself. What the things' own names add must
cancel: all relations are asked about the same things, each once as the answer and once as its contrast, and are then
compared with one another."""

import random
from dataclasses import dataclass
from typing import Final, Literal

from engine.builtin import questions, scenes, world

Split = Literal["build", "dev", "test"]
Kind = Literal["object", "category", "colour", "shape", "count", "relation"]
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
    None where no one thing is meant. `against`: of a relation's probe, what would be said in its place."""

    picture: scenes.Pixels
    question: str
    answer: str
    span_text: str
    box: scenes.Box | None
    against: str | None = None


_ASKED_BY: Final = {
    "left of": ("relation", " to the left of the "),
    "right of": ("relation", " to the right of the "),
    "above": ("relation", " above the "),
    "below": ("relation", " below the "),
    "next to": ("next", " the "),
}
"""Each relation's kind of question, and the words in it before the thing asked about."""


def concept_names() -> tuple[Concept, ...]:
    """Every concept of the world: objects, categories, colours, shapes, counts from one to four, relations. Names are
    unique."""
    kinds: tuple[tuple[Kind, tuple[str, ...]], ...] = (
        ("object", world.NAMES),
        ("category", world.CATEGORIES),
        ("colour", tuple(world.COLOURS)),
        ("shape", world.SHAPES),
        ("count", world.NUMBERS[1:]),
        ("relation", tuple(_ASKED_BY)),
    )
    return tuple(Concept(name, kind) for kind, names in kinds for name in names)


_CONCEPTS: Final = {concept.name: concept for concept in concept_names()}
_ASKED: Final[dict[Kind, tuple[str, ...]]] = {
    "object": ("name", "side", "catname"),
    "category": ("category",),
    "colour": ("color",),
    "shape": ("shape",),
    "count": ("count", "countcat"),
    "relation": ("relation", "next"),
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
    if wanted.kind == "relation":
        return [_related(name, _related_things(k, seed, split), rng, conditions) for k in range(n)]
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


def _related_things(k: int, seed: int, split: Split) -> tuple[str, str, str]:
    """(asked about, answer, contrast) of the k-th probe of every relation. Of each four in a row the first and third
    are of the same things, answer and contrast exchanged, and so are the second and fourth."""
    rng = scenes.seeded("probe", split, "relation", seed, k // 4 * 2 + k % 2)
    asked, one, other = rng.sample(world.NAMES, 3)
    return (asked, one, other) if k % 4 < 2 else (asked, other, one)


def _related(name: str, things: tuple[str, str, str], rng: random.Random, conditions: scenes.Conditions) -> Probe:
    """A scene in which the relation, asked of the first of `things`, gives the second and not the third."""
    kind, words = _ASKED_BY[name]
    asked, answer, against = things if name != "next to" else (things[2], things[1], things[2])
    while True:
        scene = scenes.make_scene(rng, list(dict.fromkeys((asked, answer, against))))
        for _ in range(12):
            qa = questions.ask(scene, kind, rng)
            if qa is not None and qa.thing is not None and qa.answer == answer and f"{words}{asked}?" in qa.question:
                drawn = scenes.render(scene, conditions)
                return Probe(drawn.pixels, qa.question, qa.answer, qa.answer, drawn.boxes[qa.thing], against)


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
