"""The protocol on the FakeEngine: what is chosen, what is reported, and that stopping changes nothing."""

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engine import evaluation
from engine.contract import Answer, Cancelled, Question, RequestError, Steering, UnknownName
from engine.evaluation import choice, planning
from engine.evaluation.contract import DevRow, Item, Setting, Settings
from engine.evaluation.sources import Sources
from engine.fake import FakeEngine
from engine.fake_steering import BATCH
from engine.fake_world import CONCEPTS, D_MLP, KINDS, N_LAYERS, OBJECTS
from engine.turns import PLAIN

SETTINGS = Settings(
    set="test", limit=12, dev=12, screen=6, rules=("kind", "mentioned"), lambdas=(0.5, 1.0), layers=("all", "lower"),
    positions=("all", "image"), control_probes=2,
)  # fmt: skip


def made(kind: str, condition: str, split: str, n: int, tells: bool) -> list[Item]:
    """Questions with a right answer of their own; where the question `tells` it, turning what it mentions up helps."""
    found = []
    for k in range(n):
        name = OBJECTS[k % len(OBJECTS)]
        question = f"What is number {k} of {split} {condition}{', ' + name if tells else ''}?"
        load = functools.partial(np.full, (12, 12, 3), k, np.uint8)
        found.append(
            Item(f"{split}/{kind}/{condition}/{k}", kind, condition, split, question, (name,), load, ("object",))
        )
    return found


@functools.cache
def items() -> tuple[Item, ...]:
    return tuple(
        item
        for kind, tells in (("told", True), ("untold", False))
        for condition in ("easy", "hard one")
        for split in ("dev", "test")
        for item in made(kind, condition, split, 12, tells)
    )


class Counting(FakeEngine):
    """Counts the answers that it gives."""

    given = 0

    def answers(self, asked: Sequence[tuple[Question, Steering]], *more: Any, **named: Any) -> tuple[Answer, ...]:
        self.given += len(asked)
        return super().answers(asked, *more, **named)


def rows(result: evaluation.Evaluation, level: str) -> dict[tuple[str, str], evaluation.KindResult]:
    return {(row.kind, row.condition): row for row in (*result.kinds, *result.totals) if row.level == level}


@functools.cache
def whole() -> tuple[evaluation.Evaluation, dict[str, Any], list[tuple[int, int]]]:
    parts: dict[str, Any] = {}
    told: list[tuple[int, int]] = []
    result = evaluation.run(
        FakeEngine(), items(), SETTINGS, lambda done, of: told.append((done, of)), lambda k, v: parts.update({k: v})
    )
    return result, parts, told


def test_a_gain_is_found_on_dev_and_reported_on_test() -> None:
    row = rows(whole()[0], "cell")["told", "hard one"]
    assert row.chosen is not None
    assert row.chosen.rule == "mentioned"
    assert row.arms["modulated"].accuracy > row.arms["baseline"].accuracy + 0.5
    assert row.arms["modulated"].accuracy > row.arms["random_control"].accuracy + 0.3
    assert row.delta.low > 0
    assert row.delta.p < 0.01
    assert row.against_random.value == pytest.approx(
        row.arms["modulated"].accuracy - row.arms["random_control"].accuracy
    )
    assert row.dev[0].gain > 0
    assert row.dev[0].n == 12


def test_none_is_chosen_where_nothing_gains() -> None:
    settings = Settings(set="test", dev=12, screen=6, rules=("mentioned",), lambdas=(1.0,), control_probes=2)
    untold = [item for item in items() if item.kind == "untold"]
    result = evaluation.run(FakeEngine(), untold, settings)
    for row in (*result.kinds, *result.totals):
        assert row.chosen == evaluation.NONE
        assert row.delta.value == 0
        assert row.delta.p == 1
        assert len({one.accuracy for one in row.arms.values()}) == 1


def test_every_level_has_its_rows_and_totals() -> None:
    result = whole()[0]
    assert set(rows(result, "cell")) >= {("told", "easy"), ("all", "easy"), ("all", "hard"), ("all", "all")}
    assert ("told", "easy") not in rows(result, "kind")
    assert rows(result, "all")["all", "hard"].n == 24
    assert rows(result, "cell")["all", "all"].n == 48
    settings = {row.chosen for row in result.kinds if row.level == "all"}
    assert len(settings) == 1


