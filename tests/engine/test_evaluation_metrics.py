"""Metrics and statistics of an evaluation against values computed by hand."""

import math

import numpy as np
import pytest

from engine.evaluation import metrics, stats


@pytest.mark.parametrize(
    ("answer", "right", "score"),
    [("Penguin ", "penguin", 1), ("a penguin", "penguin", 0), ("traffic  light", "Traffic Light", 1), ("", "x", 0)],
)
def test_an_exact_match_looks_past_case_and_blanks_alone(answer: str, right: str, score: float) -> None:
    assert metrics.score("exact", answer, (right,)) == score


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Two dogs.", "2 dogs"),
        ("an apple, a pear", "apple pear"),
        ("dont know", "don't know"),
        ("3.5 m", "3.5 m"),
        ("1,000", "1000"),
        ("black/white", "black white"),
        ("none", "0"),
        ("It’s  ok!", "it's ok"),
    ],
)
def test_answers_are_normalised_as_vqa_compares_them(text: str, normal: str) -> None:
    assert metrics.normalised(text) == normal


@pytest.mark.parametrize(("matches", "accuracy"), [(0, 0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1), (10, 1)])
def test_vqa_accuracy_is_the_mean_over_leave_one_out_subsets(matches: int, accuracy: float) -> None:
    """With m matches of ten: m subsets leave one of them out and count m − 1, the others m, each divided by 3."""
    people = ["red"] * matches + [f"other {k}" for k in range(10 - matches)]
    assert metrics.score("vqa", "the red", people) == pytest.approx(accuracy)


def test_a_lone_answer_is_matched_or_not() -> None:
    assert metrics.score("vqa", "two", ("2",)) == 1
    assert metrics.score("vqa", "three", ("2",)) == 0


@pytest.mark.parametrize(
    ("answer", "right", "score"),
    [
        ("Yes, there is.", "yes", 1),
        ("There is no dog", "no", 1),
        ("no", "yes", 0),
        ("a dog", "no", 0),
        ("know", "no", 0),
    ],
)
def test_the_first_yes_or_no_counts(answer: str, right: str, score: float) -> None:
    assert metrics.score("yesno", answer, (right,)) == score


def test_yes_no_figures_by_hand() -> None:
    found = metrics.yes_no_figures(["yes", "yes", "yes", "no", "no", "?"], ["yes", "yes", "no", "yes", "no", "no"])
    assert found == {"precision": 2 / 3, "recall": 2 / 3, "f1": pytest.approx(2 / 3), "yes_share": 0.5}
    assert metrics.yes_no_figures(["no"], ["no"])["f1"] == 0


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [(0, 0, 1), (5, 0, 2 / 32), (0, 5, 2 / 32), (8, 2, 2 * (1 + 10 + 45) / 1024), (3, 3, 1), (1, 0, 1)],
)
def test_mcnemar_is_a_two_sided_binomial_on_the_discordant_pairs(gained: int, lost: int, p: float) -> None:
    assert stats.mcnemar(gained, lost) == pytest.approx(p)


def test_mcnemar_of_many_pairs_is_a_number() -> None:
    assert 0 < stats.mcnemar(3000, 2500) < 1e-10


def test_an_arm_of_right_and_wrong_answers_has_wilsons_interval() -> None:
    """8 of 10: centre (0.8 + z²/20) / (1 + z²/10), half width z √(0.016 + z²/400) / (1 + z²/10), z = 1.959964."""
    found = stats.arm([1.0] * 8 + [0.0] * 2, 0)
    assert (found.accuracy, found.n) == (0.8, 10)
    assert found.low == pytest.approx(0.4902, abs=1e-4)
    assert found.high == pytest.approx(0.9433, abs=1e-4)


def test_an_arm_of_partial_scores_has_a_bootstrap_interval() -> None:
    found = stats.arm([0.3, 0.6, 0.9, 1.0, 0.0] * 10, 7)
    assert found.low < found.accuracy < found.high
    assert stats.arm([0.3, 0.6, 0.9, 1.0, 0.0] * 10, 7) == found
    assert stats.arm([0.3] * 4, 0).low == pytest.approx(0.3)


def test_a_difference_is_paired_seeded_and_counts_both_ways() -> None:
    after, before = [1.0] * 30 + [0.0] * 10, [1.0] * 20 + [0.0] * 12 + [1.0] * 8
    found = stats.difference(after, before, 3)
    assert (found.gained, found.lost) == (10, 8)
    assert found.value == pytest.approx(2 / 40)
    assert found.low < 0 < found.high
    assert found == stats.difference(after, before, 3)
    spread = math.sqrt(18 / 40 - 0.05**2)
    assert found.high - found.low == pytest.approx(2 * 1.96 * spread / math.sqrt(40), rel=0.15)


def test_nothing_is_not_a_number_and_never_significant() -> None:
    found = stats.difference([], [], 0)
    assert math.isnan(found.value)
    assert found.p == 1


def test_a_gain_has_its_standard_error() -> None:
    mean, error = stats.gain(np.array([1.0, 1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0, 1.0]))
    assert mean == 0
    assert error == pytest.approx(math.sqrt((1 + 0 + 0 + 1) / 3) / 2)
