"""The further methods on every family's tiny model: norms, caps, scales and blocks of other kinds than LLaVA's."""

import numpy as np
import pytest
import torch

from engine.attribution.integrated import COMPLETE
from engine.attribution.logprob_increase import READ
from engine.contract import Question, Target
from engine.hooks import count_hooks
from engine.loading import Loaded
from engine.local import LocalEngine
from tests.engine import tiny
from tests.engine.families import kits, seeing

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # PaliGemma's processor

FAMILIES = {**kits.TEXT, **seeing.SEEING}
ANSWER = [700, 701]


@pytest.fixture(scope="module", params=list(FAMILIES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return kits.make(tmp_path_factory.mktemp(request.param), FAMILIES[request.param]())


@pytest.fixture(scope="module")
def engine(model: Loaded) -> LocalEngine:
    return LocalEngine(model)


@pytest.fixture(scope="module")
def question(model: Loaded) -> Question:
    return Question(tiny.picture(height=60, width=80) if model.sees else None, "what is on the left?", 3)


def test_the_stream_is_read_as_the_model_reads_it(engine: LocalEngine, question: Question) -> None:
    result = engine.attribute(question, ANSWER, Target(), "logprob_increase")
    (check,) = [check for check in result.checks if check.name == READ]
    assert check.holds, check.detail
    assert np.abs(result.scores).max() > 1e-5
    assert result.value == pytest.approx(engine.attribute(question, ANSWER, Target()).value, abs=1e-3)


def test_integrated_scores_are_complete_where_no_post_norm_forbids_it(
    model: Loaded, engine: LocalEngine, question: Question
) -> None:
    result = engine.attribute(question, ANSWER, Target(), "integrated")
    (check,) = [check for check in result.checks if check.name == COMPLETE]
    assert check.holds, check.detail
    if any(norm is not None for norm in model.anatomy.mlp_norms):
        assert len(result.checks) == 3  # bookkeeping, completeness, and what the norm takes away


def test_ablation_is_surgery_on_the_write_vector(model: Loaded, engine: LocalEngine, question: Question) -> None:
    result = engine.attribute(question, ANSWER, Target(), "ablation")
    best = result.neurons[0]
    vector = model.anatomy.write_vectors(best.layer)[best.index]
    kept = vector.clone()
    with torch.no_grad():
        vector.zero_()
        lost = result.value - engine.attribute(question, ANSWER, Target()).value
        vector.copy_(kept)
    assert best.score == pytest.approx(lost, abs=1e-3)
    assert best.score != 0
    assert count_hooks(model.model) == 0


def test_contrasts_and_pan_are_found_on_every_family(engine: LocalEngine, question: Question) -> None:
    target = Target(text=" red", against=" lemon")
    both = engine.attribute(question, ANSWER, target)
    one, other = (engine.attribute(question, ANSWER, Target(text=text)) for text in (" red", " lemon"))
    largest = max(np.abs(one.scores).max(), np.abs(other.scores).max())
    assert np.abs(both.scores - (one.scores - other.scores)).max() < 1e-4 * largest
    assert np.abs(engine.attribute(question, ANSWER, Target(), "pan").scores).max() > 0
