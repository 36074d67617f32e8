"""The little world as data: things, categories, facts, and how their names are said.  Torch-free.

`world/world.json` names 194 objects in 18 categories, each in three drawing styles, and 659 facts in 22 relations.
Coloured shapes (8 colours, 6 forms) are made by the program and have no facts; a shape's name is "red circle".
Three things are held out of training, so that generalisation can be measured:

- for a fifth of the objects, one drawing style (`Entry.held_style`);
- for some facts, one of the relation's three question templates (`held_template`);
- for some facts, every question that reaches the fact through a picture (`HELD_TWO_HOP`).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WORLD_DIR: Final = Path(__file__).parent / "world"
_RAW: Final = json.loads((WORLD_DIR / "world.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Entry:
    """One object. `number` is "" (countable), "m" (a mass: no plural, no article) or "p" (plural only)."""

    name: str
    category: str
    number: str
    facts: dict[str, str]
    files: dict[str, str]
    held_style: str | None


OBJECTS: Final = tuple(
    Entry(o["name"], o["cat"], o["flag"], dict(o["facts"]), dict(o["files"]), o.get("holdstyle"))
    for o in _RAW["objects"]
)
BY_NAME: Final = {entry.name: entry for entry in OBJECTS}
NAMES: Final = tuple(BY_NAME)
CATEGORIES: Final = tuple(sorted({entry.category for entry in OBJECTS}))
IN_CATEGORY: Final = {c: tuple(e.name for e in OBJECTS if e.category == c) for c in CATEGORIES}
STYLES: Final[tuple[str, ...]] = tuple(_RAW["styles"])
RELATIONS: Final[dict[str, tuple[str, ...]]] = {name: tuple(forms) for name, forms in _RAW["relations"].items()}
HELD_TWO_HOP: Final = frozenset((name, relation) for name, relation in _RAW["twohop_heldout"])
_HELD_TEMPLATE: Final = frozenset((name, relation) for name, relation in _RAW["template_heldout"])


@dataclass(frozen=True)
class Fact:
    """`subject`'s `relation` is `value`: ("penguin", "habitat", "the ice")."""

    subject: str
    relation: str
    value: str


FACTS: Final = tuple(Fact(e.name, r, v) for e in OBJECTS for r, v in e.facts.items())

COLOURS: Final[dict[str, tuple[int, int, int]]] = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (45, 80, 220),
    "yellow": (240, 215, 40),
    "orange": (245, 140, 30),
    "purple": (140, 50, 180),
    "cyan": (50, 205, 215),
    "pink": (250, 150, 195),
}
SHAPES: Final = ("circle", "square", "triangle", "star", "diamond", "cross")
SHAPE_CATEGORY: Final = "shape"
NUMBERS: Final = ("zero", "one", "two", "three", "four")

_PLURALS: Final = {
    "mouse": "mice",
    "sheep": "sheep",
    "wolf": "wolves",
    "snowman": "snowmen",
    "kitchen knife": "kitchen knives",
    "volcano": "volcanoes",
    "tomato": "tomatoes",
}


def held_template(fact: Fact) -> int | None:
    """Index of the template (of `RELATIONS[fact.relation]`) that training never uses for this fact, if there is one."""
    if (fact.subject, fact.relation) not in _HELD_TEMPLATE:
        return None
    return (len(fact.subject) * 7 + ord(fact.subject[0]) + len(fact.relation)) % 3


def number_of(name: str) -> str:
    """Grammatical number of a thing or category: "" countable, "m" mass, "p" plural only."""
    return BY_NAME[name].number if name in BY_NAME else ""


def plural(name: str) -> str:
    """The plural of a name: "dog" -> "dogs"; a mass or plural-only name is its own plural."""
    if number_of(name):
        return name
    if name in _PLURALS:
        return _PLURALS[name]
    if name.endswith("y") and name[-2] not in "aeiou":
        return name[:-1] + "ies"
    if name.endswith(("s", "x", "ch", "sh")):
        return name + "es"
    return name + "s"


def article(name: str) -> str:
    """The name with its indefinite article, where it takes one: "a dog", "an owl", "an hourglass", "cheese"."""
    if number_of(name):
        return name
    return ("an " if name[0] in "aeiou" or name.startswith("hour") else "a ") + name


def fill(template: str, phrase: str, plural_verb: bool = False) -> str:
    """Put a noun phrase for {x}; a plural phrase changes the verb before it: "does {x}" -> "do {x}"."""
    if plural_verb:
        template = template.replace("does {x}", "do {x}").replace("is {x}", "are {x}")
    return template.replace("{x}", phrase)


def colour_and_form(name: str) -> tuple[str, str] | None:
    """("red", "circle") for the name of a shape, None for the name of an object."""
    colour, _, form = name.partition(" ")
    return (colour, form) if colour in COLOURS and form in SHAPES else None


def category_of(name: str) -> str:
    """Category of an object's or a shape's name."""
    return SHAPE_CATEGORY if colour_and_form(name) else BY_NAME[name].category