def test_test_questions_are_not_asked_before_the_choice() -> None:
    keys = list(whole()[1])
    first_test = next(k for k, key in enumerate(keys) if "test/" in key)
    assert not [key for key in keys[first_test:] if key.startswith(("dev/", "first/dev", "first/build"))]


def test_a_stopped_run_goes_on_where_it_was_with_an_equal_result() -> None:
    result, parts, _ = whole()
    kept: dict[str, Any] = {}
    for stop in (3, 20, 10_000):
        engine = Counting()
        before = len(kept)
        try:
            again = evaluation.run(
                engine, items(), SETTINGS, None, lambda k, v: kept.update({k: json.loads(json.dumps(v))}), dict(kept),
                lambda before=before, stop=stop: len(kept) - before >= stop,  # type: ignore[misc]
            )  # fmt: skip
        except Cancelled:
            continue
    assert json.dumps(evaluation.to_json(again)) == json.dumps(evaluation.to_json(result))
    assert kept == parts
    engine = Counting()
    evaluation.run(engine, items(), SETTINGS, done=parts)
    assert engine.given == 0


def test_progress_never_exceeds_the_estimate_and_ends_at_its_whole() -> None:
    _, _, told = whole()
    assert told[-1][0] == told[-1][1]
    assert all(done <= of for done, of in told)
    assert max(of for _, of in told) <= evaluation.estimate(SETTINGS, items()).answers
    resumed: list[tuple[int, int]] = []
    evaluation.run(FakeEngine(), items(), SETTINGS, lambda done, of: resumed.append((done, of)), done=whole()[1])
    assert resumed[-1] == told[-1]


def test_nobody_waits_longer_than_for_one_batch() -> None:
    """Between two chances to do something else lies one batch of answers at most, or one picture."""
    done = {"answers": 0, "pictures": 0}

    class Watched(FakeEngine):
        def _generate(self, *args: Any, **named: Any) -> Any:
            done["answers"] += 1
            return super()._generate(*args, **named)

    def picture() -> Any:
        done["pictures"] += 1
        return np.zeros((12, 12, 3), np.uint8)

    many = [item for split in ("dev", "test") for item in made("told", "hard", split, 150, True)]
    many = [dataclasses.replace(item, picture=picture) for item in many]
    settings = dataclasses.replace(SETTINGS, dev=150, limit=150, screen=150, lambdas=(1.0,), rules=("mentioned",))
    told: list[tuple[int, int]] = []
    result = evaluation.run(Watched(), many, settings, lambda *_: told.append((done["answers"], done["pictures"])))
    assert result.kinds[0].chosen != planning.NONE, "all stages have been gone through"
    steps = np.diff(told, axis=0)
    assert steps.max(0).tolist() == [BATCH, 1]
    assert done["answers"] > 6 * len(many) / 2


def test_the_library_of_the_report_is_the_one_that_was_used() -> None:
    """Somebody may build a concept while an evaluation runs, for it lets others pass."""
    engine, before = FakeEngine(), FakeEngine().library().revision
    adopted: list[int] = []

    def meanwhile(done: int, _all: int) -> None:
        if done and not adopted:
            adopted.append(done)
            first = engine.library().concepts[0]
            engine.adopt([dataclasses.replace(first, name="my own", kind="own")])

    result = evaluation.run(engine, items(), SETTINGS, meanwhile)
    assert engine.library().revision != before
    assert result.model["library"] == before
    assert evaluation.to_json(result) == evaluation.to_json(whole()[0])


def test_the_result_goes_through_json() -> None:
    result = whole()[0]
    told = json.dumps(evaluation.to_json(result))
    assert json.dumps(evaluation.to_json(evaluation.evaluation_from_json(json.loads(told)))) == told
    assert "mentioned" in evaluation.table(result)
    assert len(evaluation.to_csv(result).splitlines()) == 1 + len(result.kinds) + len(result.totals)


