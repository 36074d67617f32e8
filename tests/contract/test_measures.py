"""What both engines promise of targets beyond the answer's own tokens, and of measurements around an attribution."""

import numpy as np
import pytest

from engine.contract import APART, BadTarget, Cancelled, Engine, Question, RequestError, Target, UnknownName
from engine.measures import mean_over_log, spearman


def close(ours: object, theirs: object) -> bool:
    theirs = np.asarray(theirs, np.float64)
    return bool(np.abs(np.asarray(ours, np.float64) - theirs).max() <= 1e-4 * max(1.0, np.abs(theirs).max()))


def test_the_explained_ids_are_carried(engine: Engine, question: Question, ids: list[int]) -> None:
    assert engine.attribute(question, ids, Target()).explained == tuple(ids)
    assert engine.attribute(question, ids, Target(1, 2)).explained == (ids[1],)
    assert engine.ask(question).attribution.explained == tuple(ids)
    assert engine.ask(question, "direct").attribution.explained == tuple(ids)


def test_a_text_is_explained_as_if_it_had_been_said(engine: Engine, question: Question, ids: list[int]) -> None:
    result = engine.attribute(question, ids, Target(text=" red pizza"))
    said = engine.attribute(question, result.explained, Target())
    assert close(result.scores, said.scores)
    assert result.value == pytest.approx(said.value, abs=1e-3)
    assert (result.target.text, result.target.end) == (" red pizza", len(result.explained))
    assert close(engine.attribute(question, ids, result.target).scores, result.scores)


def test_a_contrast_is_a_difference(engine: Engine, question: Question, ids: list[int]) -> None:
    both = engine.attribute(question, ids, Target(text=" red", against=" blue pizza"))
    one, other = (engine.attribute(question, ids, Target(text=text)) for text in (" red", " blue pizza"))
    assert close(both.scores, one.scores - other.scores)
    assert both.value == pytest.approx(one.value - other.value, abs=1e-3)
    assert (both.explained, both.explained_against) == (one.explained, other.explained)
    assert one.explained_against == ()
    assert len(both.modality_of_position) == max(len(one.modality_of_position), len(other.modality_of_position))
    assert close(both.scores.sum(1), both.positions.sum(1))
    assert not engine.attribute(question, ids, Target(text=" red", against=" red")).scores.any()


def test_a_logit_is_another_quantity(engine: Engine, question: Question, ids: list[int]) -> None:
    logit, logprob = (engine.attribute(question, ids, Target(0, 1, quantity=q)) for q in ("logit", "logprob"))
    assert logprob.value <= 0
    assert logit.value != pytest.approx(logprob.value)
    with pytest.raises(RequestError):
        engine.attribute(question, ids, Target(quantity="logit"), "logprob_increase")


@pytest.mark.parametrize(
    "target", [Target(text=" "), Target(against=""), Target(quantity="odds"), Target(leave_out=("sky",))]
)
def test_a_target_that_makes_no_sense_is_refused(
    engine: Engine, question: Question, ids: list[int], target: Target
) -> None:
    with pytest.raises(BadTarget):
        engine.attribute(question, ids, target)


def test_variants_are_told_apart_by_their_ids(engine: Engine, question: Question, ids: list[int]) -> None:
    found = engine.variants(question, "red pizza", ids[:1])
    assert len(found) > 1
    assert len({variant.ids for variant in found}) == len(found)
    assert [variant.logprob for variant in found] == sorted((variant.logprob for variant in found), reverse=True)
    assert all(len(variant.pieces) == len(variant.ids) for variant in found)
    assert " red pizza" in {variant.text for variant in found}
    for variant in found[:3]:
        result = engine.attribute(question, ids, Target(1, text=variant.text))
        assert result.explained == variant.ids
        assert result.value == pytest.approx(variant.logprob, abs=1e-3)
    with pytest.raises(BadTarget):
        engine.variants(question, "  ")


def test_positions_that_stand_apart_are_named_and_left_out_on_request(
    engine: Engine, question: Question, ids: list[int]
) -> None:
    plain = engine.attribute(question, ids, Target())
    assert [entry.kind for entry in plain.apart] == list(APART)
    assert not any(entry.left_out for entry in plain.apart)
    assert all(0 <= entry.share <= 1 for entry in plain.apart)
    special = plain.apart[0].positions
    assert special
    without = engine.attribute(question, ids, Target(leave_out=("special",)))
    expected = plain.positions.copy()
    expected[:, list(special)] = 0
    assert close(without.positions, expected)
    assert without.apart[0].left_out
    assert without.apart[0].share == pytest.approx(plain.apart[0].share, abs=1e-4)
    assert not without.apart[1].left_out


def test_faithfulness_has_curves_controls_and_a_sample(engine: Engine, question: Question, ids: list[int]) -> None:
    told: list[tuple[int, int]] = []
    target = Target(0, 1)
    found = engine.faithfulness(question, ids, target, on_progress=lambda done, n: told.append((done, n)))
    assert told
    assert told[-1][0] == told[-1][1]
    assert found.sizes[0] == 1
    assert len(found.ranked) == len(found.sizes)
    assert len(found.random) >= 3
    assert all(len(curve) == len(found.sizes) for curve in found.random)
    assert found.whole == pytest.approx(engine.attribute(question, ids, target).value, abs=1e-3)
    assert len(found.sample) == len(found.scores) == len(found.effects) >= 50
    assert found.spearman == pytest.approx(spearman(found.scores, found.effects))
    chance = np.mean(found.random, axis=0)
    assert found.area == pytest.approx(mean_over_log(found.sizes, chance - np.array(found.ranked)), abs=1e-6)
    assert found.area > 0
    assert found.completeness_error >= 0


def test_faithfulness_stops_when_asked(engine: Engine, question: Question, ids: list[int]) -> None:
    told: list[int] = []
    with pytest.raises(Cancelled):
        engine.faithfulness(
            question, ids, Target(0, 1), on_progress=lambda *_: told.append(1), cancelled=lambda: bool(told)
        )
    assert len(told) == 1
    with pytest.raises(UnknownName):
        engine.faithfulness(question, ids, Target(), "guess")


def test_the_noise_band_is_of_the_first_neurons(engine: Engine, question: Question, ids: list[int]) -> None:
    first = {neuron.neuron for neuron in engine.attribute(question, ids, Target(), top=20).neurons}
    bands = engine.noise(question, ids, Target())
    assert [band.against for band in bands] == ["bfloat16", "a batch of two"]
    for band in bands:
        assert band.top == 20
        assert set(band.moved) <= first
        assert band.difference >= 0


def test_the_noise_band_stops_when_asked(engine: Engine, question: Question, ids: list[int]) -> None:
    asked: list[int] = []
    with pytest.raises(Cancelled):
        engine.noise(question, ids, Target(), lambda: bool(asked.append(1)) or len(asked) > 1)
    assert len(asked) == 2
