"""Questions and answers of the little world, recomputed by an independent oracle that reads the question."""

import random
import re
from collections.abc import Callable
from itertools import pairwise

import pytest

from engine.builtin import phrasings, questions, scenes, world

MIX = scenes.Mix(counts=(1, 1, 1, 0.5), shape=0.35, same=0.25, same_category=0.35)
SINGULAR = {world.plural(name): name for name in [*world.NAMES, *world.CATEGORIES, "shape"]}
SINGULAR |= {world.plural(f"{c} {s}"): f"{c} {s}" for c in world.COLOURS for s in world.SHAPES}


def _bare(phrase: str) -> str:
    return re.sub(r"^(a|an|the) ", "", phrase)


def _count(found: re.Match[str], scene: scenes.Scene) -> str:
    if found[1] in ("things", "objects"):
        return world.NUMBERS[len(scene.things)]
    name = SINGULAR[found[1]]
    return world.NUMBERS[sum(name in (thing.name, thing.category) for thing in scene.things)]


def _exist(found: re.Match[str], scene: scenes.Scene) -> str:
    name = _bare(found[1])
    return "yes" if any(name in (thing.name, thing.category) for thing in scene.things) else "no"


def _side(found: re.Match[str], scene: scenes.Scene) -> str:
    key: Callable[[scenes.Thing], float] = {
        "on the left": lambda t: t.left + t.side / 2,
        "on the right": lambda t: -t.left - t.side / 2,
        "at the top": lambda t: t.top + t.side / 2,
        "at the bottom": lambda t: -t.top - t.side / 2,
    }[found[1]]
    return min(scene.things, key=key).name


def _relation(found: re.Match[str], scene: scenes.Scene) -> str:
    anchor = next(t for t in scene.things if t.name == found[2])
    there = {
        "to the left of": lambda t: t.x < anchor.x,
        "to the right of": lambda t: t.x > anchor.x,
        "above": lambda t: t.y < anchor.y,
        "below": lambda t: t.y > anchor.y,
    }[found[1]]
    names = [t.name for t in scene.things if t is not anchor and there(t)]
    assert len(names) < 2
    return names[0] if names else "nothing"


def _position(found: re.Match[str], scene: scenes.Scene) -> str:
    thing = next(t for t in scene.things if t.name == found[1])
    row = "top" if thing.y < 46.6 else "bottom" if thing.y > 79.4 else ""
    column = "left" if thing.x < 46.6 else "right" if thing.x > 79.4 else ""
    return " ".join(filter(None, [row, column])) or "center"


def _color(found: re.Match[str], scene: scenes.Scene) -> str:
    shapes = [t for t in scene.things if t.category == "shape"]
    return next(t.name.split()[0] for t in shapes if found[1] in ("shape", t.name.split()[1]))


def _shape(found: re.Match[str], scene: scenes.Scene) -> str:
    shapes = [t for t in scene.things if t.category == "shape"]
    return next(t.name.split()[1] for t in shapes if t.name.split()[0] == found[1])


def _next(found: re.Match[str], scene: scenes.Scene) -> str:
    return next(t.name for t in scene.things if t.name != found[1])


ORACLE: tuple[tuple[str, Callable[[re.Match[str], scenes.Scene], str]], ...] = (
    (r"how many (.+?) are (?:there|in the picture)\?", _count),
    (r"(?:is|are) there (.+?)(?: in the picture)?\?", _exist),
    (r"do you see (.+?)\?", _exist),
    (r"(?:what is|what is the thing|name the object) (on the left|on the right|at the top|at the bottom)[?.]", _side),
    (r"what is (to the left of|to the right of|above|below) the (.+)\?", _relation),
    (r"what is (?:next to|with) the (.+)\?", _next),
    (r"where (?:is|are) the (.+)\?", _position),
    (r"what color is the (.+)\?|which color does the (.+) have\?", lambda m, s: _color(_first(m), s)),
    (r"what shape is the (.+) one\?|which shape is (.+)\?", lambda m, s: _shape(_first(m), s)),
)
KINDS = ("count", "countcat", "exist", "existcat", "side", "relation", "next", "position", "color", "shape")


def _first(found: re.Match[str]) -> re.Match[str]:
    group = next(group for group in found.groups() if group)
    again = re.fullmatch("(.+)", group)
    assert again
    return again


@pytest.mark.parametrize("kind", KINDS)
def test_answers_follow_from_the_scene(kind: str) -> None:
    rng, checked = random.Random(kind), 0
    while checked < 60:
        scene = scenes.make_scene(rng, mix=MIX)
        qa = questions.ask(scene, kind, rng)
        if qa is None or qa.question == "what shape is it?":
            continue
        matches = [(found, answer) for form, answer in ORACLE if (found := re.fullmatch(form, qa.question))]
        assert matches, qa.question
        assert matches[0][1](matches[0][0], scene) == qa.answer, (qa, scene)
        checked += 1


