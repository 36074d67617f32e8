"""The perturbation experiment: its figures on the fake engine, where first order is exact, and by hand."""

import csv
import dataclasses
import functools
import io
import itertools
import json
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from engine.contract import (
    Answer,
    Cancelled,
    IsCancelled,
    LatentTurn,
    OnProgress,
    Question,
    RequestError,
    Steering,
    evaluation,
    never,
    saes,
)
from engine.evaluation import squad
from engine.fake import FakeEngine
from engine.sae import exchange, masking
from engine.sae.masking import experiment, orders, size_of, token_f1
from engine.sae.results import (
    Item,
    Report,
    Share,
    conclusions,
    experiment_as_json,
    experiment_csv,
    experiment_from_json,
    experiment_table,
)

SAE = "fake-residual-2"


@pytest.fixture(scope="module")
def items() -> list[Item]:
    made = list(FakeEngine().experiment_items(12))
    return [dataclasses.replace(made[0], answers=("nothing",)), *made[1:]]


@pytest.fixture(scope="module")
def report(items: list[Item]) -> Report:
    return FakeEngine().latent_experiment(items, SAE, ablated=3)


def test_only_what_is_right_goes_on(report: Report) -> None:
    assert (report.asked, report.right) == (12, 11)
    assert all(masked.em.n == masked.f1.n == 11 for masked in report.masked)
    assert report.agreement["influence"].n == 3


def test_masking_is_counted_as_the_answers_say(items: list[Item], report: Report) -> None:
    engine, same = FakeEngine(), {(masked.method, masked.k): [] for masked in report.masked}
    for number, item in enumerate(items[1:], 1):
        (before,) = engine.latent_answers(item.question, SAE, [[]])
        found = engine.latent_influence(item.question, [token.id for token in before.tokens], SAE)
        order = orders(found, number)
        sizes = {k: size_of(k if k.startswith("half") else int(k), found) for _, k in same}
        after = engine.latent_answers(item.question, SAE, [order[method][: sizes[k]] for method, k in same])
        for key, answer in zip(same, after, strict=True):
            same[key].append(answer.text == before.text)
    for masked in report.masked:
        assert masked.em.mean == pytest.approx(np.mean(same[masked.method, masked.k]))
        assert masked.em.low <= masked.em.mean <= masked.em.high
    by = {(masked.method, masked.k): masked.em.mean for masked in report.masked}
    assert by["influence", "half"] < by["bottom", "1"] == 1.0


def test_what_each_order_holds(items: list[Item]) -> None:
    engine = FakeEngine()
    (before,) = engine.latent_answers(items[1].question, SAE, [[]])
    found = engine.latent_influence(items[1].question, [token.id for token in before.tokens], SAE)
    order = orders(found, 0)
    assert order["influence"] == order["bottom"][::-1]
    assert all(found.influence[c] > 0 for c in order["influence"])
    assert sorted(order["random"]) == sorted(order["activation"]) == np.flatnonzero(found.active).tolist()
    assert order["random"] != orders(found, 1)["random"]
    assert found.influence[order["influence"][0]] == found.influence.max()
    assert found.mean_activation[order["activation"][0]] == found.mean_activation.max()
    assert size_of("half last", found) == found.last_active // 2
    assert size_of("half", found) == int(found.active.sum()) // 2


def test_agreement_and_overlaps(report: Report) -> None:
    assert report.agreement["influence"].mean > report.agreement["mean activation"].mean
    within = report.overlaps["influence, first 10, two questions about one picture"]
    between = report.overlaps["influence, first 10, about two pictures"]
    assert within.n == 5
    assert within.n + between.n == 11 * 10 // 2
    assert all(0 <= figure.mean <= 1 for figure in report.overlaps.values())


def test_it_is_told_as_text_and_json(report: Report) -> None:
    text = experiment_table(report)
    assert "11 of 12 items" in text
    assert text.count("| influence |") == len(masking.SIZES) + len(exchange.SIZES)
    assert conclusions(report)[-1] in text
    told = json.loads(json.dumps(experiment_as_json(report), allow_nan=False))
    assert len(told["masked"]) == len(masking.SIZES) * len(masking.METHODS)
    assert experiment_as_json(experiment_from_json(told)) == told