def test_dev_questions_that_cannot_be_asked_are_no_finding() -> None:
    def unreadable() -> Any:
        raise RequestError("The picture cannot be read.")

    broken = [dataclasses.replace(item, picture=unreadable) if item.split == "dev" else item for item in items()]
    with pytest.raises(RequestError, match=r"No dev question could be asked\. .*The picture cannot be read"):
        evaluation.run(FakeEngine(), broken, SETTINGS)


def test_a_kind_that_a_spreadsheet_would_compute_is_inert() -> None:
    result = whole()[0]
    odd = dataclasses.replace(result, kinds=tuple(dataclasses.replace(row, kind="=1+1") for row in result.kinds))
    assert ",'=1+1," in evaluation.to_csv(odd)


def test_controls_turn_as_many_neurons_by_the_same_factors() -> None:
    sources = Sources(FakeEngine(), items(), SETTINGS, lambda _key, compute: compute(), lambda: None)
    item = next(item for item in items() if item.kind == "told")
    first = choice.First("lemon", ((" lemon", 0.7), (" pizza", 0.2)))
    for rule in ("kind", "mentioned", "answer", "candidates", "contrast"):
        setting = Setting(rule, 1.0)
        mine, theirs = sources.chooser.steering(setting, item, first), sources.single_token(setting, item, first)
        assert sorted(turn.value for turn in mine.neurons) == sorted(turn.value for turn in theirs.neurons)
        assert {(turn.layer, turn.index) for turn in mine.neurons} != {
            (turn.layer, turn.index) for turn in theirs.neurons
        }
        control = sources.chooser.steering(setting, item, first, 7)
        assert (control.neurons, control.control) == (mine.neurons, 7)


# Rules


def chooser() -> choice.Chooser:
    memberships = [np.zeros((2, 4), np.float32) for _ in range(4)]
    memberships[0][0, 0], memberships[0][1, 0] = 1.0, 0.5
    memberships[1][0, 1], memberships[1][0, 0] = 0.8, 0.4
    memberships[2][1, 3] = 1.0
    memberships[3][1, 2] = 0.6
    names, kinds = ("polar bear", "bear", "red", "two"), ("object", "object", "colour", "count")
    return choice.Chooser(choice.known_of(names, kinds, memberships))


def question(text: str, groups: tuple[str, ...] = ("object",)) -> Item:
    return Item("1", "name", "easy", "test", text, ("bear",), lambda: None, groups)


FIRST = choice.First("a polar bear", ((" polar", 0.6), (" bear", 0.3), (" x", 0.1)))


def factors(rule: str, item: Item, **more: Any) -> dict[tuple[int, int], float]:
    made = chooser().steering(Setting(rule, 1.0, **more), item, FIRST)
    return {(turn.layer, turn.index): round(turn.value, 4) for turn in made.neurons}


def test_rules_by_hand() -> None:
    asked = question("what is this?")
    assert factors("kind", asked) == {(0, 0): 2.0, (0, 1): 1.8, (1, 0): 1.5}
    assert factors("kind", asked, layers="lower") == {(0, 0): 2.0, (0, 1): 1.8}
    assert factors("kind", asked, layers="upper", map="crisp") == {(1, 0): 2.0}
    assert factors("answer", asked) == {(0, 0): 2.0, (1, 0): 1.5}
    assert factors("candidates", asked) == {(0, 0): 2.2, (0, 1): 1.4, (1, 0): 1.5}
    assert factors("equal", asked) == {(0, 0): 2.4, (0, 1): 1.8, (1, 0): 1.5}
    assert factors("contrast", asked) == {(0, 0): 1.6, (0, 1): 0.2, (1, 0): 1.5}
    assert factors("doubt", asked) == {(0, 0): 0.4, (0, 1): 1.8, (1, 0): 0.5}
    assert factors("inhibit", asked) == {(1, 3): 0.0, (1, 2): 0.4}
    assert factors("mentioned", question("how many red bears are there?")) == {(0, 1): 1.8, (0, 0): 1.4, (1, 3): 2.0}
    assert chooser().steering(Setting("mentioned", 1.0), asked, FIRST) == PLAIN


def test_a_factor_is_never_negative() -> None:
    made = chooser().steering(Setting("doubt", 4.0), question("what is this?"), FIRST)
    assert min(turn.value for turn in made.neurons) == 0