def test_facts_and_categories_name_their_subject_first() -> None:
    rng = random.Random(3)
    for _ in range(200):
        scene = scenes.make_scene(rng, mix=MIX)
        for kind in ("category", "twohop", "twohop held"):
            qa = questions.ask(scene, kind, rng)
            if qa is None:
                continue
            assert qa.thing is not None
            thing = scene.things[qa.thing]
            subject, value = qa.answer.split(": ")
            assert subject == thing.name
            assert value == qa.span
            if kind == "category":
                assert value == thing.category
            else:
                relations = {r for r, v in world.BY_NAME[subject].facts.items() if v == value and r != "category"}
                assert any(((subject, r) in world.HELD_TWO_HOP) == (kind == "twohop held") for r in relations)


def test_descriptions_name_every_thing_from_left_to_right() -> None:
    rng = random.Random(4)
    for _ in range(100):
        scene = scenes.make_scene(rng, mix=MIX)
        said = questions.describe(scene)
        order = sorted(scene.things, key=lambda t: t.x)
        if said is None:
            assert any(b.x - a.x < questions.ORDER_MARGIN for a, b in pairwise(order))
        else:
            assert [_bare(part) for part in re.split(r", | and (?!white)", said)] == [t.name for t in order]


def test_what_is_too_close_to_call_is_not_asked() -> None:
    def thing(name: str, left: int, top: int) -> scenes.Thing:
        return scenes.Thing(name, world.category_of(name), left, top, 40, "google")

    near = scenes.Scene((thing("dog", 20, 10), thing("cat", 30, 70)), 0)
    assert set(questions.sides(near)) == {"at the top", "at the bottom"}
    twins = scenes.Scene((thing("dog", 0, 0), thing("dog", 80, 80)), 0)
    rng = random.Random(0)
    assert all(questions.ask(twins, kind, rng) is None for kind in ("position", "relation", "next", "name"))
    border = scenes.Scene((thing("dog", 26, 80),), 0)
    assert questions.ask(border, "position", rng) is None


@pytest.mark.parametrize("wording", ["loose", "unseen"])
def test_other_words_ask_for_the_same_answers(wording: phrasings.Wording) -> None:
    rng = random.Random(5)
    for _ in range(150):
        scene = scenes.make_scene(rng, mix=MIX)
        for kind in questions.KINDS:
            qa = questions.ask(scene, kind, rng, wording)
            if qa is None:
                continue
            assert "{" not in qa.question
            assert qa.question == qa.question.lower()
            if kind in ("name", "side", "catname", "next"):
                assert qa.answer in {t.name for t in scene.things}
            elif kind in ("exist", "existcat") and qa.question.startswith(("is this", "is it", "is that")):
                assert len(scene.things) == 1


def test_no_template_is_both_trained_and_held_out() -> None:
    for kind in phrasings.LOOSE:
        unseen = phrasings.templates(kind, "unseen")
        trained = phrasings.templates(kind, "loose") + phrasings.CANONICAL.get(kind, ())
        assert len(unseen) == 1
        assert unseen[0] not in trained


def test_a_held_out_template_is_used_only_on_request() -> None:
    fact = next(fact for fact in world.FACTS if world.held_template(fact) is not None)
    hidden = world.held_template(fact)
    rng = random.Random(6)

    def shapes(unused: bool) -> set[int]:
        asked = {questions.fact_question(fact, rng, unused).question for _ in range(60)}
        forms = world.RELATIONS[fact.relation]
        plural = world.number_of(fact.subject) == "p"
        said = [f"the {fact.subject}", world.article(fact.subject)]
        return {k for k, form in enumerate(forms) if asked & {world.fill(form, s, plural) for s in said}}

    assert shapes(unused=True) == {hidden}
    assert shapes(unused=False) == {0, 1, 2} - {hidden}


def test_rough_questions_stay_recognisable() -> None:
    rng = random.Random(7)
    made = {phrasings.roughen("what is in the picture?", rng) for _ in range(200)}
    assert {"what is in the picture?", "what is in the picture", "what's in the picture?"} <= made
    assert phrasings.capitalise("what color is it?", rng).lower() == "what color is it?"
    assert {phrasings.roughen("what color is it?", rng).count("colour") for _ in range(50)} == {0, 1}


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind of question 'smell'"):
        questions.ask(scenes.make_scene(random.Random(0)), "smell", random.Random(0))
