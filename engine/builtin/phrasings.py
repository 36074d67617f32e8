"""The words of the questions: canonical templates, the looser ways in which people say the same, and surface noise.
Torch-free.

`CANONICAL` is what most of training and the main table of the evaluation use. `LOOSE` is for a share of training
only; the *last* loose template of each kind is never trained on, so that an unseen phrasing can be measured
(`templates(kind, "unseen")`). Slots: {x} a name or phrase, {a} a name with its article, {s} a plural, {c} a category,
{v} "is" or "are"."""

import random
from typing import Final, Literal

from engine.builtin import world

Wording = Literal["canonical", "loose", "unseen"]

CANONICAL: Final[dict[str, tuple[str, ...]]] = {
    "name": ("what is this?", "what is in the picture?", "what does the picture show?", "name the object."),
    "side": ("what is {x}?", "what is the thing {x}?", "name the object {x}."),
    "catname this": ("which {c} is this?", "what is the name of the {c}?"),
    "catname": ("which {c} is {x}?", "what is the name of the {c} {x}?"),
    "count all": ("how many things are there?", "how many objects are in the picture?"),
    "count": ("how many {s} are there?", "how many {s} are in the picture?"),
    "exist": ("{v} there {a}?", "{v} there {a} in the picture?", "do you see {a}?"),
    "category side": ("what kind of thing is {x}?", "what type of thing is {x}?"),
    "color": ("what color is the {x}?", "which color does the {x} have?"),
    "color one": ("what color is the shape?",),
    "shape": ("what shape is the {x} one?", "which shape is {x}?"),
    "shape one": ("what shape is it?",),
    "relation": ("what is {r} the {x}?",),
    "next": ("what is next to the {x}?", "what is with the {x}?"),
    "position": ("where {v} the {x}?",),
    "describe": ("describe the picture.", "what do you see?", "what things are in the picture?"),
}

LOOSE: Final[dict[str, tuple[str, ...]]] = {
    "name": (
        "what is it?",
        "what is that?",
        "what is shown here?",
        "what object is this?",
        "which object is this?",
        "what thing is this?",
        "what is this thing?",
        "what is this object called?",
        "name it.",
        "what object do you see?",
    ),
    "side": (
        "what is {x} of the picture?",
        "which thing is {x}?",
        "which object is {x}?",
        "what do you see {x}?",
        "what can you see {x}?",
        "what object is {x}?",
    ),
    "catname this": (
        "what {c} is this?",
        "what {c} is it?",
        "which {c} is it?",
        "what {c} do you see?",
        "which {c} do you see?",
        "which {c} can you see?",
        "what {c} is in the picture?",
        "which {c} is there?",
        "which {c} is that?",
        "name the {c}.",
        "what is this {c}?",
        "what {c} can you see?",
    ),
    "catname": ("what {c} is {x}?", "name the {c} {x}.", "what is the {c} {x}?", "which {c} do you see {x}?"),
    "count all": (
        "how many things?",
        "how many objects are there?",
        "how many things are in the picture?",
        "how many things do you see?",
        "how many things can you see?",
        "count the things.",
        "how many objects do you see?",
    ),
    "count": (
        "how many {s}?",
        "how many {s} do you see?",
        "how many {s} can you see?",
        "how many {s} are here?",
        "how many {s} are shown?",
        "count the {s}.",
        "how many {s} does the picture show?",
        "what number of {s} are there?",
    ),
    "exist": (
        "{v} there {a} here?",
        "can you see {a}?",
        "do you see {a} in the picture?",
        "can you see {a} in the picture?",
        "does the picture show {a}?",
        "{v} there any {s}?",
        "are there any {s}?",
        "are there {s}?",
        "are there {s} in the picture?",
        "{v} {a} in the picture?",
        "does it show {a}?",
    ),
    "exist this": ("is this {a}?", "is it {a}?", "is that {a}?", "is this thing {a}?"),
    "category side": ("which kind of thing is {x}?", "what sort of thing is {x}?", "what category is the thing {x}?"),
    "color": (
        "what is the color of the {x}?",
        "which color is the {x}?",
        "what color does the {x} have?",
        "tell me the color of the {x}.",
        "the {x} is what color?",
    ),
    "color one": (
        "what color is it?",
        "what color is this?",
        "which color is the shape?",
        "which color is it?",
        "what is the color?",
        "which color is this?",
        "what is the color of the shape?",
    ),
    "shape": (
        "what shape is the {x} thing?",
        "which shape is the {x} one?",
        "what is the shape of the {x} thing?",
        "what shape is {x}?",
        "what is the {x} shape?",
        "which shape has the color {x}?",
    ),
    "shape one": (
        "what shape is this?",
        "which shape is it?",
        "what is the shape?",
        "which shape is this?",
        "what shape do you see?",
        "what shape is in the picture?",
        "which shape do you see?",
    ),
    "relation": ("which thing is {r} the {x}?", "which object is {r} the {x}?", "what do you see {r} the {x}?"),
    "next": (
        "what is beside the {x}?",
        "what is near the {x}?",
        "which thing is next to the {x}?",
        "what do you see next to the {x}?",
        "which object is next to the {x}?",
    ),
    "position": (
        "where {v} the {x} in the picture?",
        "where do you see the {x}?",
        "in which part of the picture {v} the {x}?",
        "where can you see the {x}?",
    ),
    "describe": (
        "what can you see?",
        "what do you see in the picture?",
        "describe this picture.",
        "describe the image.",
        "what things do you see?",
        "which things are in the picture?",
        "what objects are in the picture?",
        "what can you see in the picture?",
        "what is in this picture?",
        "what do you see here?",
        "list the things in the picture.",
    ),
    "describe many": (
        "what is in the picture?",
        "what does the picture show?",
        "what is this?",
        "what is shown here?",
        "what are these things?",
    ),
}