def test_words_in_common() -> None:
    assert token_f1("a red Dog", "red dog") == pytest.approx(0.8)
    assert token_f1("cat", "dog") == 0
    assert token_f1("", "") == 1


def test_it_can_be_stopped_and_says_when_nothing_is_right(items: list[Item]) -> None:
    with pytest.raises(Cancelled, match="after 0 of 24"):
        experiment(FakeEngine(), items, SAE, cancelled=lambda: True)
    wrong = [dataclasses.replace(item, answers=("nothing", "none")) for item in items]
    with pytest.raises(RequestError, match="None of 12"):
        experiment(FakeEngine(), wrong, SAE)
    assert saes.DEFAULT.keep_error


def test_items_that_cannot_be_asked_are_told_and_passed_over(items: list[Item]) -> None:
    class Choosy(FakeEngine):
        def latent_answers(self, question: Question, *rest: Any, **more: Any) -> tuple[Answer, ...]:
            if question.text == items[2].question.text:
                raise RequestError("It has too many words. Take fewer.")
            return super().latent_answers(question, *rest, **more)

    report = Choosy().latent_experiment(items, SAE, ablated=0, swapped=0)
    assert report.refused == ((3, "It has too many words. Take fewer."), (9, "It has too many words. Take fewer."))
    assert report.right == 9
    assert "Item 3 could not be asked: It has too many words." in experiment_table(report)


def test_stopped_anywhere_it_goes_on_to_the_same_report(items: list[Item], report: Report) -> None:
    """Every step's data goes through JSON, as a database keeps it."""
    whole: dict[int, Any] = {}
    again = FakeEngine().latent_experiment(
        items, SAE, ablated=3, on_item=lambda number, value: whole.update({number: json.dumps(value)})
    )
    assert again == report
    assert sorted(whole) == list(range(len(items) + report.pairs))
    for stop in (7, 15):
        kept: dict[int, str] = {}
        with pytest.raises(Cancelled):
            FakeEngine().latent_experiment(
                items, SAE, ablated=3, cancelled=lambda kept=kept, stop=stop: len(kept) >= stop,
                on_item=lambda number, value, kept=kept: kept.update({number: json.dumps(value)}),
            )  # fmt: skip
        assert len(kept) == stop
        fresh: list[int] = []
        resumed = FakeEngine().latent_experiment(
            items, SAE, ablated=3, done={number: json.loads(value) for number, value in kept.items()},
            on_item=lambda number, value, fresh=fresh: fresh.append(number),
        )  # fmt: skip
        assert resumed == report
        assert fresh == list(range(stop, len(whole))), "what is done is not done again"


def test_progress_counts_steps_and_ends_at_its_end(items: list[Item], report: Report) -> None:
    seen: list[tuple[int, int]] = []
    FakeEngine().latent_experiment(items, SAE, ablated=0, on_progress=lambda *told: seen.append(told))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (len(items) + report.pairs,) * 2
    assert all(done <= whole for done, whole in seen)