def test_balance_learns_from_build_answers_alone() -> None:
    names = {0: "yes", 1: "no"}
    asked = [Item(str(k), "exist", "hard", "build", "?", (right,), lambda: None) for k, right in enumerate(
        ("yes", "yes", "yes", "no"))]  # fmt: skip
    assert choice.balance(asked, ["no", "no", "yes", "no"], names) == {0: 1.0, 1: -1.0}
    assert choice.balance(asked, ["yes", "yes", "no", "no"], names) == {}


def test_a_gain_within_its_error_is_not_chosen() -> None:
    lucky = DevRow(Setting("kind", 1.0), 0.55, 0.05, 0.05, 20)
    assert planning.chosen([lucky], 1.0) == evaluation.NONE
    assert planning.chosen([lucky], 0.5) == lucky.setting
    assert planning.chosen([], 1.0) == evaluation.NONE


def test_what_a_set_cannot_be_asked_is_left_out_and_said() -> None:
    def broken() -> None:
        raise RequestError("The picture is damaged.")

    some = list(items())
    some[0] = dataclasses.replace(some[0], picture=broken)
    result = evaluation.run(FakeEngine(), some, SETTINGS)
    assert [line for line in result.warnings if some[0].id in line and "damaged" in line]
    assert rows(result, "cell")["told", "easy"].dev[0].n == 11


def test_settings_that_cannot_be_carried_out_are_refused() -> None:
    with pytest.raises(UnknownName, match="oracle"):
        Settings(rules=("oracle",)).check()
    with pytest.raises(RequestError, match="at most 4"):
        Settings(lambdas=(9.0,)).check()
    with pytest.raises(RequestError, match="no setting 'lamda'"):
        evaluation.settings_from_json({"lamda": 1})
    with pytest.raises(RequestError, match="dev or no test"):
        evaluation.run(FakeEngine(), items()[:3], SETTINGS)
    assert evaluation.settings_from_json(json.loads(json.dumps(evaluation.to_json(SETTINGS)))) == SETTINGS


def test_concepts_are_built_from_a_sets_own_answers_where_no_concept_names_them() -> None:
    def asked(split: str) -> list[Item]:
        return [
            Item(f"{split}{k}", "exist", "as given", split, f"Is there {split} {k}?", (("yes", "no")[k % 2],),
                 functools.partial(np.full, (12, 12, 3), k, np.uint8), ("exist",)) for k in range(8)
        ]  # fmt: skip

    some = [*asked("build"), *asked("dev"), *asked("test")]
    sources = Sources(FakeEngine(), some, SETTINGS, lambda _key, compute: compute(), lambda: None)
    assert [(plan.kind, plan.name) for plan in sources.plans] == [("exist", "no"), ("exist", "yes")]
    assert sources.known.values.shape == (len(CONCEPTS) + 2, N_LAYERS * D_MLP)
    assert sources.known.names[: len(KINDS["object"])] == OBJECTS
    assert sources.single_token(Setting("kind", 1.0), some[-1], choice.First("", ())).neurons


def test_a_file_set_is_evaluated_from_end_to_end() -> None:
    """POPE's shape: its own concepts (yes, no), its own metric and figures."""
    lines = [
        json.dumps({"question_id": k, "image": "", "text": f"Is there thing {k}?", "label": ("yes", "no")[k % 2]})
        for k in range(80)
    ]
    given = {"pope.jsonl": "\n".join(lines).replace('"image": ""', '"image": "no"').encode()}
    settings = evaluation.file_settings("pope", given, dataclasses.replace(SETTINGS, rules=("kind", "balance")))
    assert not evaluation.file_items(settings, "pope", given, None).items  # a picture is named, but none given
    table = {
        "t.csv": b"question,answer\n"
        + b"".join(b"Is there thing %d?,%s\n" % (k, (b"yes", b"no")[k % 2]) for k in range(80))
    }
    settings = dataclasses.replace(evaluation.file_settings("table", table, SETTINGS), metric="yesno")
    result = evaluation.run(FakeEngine(), evaluation.file_items(settings, "table", table, None).items, settings)
    row = rows(result, "cell")["question", "as given"]
    assert set(row.extra["baseline"]) == {"precision", "recall", "f1", "yes_share"}
    assert row.n == 12
    assert result.settings.source[0][0] == "t.csv"
