"""Questions about a scene, and facts about the world, each with the one right answer.  Torch-free.

`ask(scene, kind, rng)` returns a question of that kind, or None where the scene gives none that is clear: things too
close to call on the axis asked about, two things of one name, no shape in the picture. Answers are bare values
("penguin", "two", "top left"), save where a fact about the thing is asked: there the answer names its subject first
("penguin: the ice"), since a model that says so composes recognition and fact, and one that answers with the bare
value does not."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from engine.builtin import world
from engine.builtin.phrasings import LOOSE_RELATIVES, Wording, relation_templates, templates
from engine.builtin.scenes import SIZE, Scene, Thing

Pairs = Literal["trained", "held"]


@dataclass(frozen=True)
class QA:
    """A question with its answer; `span` is the part of the answer that carries the value; `thing` the index of the
    thing meant."""

    kind: str
    question: str
    answer: str
    span: str
    thing: int | None = None


SIDE_MARGIN: Final = 16.0
RELATION_MARGIN: Final = 14.0
REGION_MARGIN: Final = 4.0
ORDER_MARGIN: Final = 6.0
"""In native pixels: how clear a difference in place must be to be asked about."""
LOW, HIGH = SIZE * 0.37, SIZE * 0.63
_SIDES: Final = (("on the left", "x", 1), ("on the right", "x", -1), ("at the top", "y", 1), ("at the bottom", "y", -1))
_RELATIVES: Final = {"to the left of": ("x", -1), "to the right of": ("x", 1), "above": ("y", -1), "below": ("y", 1)}


def sides(scene: Scene) -> dict[str, Thing]:
    """ "on the left" and the like -> the thing there, where it lies clearly farther out than any other."""
    found: dict[str, Thing] = {}
    if len(scene.things) < 2:
        return found
    for phrase, axis, sign in _SIDES:
        first, second = sorted(scene.things, key=lambda t: sign * float(getattr(t, axis)))[:2]
        if abs(getattr(first, axis) - getattr(second, axis)) > SIDE_MARGIN:
            found[phrase] = first
    return found


def region(thing: Thing) -> str | None:
    """One of nine regions ("top left", "right", "center"), or None within REGION_MARGIN of a border."""
    if min(abs(v - edge) for v in (thing.x, thing.y) for edge in (LOW, HIGH)) < REGION_MARGIN:
        return None
    row = "top" if thing.y < LOW else "bottom" if thing.y > HIGH else ""
    column = "left" if thing.x < LOW else "right" if thing.x > HIGH else ""
    return f"{row} {column}".strip() or "center"


def describe(scene: Scene) -> str | None:
    """The things from left to right ("a dog, a red star and cheese"), or None where two are too close to order."""
    order = sorted(scene.things, key=lambda t: t.x)
    if any(b.x - a.x < ORDER_MARGIN and a.name != b.name for a, b in pairwise(order)):
        return None
    said = [world.article(t.name) for t in order]
    return said[0] if len(said) == 1 else ", ".join(said[:-1]) + " and " + said[-1]


@dataclass(frozen=True)
class Reference:
    """A phrase that means one thing of the scene: by its category ("the bird"), side, name, or "this" for a lone
    thing."""

    phrase: str
    thing: Thing
    by: Literal["category", "side", "name", "this"]


def references(scene: Scene, named: bool = False) -> list[Reference]:
    """Every phrase that means exactly one thing; with `named`, names too."""
    found: list[Reference] = []
    for thing in scene.things:
        if not thing.is_shape and sum(t.category == thing.category for t in scene.things) == 1:
            found.append(Reference(f"the {thing.category}", thing, "category"))
            found.append(Reference(f"the {thing.category} in the picture", thing, "category"))
    for side, thing in sides(scene).items():
        found.append(Reference(f"the thing {side}", thing, "side"))
        if not thing.is_shape:
            found.append(Reference(f"the {thing.category} {side}", thing, "side"))
    if len(scene.things) == 1 and not scene.things[0].is_shape:
        found.append(Reference("this", scene.things[0], "this"))
        found.append(Reference(f"this {scene.things[0].category}", scene.things[0], "this"))
    if named:
        found += [Reference(f"the {thing.name}", thing, "name") for thing in _unique(scene)]
    return found


def _unique(scene: Scene) -> list[Thing]:
    names = [thing.name for thing in scene.things]
    return [thing for thing in scene.things if names.count(thing.name) == 1]


def _is(name: str) -> str:
    return "are" if world.number_of(name) == "p" else "is"


def _made(kind: str, question: str, answer: str, scene: Scene, thing: Thing | None, span: str = "") -> QA:
    index = next((i for i, t in enumerate(scene.things) if t is thing), None)
    return QA(kind, question, answer, span or answer, index)


def _name(scene: Scene, rng: random.Random, wording: Wording) -> QA | None:
    if len(scene.things) != 1:
        return None
    return _made("name", rng.choice(templates("name", wording)), scene.things[0].name, scene, scene.things[0])


def _side(scene: Scene, rng: random.Random, wording: Wording) -> QA | None:
    found = sides(scene)
    if not found:
        return None
    side = rng.choice(list(found))
    return _made("side", rng.choice(templates("side", wording)).format(x=side), found[side].name, scene, found[side])


def _catname(scene: Scene, rng: random.Random, wording: Wording) -> QA | None:
    known = [
        r
        for r in references(scene)
        if r.by in ("category", "side") and not r.thing.is_shape and r.thing.category in r.phrase
    ]
    if not known:
        return None
    chosen = rng.choice(known)
    category = chosen.thing.category
    where = chosen.phrase[len("the " + category) :].strip()
    form = rng.choice(templates("catname" if where else "catname this", wording))
    return _made("catname", form.format(c=category, x=where), chosen.thing.name, scene, chosen.thing)


def _count(scene: Scene, rng: random.Random, wording: Wording) -> QA | None:
    roll, thing = rng.random(), rng.choice(scene.things)
    if roll < 0.15:
        return _made(
            "count", rng.choice(templates("count all", wording)), world.NUMBERS[len(scene.things)], scene, None
        )
    name = thing.name if roll < 0.85 else rng.choice(world.NAMES)
    if world.number_of(name) == "m":
        return None
    number = world.NUMBERS[sum(t.name == name for t in scene.things)]
    question = rng.choice(templates("count", wording)).format(s=world.plural(name))
    return _made("count", question, number, scene, thing if name == thing.name else None)


def _countcat(scene: Scene, rng: random.Random, wording: Wording) -> QA | None:
    category = rng.choice(scene.things).category if rng.random() < 0.8 else rng.choice(world.CATEGORIES)
    number = world.NUMBERS[sum(t.category == category for t in scene.things)]
    return _made(
        "countcat", rng.choice(templates("count", wording)).format(s=world.plural(category)), number, scene, None
    )


def _exist(scene: Scene, rng: random.Random, wording: Wording) -> QA | None:
    thing = rng.choice(scene.things)
    if rng.random() < 0.5:
        name = thing.name
    elif thing.is_shape:
        colour, form = rng.choice(list(world.COLOURS)), rng.choice(world.SHAPES)
        roll = rng.random()
        name = (
            f"{thing.colour} {form}" if roll < 0.3 else f"{colour} {thing.form}" if roll < 0.6 else f"{colour} {form}"
        )
    else:
        name = rng.choice(world.IN_CATEGORY[thing.category]) if rng.random() < 0.4 else rng.choice(world.NAMES)
    return _yes_or_no("exist", scene, rng, wording, name, any(t.name == name for t in scene.things))


def _existcat(scene: Scene, rng: random.Random, wording: Wording) -> QA | None:
    choices = [*world.CATEGORIES, world.SHAPE_CATEGORY]
    category = rng.choice(scene.things).category if rng.random() < 0.5 else rng.choice(choices)
    return _yes_or_no("existcat", scene, rng, wording, category, any(t.category == category for t in scene.things))


def _yes_or_no(kind: str, scene: Scene, rng: random.Random, wording: Wording, name: str, there: bool) -> QA:
    lone = wording != "canonical" and len(scene.things) == 1 and rng.random() < 0.4
    form = rng.choice(templates("exist this" if lone else "exist", wording))
    question = form.format(v=_is(name), a=world.article(name), s=world.plural(name))
    thing = next((t for t in scene.things if name in (t.name, t.category)), None)
    return _made(kind, question, "yes" if there else "no", scene, thing)


def _category(scene: Scene, rng: random.Random, wording: Wording) -> QA | None:
    known = [
        r
        for r in references(scene, named=True)
        if r.phrase == "this"
        or (r.by == "side" and r.phrase.startswith("the thing"))
        or (r.by == "name" and rng.random() < 0.3)
    ]
    if not known:
        return None
    chosen = rng.choice(known)
    thing = chosen.thing
    if chosen.by == "side":
        question = rng.choice(templates("category side", wording)).format(x=chosen.phrase[len("the thing ") :])
    else:
        plural_verb = chosen.by == "name" and world.number_of(thing.name) == "p"
        phrase = "it" if wording != "canonical" and chosen.phrase == "this" and rng.random() < 0.5 else chosen.phrase
        question = world.fill(rng.choice(relation_templates("category", wording)), phrase, plural_verb)
    return _made("category", question, f"{thing.name}: {thing.category}", scene, thing, thing.category)


def _color(scene: Scene, rng: random.Random, wording: Wording) -> QA | None:
    shapes = [t for t in scene.things if t.is_shape]
    clear = [t for t in shapes if sum(s.form == t.form for s in shapes) == 1]
    if not clear:
        return None
    thing = rng.choice(clear)
    forms = [form.format(x=thing.form) for form in templates("color", wording)]
    if len(scene.things) == 1 or (len(shapes) == 1 and wording == "canonical"):
        forms += templates("color one", wording)
    return _made("color", rng.choice(forms), thing.colour, scene, thing)


def _shape(scene: Scene, rng: random.Random, wording: Wording) -> QA | None:
    shapes = [t for t in scene.things if t.is_shape]
    clear = [t for t in shapes if sum(s.colour == t.colour for s in shapes) == 1]
    if not clear:
        return None
    thing = rng.choice(clear)
    forms = [form.format(x=thing.colour) for form in templates("shape", wording)]
    if len(scene.things) == 1 or (len(shapes) == 1 and wording == "canonical"):
        forms += templates("shape one", wording)
    return _made("shape", rng.choice(forms), thing.form, scene, thing)


def _relation(scene: Scene, rng: random.Random, wording: Wording) -> QA | None:
    known = _unique(scene)
    if len(scene.things) < 2 or not known:
        return None
    anchor = rng.choice(known)
    others = [t for t in scene.things if t is not anchor]
    clear: list[tuple[str, Thing | None]] = []
    for relative, (axis, sign) in _RELATIVES.items():
        gaps = [float(getattr(t, axis)) - float(getattr(anchor, axis)) for t in others]
        there = [t for t, gap in zip(others, gaps, strict=True) if gap * sign > 0]
        if min(abs(gap) for gap in gaps) >= RELATION_MARGIN and len(there) <= 1:
            clear.append((relative, there[0] if there else None))
    some = [pair for pair in clear if pair[1] is not None]
    if some and rng.random() < 0.85:
        clear = some
    if not clear:
        return None
    relative, thing = rng.choice(clear)
    if wording != "canonical":
        relative = rng.choice(LOOSE_RELATIVES[relative])
    question = rng.choice(templates("relation", wording)).format(r=relative, x=anchor.name)
    return _made("relation", question, thing.name if thing else "nothing", scene, thing)


def _next(scene: Scene, rng: random.Random, wording: Wording) -> QA | None:
    known = _unique(scene)
    if len(scene.things) != 2 or not known:
        return None
    anchor = rng.choice(known)
    other = next(t for t in scene.things if t is not anchor)
    return _made("next", rng.choice(templates("next", wording)).format(x=anchor.name), other.name, scene, other)


def _position(scene: Scene, rng: random.Random, wording: Wording) -> QA | None:
    known = _unique(scene)
    if not known:
        return None
    thing = rng.choice(known)
    place = region(thing)
    if place is None:
        return None
    question = rng.choice(templates("position", wording)).format(v=_is(thing.name), x=thing.name)
    return _made("position", question, place, scene, thing)


def _describe(scene: Scene, rng: random.Random, wording: Wording) -> QA | None:
    said = describe(scene)
    if said is None:
        return None
    forms = templates("describe", wording)
    if wording != "canonical" and len(scene.things) > 1:
        forms += templates("describe many", wording)
    return _made("describe", rng.choice(forms), said, scene, None)


def _two_hop(scene: Scene, rng: random.Random, wording: Wording, pairs: Pairs = "trained") -> QA | None:
    clear: list[tuple[Reference, str, str]] = []
    for reference in references(scene):
        if not reference.thing.is_shape:
            for relation, value in world.BY_NAME[reference.thing.name].facts.items():
                held = (reference.thing.name, relation) in world.HELD_TWO_HOP
                if relation != "category" and held == (pairs == "held"):
                    clear.append((reference, relation, value))
    if not clear:
        return None
    reference, relation, value = rng.choice(clear)
    phrase = "it" if wording != "canonical" and reference.phrase == "this" and rng.random() < 0.7 else reference.phrase
    question = world.fill(rng.choice(relation_templates(relation, wording)), phrase)
    name = reference.thing.name
    return _made(
        "twohop" if pairs == "trained" else "twohop held", question, f"{name}: {value}", scene, reference.thing, value
    )


def fact_question(fact: world.Fact, rng: random.Random, unused: bool = False, wording: Wording = "canonical") -> QA:
    """A question about a fact without a picture; with `unused`, by the template that training never uses for it."""
    hidden = world.held_template(fact)
    forms = world.RELATIONS[fact.relation]
    if unused:
        if hidden is None:
            raise ValueError(f"no template of {fact.relation!r} is held out for {fact.subject!r}")
        form = forms[hidden]
    elif wording != "canonical" and fact.relation != "color" and hidden is None:
        form = rng.choice(relation_templates(fact.relation, wording))
    else:
        form = forms[rng.choice([k for k in range(len(forms)) if k != hidden])]
    subject = f"the {fact.subject}" if rng.random() < 0.5 else world.article(fact.subject)
    question = world.fill(form, subject, world.number_of(fact.subject) == "p")
    return QA("fact", question, f"{fact.subject}: {fact.value}", fact.value)


_ASKERS: Final[dict[str, Callable[[Scene, random.Random, Wording], QA | None]]] = {
    "name": _name,
    "side": _side,
    "catname": _catname,
    "count": _count,
    "countcat": _countcat,
    "exist": _exist,
    "existcat": _existcat,
    "category": _category,
    "color": _color,
    "shape": _shape,
    "relation": _relation,
    "next": _next,
    "position": _position,
    "describe": _describe,
    "twohop": _two_hop,
    "twohop held": lambda scene, rng, wording: _two_hop(scene, rng, wording, "held"),
}
KINDS: Final = tuple(kind for kind in _ASKERS if kind != "twohop held")
"""Kinds that training asks; "twohop held" asks only pairs of thing and relation that training never asks through a
picture."""


def ask(scene: Scene, kind: str, rng: random.Random, wording: Wording = "canonical") -> QA | None:
    """A question of this kind about the scene, or None where none is clear."""
    if kind not in _ASKERS:
        raise ValueError(f"unknown kind of question {kind!r}; one of {', '.join(_ASKERS)}")
    return _ASKERS[kind](scene, rng, wording)