class Swayed(FakeEngine):
    """Its answer under a swap is that of another question, of nobody, or its own, as the latents' values say."""

    others: ClassVar[dict[str, str]] = {}

    def answers(
        self,
        asked: Sequence[tuple[Question, Steering]],
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> tuple[Answer, ...]:
        made = []
        for question, steering in asked:
            (own,) = self.latent_answers(question, SAE, [[]])
            drawn = round(sum(turn.value for turn in steering.latents) * 100) % 3 if steering.latents else 0
            texts = (own.text, "nothing at all", self.others.get(own.text, own.text))
            made.append(dataclasses.replace(own, text=texts[drawn]))
        return tuple(made)


def test_swaps_are_counted_as_the_answers_say(items: list[Item]) -> None:
    """Against the same written anew from the engine's own numbers."""
    engine = Swayed()
    right = [(number, item) for number, item in enumerate(items) if item.answers[0] != "nothing"]
    Swayed.others = {item.answers[0]: other.answers[0] for (_, item), (_, other) in itertools.permutations(right, 2)}
    kept: dict[int, Any] = {}
    report = engine.latent_experiment(items, SAE, ablated=0, swapped=6, on_item=kept.__setitem__)
    assert report.pairs == 6
    assert report.alike >= 2
    parts = [kept[number] for number in range(len(items))]
    chosen = exchange.pairs(parts, 6)
    left: dict[tuple[str, str], list[bool]] = {}
    became: dict[tuple[str, str], list[bool]] = {}
    for pair in chosen:
        a, b = items[pair.mine], items[pair.other]
        assert (a.question.text == b.question.text) == pair.alike
        assert a.answers != b.answers
        assert a.about != b.about
        ranked, peaks = {}, {}
        for number, item in ((pair.mine, a), (pair.other, b)):
            (before,) = engine.latent_answers(item.question, SAE, [[]])
            found = engine.latent_influence(item.question, [token.id for token in before.tokens], SAE, top=96)
            ranked[number] = orders(found, number)
            peaks[number] = {latent.index: latent.peak for latent in found.latents}
        for swap in report.swaps:
            first, second = (ranked[number][swap.method][: int(swap.k)] for number in (pair.mine, pair.other))
            values = dict.fromkeys(first, 0.0) | {c: float(peaks[pair.other][c]) for c in second}
            turns = tuple(LatentTurn(SAE, c, "set", value) for c, value in sorted(values.items()))
            (said,) = engine.answers([(a.question, Steering(latents=turns))])
            left.setdefault((swap.method, swap.k), []).append(said.text != a.answers[0])
            became.setdefault((swap.method, swap.k), []).append(said.text == b.answers[0])
    for swap in report.swaps:
        key = (swap.method, swap.k)
        assert swap.left.mean == pytest.approx(np.mean(left[key]))
        assert swap.became.mean == pytest.approx(np.mean(became[key]))
    assert 0 < np.mean(list(left.values())) < 1
    assert np.mean(list(became.values())) > 0


def test_a_pair_needs_two_different_right_answers() -> None:
    def part(question: str, answer: str, about: int, right: bool = True) -> dict[str, Any]:
        return {"question": question, "answers": [answer], "about": about, "right": right}

    parts = [part("what?", "Cat", 0), part("why?", "dog", 1), part("what?", "cat ", 2), part("what?", "cow", 3, False)]
    found = exchange.pairs(parts, 10)
    assert [(pair.mine, pair.other, pair.alike) for pair in found] == [(0, 1, False), (1, 2, False), (2, 1, False)]
    parts[3]["right"] = True
    found = exchange.pairs(parts, 3)
    assert [(pair.mine, pair.other) for pair in found] == [(0, 3), (2, 3), (3, 0)]
    assert all(pair.alike for pair in found)
    assert exchange.pairs([part("a", "x", 0), part("b", "x", 1), part("c", "y", 0)], 9) == [
        exchange.Pair(1, 2, False), exchange.Pair(2, 1, False)
    ]  # fmt: skip


def test_a_difference_is_claimed_only_where_there_is_one(report: Report) -> None:
    clear, none = Share(0.4, 0.2, 0.6, 40), Share(0.1, -0.05, 0.2, 40)
    gaps = tuple((k, clear if k in ("10", "20") else none, 0.001 if k == "10" else 0.02) for k, _, _ in report.gaps)
    said = " ".join(conclusions(dataclasses.replace(report, gaps=gaps)))
    assert "Influence loses more than mean activation at K = 10 (" in said
    assert "K = 20 (" not in said, "its p is not below 0.05 / 6"
    turned = tuple((k, Share(-gap.mean, -gap.high, -gap.low, 40), p) for k, gap, p in gaps)
    said = " ".join(conclusions(dataclasses.replace(report, gaps=turned)))
    assert "Influence loses less than mean activation at K = 10 (" in said
    assert "loses more than" not in said
    said = " ".join(conclusions(dataclasses.replace(report, gaps=tuple((k, none, 0.5) for k, _, _ in gaps))))
    assert "At no K do these 11 items show which of the two loses more" in said


def test_the_csv_says_what_the_report_says(report: Report) -> None:
    rows = list(csv.DictReader(io.StringIO(experiment_csv(report))))
    found = {(row["test"], row["method"], row["k"], row["figure"]): row for row in rows}
    for masked in report.masked:
        assert float(found["masked", masked.method, masked.k, "em"]["mean"]) == masked.em.mean
    for swap in report.swaps:
        assert float(found["swapped", swap.method, swap.k, "became"]["high"]) == swap.became.high
    assert {row["test"] for row in rows} == {"masked", "swapped", "agreement", "overlap"}


SQUAD = {
    "data": [
        {"paragraphs": [
            {"context": "one", "qas": [
                {"question": "who?", "answers": [{"text": "a"}, {"text": "a"}, {"text": "b"}]},
                {"question": "when?", "answers": [], "is_impossible": True},
                {"question": " ", "answers": [{"text": "a"}]},
            ]},
            {"context": "two", "qas": [{"question": "who?", "answers": [{"text": "c"}]}, "what"]},
            {"context": "three"},
        ]},
        {"title": "nothing"},
        {"paragraphs": [{"context": "x" * squad.MAX_CONTEXT, "qas": [{"question": "y", "answers": [{"text": "a"}]}]}]},
    ]
}  # fmt: skip


def test_a_file_of_squads_shape_tells_its_bad_records() -> None:
    most = evaluation.contract.MAX_ITEMS
    every = evaluation.Settings(limit=most, dev=most, build=most)
    found = evaluation.file_items(every, "squad", {"squad.json": json.dumps(SQUAD).encode()}, None)
    items = saes.items_of(found.items, 10, 0)
    told = sorted((item.question.text, item.answers) for item in items)
    assert told == [("one\nwho?", ("a", "b")), ("two\nwho?", ("c",))]
    assert len({item.about for item in items}) == 2, "paragraphs are told apart"
    assert len(saes.items_of(found.items, 1, 0)) == 1
    reasons = {bad.line: bad.reason for bad in found.bad}
    assert sorted(reasons) == [2, 3, 5, 6, 7, 8]
    assert "has no answer" in reasons[2]
    assert reasons[3] == "'question' is missing."
    assert reasons[5] == "This is no object."
    assert reasons[6] == "A paragraph of article 1 has no list 'qas'."
    assert reasons[7] == "Article 2 has no list 'paragraphs'."
    assert f"at most {squad.MAX_CONTEXT} are read" in reasons[8]
    with pytest.raises(RequestError, match="SQuAD's shape"):
        evaluation.file_items(every, "squad", {"squad.json": b'{"data": 5}'}, None)


def test_a_seed_draws_other_items_and_the_same_again() -> None:
    most = evaluation.contract.MAX_ITEMS
    asked = [{"question": f"q{k}", "answers": [{"text": "a"}]} for k in range(40)]
    data = json.dumps({"data": [{"paragraphs": [{"context": "c", "qas": asked}]}]}).encode()
    found = evaluation.file_items(evaluation.Settings(limit=most, dev=most, build=most), "squad", {"f": data}, None)
    texts = [[item.question.text for item in saes.items_of(found.items, 10, seed)] for seed in (0, 0, 1)]
    assert texts[0] == texts[1]
    assert set(texts[0]) != set(texts[2])


def test_a_picture_is_opened_when_its_item_is_asked_for() -> None:
    opened: list[int] = []

    def picture(number: int) -> Any:
        opened.append(number)
        if number == 2:
            raise RequestError("A picture cannot be read.")
        return np.full((40, 60, 3), 16 * number, np.uint8)

    asked = tuple(
        evaluation.Item(str(k), "x", "as given", "test", "what is it?", ("lemon",), functools.partial(picture, k))
        for k in range(4)
    )
    items = saes.items_of(asked, 9, 0)
    assert not opened
    bad = [one.id for one in items.questions].index("2")
    others = [items[k].about for k in range(4) if k != bad]
    assert len(set(others)) == 3, "pictures are told apart"
    assert sorted(opened) == [0, 1, 3]
    with pytest.raises(RequestError, match="Item 1 could not be asked: A picture cannot be read"):
        FakeEngine().latent_experiment(items[bad : bad + 1], SAE)
