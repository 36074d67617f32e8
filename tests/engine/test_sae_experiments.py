"""The perturbation experiment: its figures on the fake engine, where first order is exact, and by hand."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from engine.contract import Cancelled, RequestError, saes
from engine.fake import FakeEngine
from engine.sae import masking
from engine.sae.experiments import squad_items
from engine.sae.masking import experiment, orders, size_of, token_f1
from engine.sae.results import Item, Report, experiment_as_json, experiment_table

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
    assert text.count("| influence |") == len(masking.SIZES)
    told = json.loads(json.dumps(experiment_as_json(report), allow_nan=False))
    assert len(told["masked"]) == len(masking.SIZES) * len(masking.METHODS)


def test_words_in_common() -> None:
    assert token_f1("a red Dog", "red dog") == pytest.approx(0.8)
    assert token_f1("cat", "dog") == 0
    assert token_f1("", "") == 1


def test_it_can_be_stopped_and_says_when_nothing_is_right(items: list[Item]) -> None:
    with pytest.raises(Cancelled, match="after 0 of 12"):
        experiment(FakeEngine(), items, SAE, cancelled=lambda: True)
    wrong = [dataclasses.replace(item, answers=("nothing", "none")) for item in items]
    with pytest.raises(RequestError, match="None of 12"):
        experiment(FakeEngine(), wrong, SAE)
    assert saes.DEFAULT.keep_error


def test_a_file_of_squads_shape(tmp_path: Path) -> None:
    asked = [
        {"question": "who?", "answers": [{"text": "a"}, {"text": "a"}, {"text": "b"}]},
        {"question": "x", "answers": []},
    ]
    told = {"data": [{"paragraphs": [{"context": "one", "qas": asked}, {"context": "two", "qas": asked}]}]}
    file = tmp_path / "squad.json"
    file.write_text(json.dumps(told))
    found = squad_items(str(file), 5)
    assert [(item.question.text, item.answers, item.about) for item in found] == [
        ("one\nwho?", ("a", "b"), 0),
        ("two\nwho?", ("a", "b"), 1),
    ]
    assert len(squad_items(str(file), 1)) == 1
    file.write_text("{}")
    with pytest.raises(RequestError, match="SQuAD's shape"):
        squad_items(str(file), 1)
