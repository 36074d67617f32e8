"""What both engines promise of the embeddings' gradient × input."""

import numpy as np
import pytest

from engine.contract import (
    MODALITIES,
    Asked,
    BadTarget,
    Cancelled,
    ConceptTurn,
    Engine,
    InputHeat,
    Question,
    Steering,
    Target,
    UnknownName,
)


def close(ours: object, theirs: object) -> bool:
    theirs = np.asarray(theirs, np.float64)
    return bool(np.abs(np.asarray(ours, np.float64) - theirs).max() <= 1e-4 * max(1.0, np.abs(theirs).max()))


@pytest.fixture(scope="module")
def whole(engine: Engine, question: Question, ids: list[int]) -> InputHeat:
    return engine.input_heat(question, ids, Target())


def test_the_map_is_of_the_picture_and_sums_to_its_part(engine: Engine, question: Question, whole: InputHeat) -> None:
    assert whole.grid is not None
    assert whole.grid == engine.grid(question)
    assert whole.heat is not None
    assert whole.heat.shape == (whole.grid.rows, whole.grid.cols)
    assert whole.heat.dtype == np.float32
    assert np.ptp(whole.heat) > 0
    assert len(whole.by_modality) == len(MODALITIES)
    assert all(isinstance(part, float) and part for part in whole.by_modality)
    assert close(whole.heat.sum(), whole.by_modality[0])
    assert whole.note.endswith(".")


def test_it_explains_the_same_target(
    engine: Engine, question: Question, ids: list[int], asked: Asked, whole: InputHeat
) -> None:
    assert whole.value == pytest.approx(asked.attribution.value, abs=1e-3)
    parts = [engine.input_heat(question, ids, Target(k, k + 1)) for k in range(len(ids))]
    assert close(whole.heat, sum(part.heat for part in parts if part.heat is not None))
    assert close(whole.by_modality, np.sum([part.by_modality for part in parts], axis=0))
    assert not close(parts[0].heat, parts[1].heat)


def test_of_a_contrast_it_is_the_difference(engine: Engine, question: Question, ids: list[int]) -> None:
    both = engine.input_heat(question, ids, Target(text=" red", against=" blue pizza"))
    one, other = (engine.input_heat(question, ids, Target(text=text)) for text in (" red", " blue pizza"))
    assert one.heat is not None
    assert other.heat is not None
    assert close(both.heat, one.heat - other.heat)
    assert close(both.by_modality, np.subtract(one.by_modality, other.by_modality))
    assert both.value == pytest.approx(one.value - other.value, abs=1e-3)


def test_positions_left_out_count_as_zero(engine: Engine, question: Question, ids: list[int], whole: InputHeat) -> None:
    without = engine.input_heat(question, ids, Target(leave_out=("special",)))
    assert close(without.heat, whole.heat)  # no special position is the picture's
    assert without.by_modality[:2] == pytest.approx(whole.by_modality[:2], abs=1e-5)
    assert without.by_modality[2] != pytest.approx(whole.by_modality[2], abs=1e-5)
    attribution = engine.attribute(question, ids, Target(), top=0)
    on_image = [attribution.modality_of_position[p] == "image" for p in attribution.apart[1].positions]
    gone = engine.input_heat(question, ids, Target(leave_out=("high-norm",)))
    assert close(gone.heat, whole.heat) == (not any(on_image))


def test_without_a_picture_there_are_sums_alone(engine: Engine, ids: list[int]) -> None:
    result = engine.input_heat(Question(None, "where does the penguin live?", 3), ids, Target())
    assert result.heat is None
    assert result.grid is None
    assert result.by_modality[0] == 0
    assert result.by_modality[1] != 0
    assert result.note


def test_it_is_of_the_steered_model(engine: Engine, question: Question, ids: list[int], whole: InputHeat) -> None:
    steering = Steering((ConceptTurn(engine.library().concepts[0].name, -1.0),))
    steered = engine.input_heat(question, ids, Target(), steering)
    assert not close(steered.heat, whole.heat)
    assert steered.value == pytest.approx(engine.attribute(question, ids, Target(), steering=steering).value, abs=1e-3)
    again = engine.input_heat(question, ids, Target())
    assert np.array_equal(np.asarray(again.heat), np.asarray(whole.heat))


def test_what_cannot_be_explained_is_refused(engine: Engine, question: Question, ids: list[int]) -> None:
    for answer, target in (([], Target()), (ids, Target(99)), (ids, Target(quantity="odds"))):
        with pytest.raises(BadTarget):
            engine.input_heat(question, answer, target)
    with pytest.raises(UnknownName):
        engine.input_heat(question, ids, Target(), Steering((ConceptTurn("no such concept", 1.0),)))
    with pytest.raises(Cancelled):
        engine.input_heat(question, ids, Target(), cancelled=lambda: True)