LOOSE_RELATIVES: Final[dict[str, tuple[str, ...]]] = {
    "to the left of": ("left of", "on the left of"),
    "to the right of": ("right of", "on the right of"),
    "above": ("over", "on top of"),
    "below": ("under", "beneath"),
}
"""Other words for the spatial relations."""

LOOSE_RELATIONS: Final[dict[str, tuple[str, ...]]] = {
    "category": ("what category is {x}?", "what sort of thing is {x}?"),
    "color": ("what color is {x}?", "what is the color of {x}?"),
    "habitat": ("where can {x} live?", "what is the home of {x}?"),
    "diet": ("what can {x} eat?", "tell me what {x} eats."),
    "legs": ("how many legs has {x}?",),
    "sound": ("which sound does {x} make?",),
    "use": ("what is the purpose of {x}?",),
}
"""Other words for the relations of facts; {x} is a subject."""

_OPENINGS: Final = ("please tell me, ", "tell me, ", "hey, ", "hello, ", "please, ", "so ")
_RESPELLED: Final = (("color", "colour"), ("gray", "grey"))


def templates(kind: str, wording: Wording) -> tuple[str, ...]:
    """Templates of one kind. "loose" is what training may use besides the canonical ones; "unseen" is the one held
    out."""
    if wording == "canonical" or kind not in LOOSE:
        return CANONICAL.get(kind, LOOSE.get(kind, ()))
    return LOOSE[kind][-1:] if wording == "unseen" else LOOSE[kind][:-1]


def roughen(question: str, rng: random.Random) -> str:
    """The same question as people type it: another spelling, "what's", no question mark, an opening word. Lower case
    stays."""
    for ours, theirs in _RESPELLED:
        if ours in question and rng.random() < 0.5:
            question = question.replace(ours, theirs)
    for word in ("what", "where"):
        if question.startswith(f"{word} is ") and rng.random() < 0.4:
            question = word + rng.choice(("'s ", "'s ", "s ")) + question[len(word) + 4 :]
    if " in the picture" in question and rng.random() < 0.3:
        question = question.replace(
            " in the picture", rng.choice((" in this picture", " in the image", " in the photo", " here"))
        )
    if rng.random() < 0.45:
        question = question[:-1] + rng.choice(("", "", "", " ?", "??", "." if question.endswith("?") else ""))
    if rng.random() < 0.08:
        question = rng.choice(_OPENINGS) + question
    return question


def capitalise(question: str, rng: random.Random) -> str:
    """Capitals as people type them: the first letter, or now and then all of it."""
    return question.upper() if rng.random() < 0.15 else question[:1].upper() + question[1:]


def relation_templates(relation: str, wording: Wording) -> tuple[str, ...]:
    """Templates that ask for a relation of {x}."""
    if wording == "canonical":
        return world.RELATIONS[relation]
    return LOOSE_RELATIONS.get(relation, world.RELATIONS[relation])
