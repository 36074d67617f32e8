"""Whatever happens in a call, it leaves no hook and no number behind; and what cannot be shown is named."""

import gc
import threading
import weakref

import numpy as np
import pytest
import torch

from engine.contract import (
    PLAIN,
    Answer,
    AnswerToken,
    BadTarget,
    Cancelled,
    EngineError,
    NeuronTurn,
    NonFinite,
    Question,
    RequestError,
    Steering,
    Target,
    UnknownName,
)
from engine.hooks import capture, capture_writes, count_hooks, intervene
from engine.interventions import NO_EDITS
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import build_prompt
from engine.running import FeatureCache, PromptCache, answer_ids
from tests.engine import tiny

TURNED = Steering(neurons=(NeuronTurn(1, 4, "add", 3.0),))


class Broken(Exception):
    """Raised by a caller's own function."""


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
@pytest.mark.parametrize("method", ["gradient", "direct"])
@pytest.mark.parametrize("steering", [PLAIN, TURNED], ids=["plain", "steered"])
def test_an_exception_in_the_callers_function_leaves_no_hook_and_the_same_logits(
    engine: LocalEngine,
    model: Loaded,
    question: Question,
    error: type[BaseException],
    method: str,
    steering: Steering,
) -> None:
    prompt = build_prompt(model, question)
    before = tiny.logits(model.model, prompt)
    answer = engine.ask(question).answer
    hooks_inside: list[int] = []

    def second(_token: object) -> None:
        hooks_inside.append(tiny.all_hooks(model.model))
        if len(hooks_inside) == 2:
            raise error("in the middle")

    def at_once(_answer: object) -> None:
        raise error("in the middle")

    with pytest.raises(error, match="in the middle"):
        engine.ask(question, method, steering, on_answer=at_once)
    with pytest.raises(error, match="in the middle"):
        engine.ask(question, method, steering, on_token=second)
    hooks_inside.clear()
    with pytest.raises(error, match="in the middle"):
        engine.steer(question, [700], steering, on_token=second)
    assert bool(hooks_inside[0]) == (steering is TURNED)
    assert tiny.all_hooks(model.model) == count_hooks(model.model) == 0
    assert torch.equal(tiny.logits(model.model, prompt), before)
    assert engine.ask(question).answer == answer


def test_the_hook_contexts_remove_their_hooks_whatever_happens(model: Loaded) -> None:
    for context in (capture(model.anatomy), capture_writes(model.anatomy), intervene(model.anatomy, [NO_EDITS])):
        with pytest.raises(KeyboardInterrupt), context:
            raise KeyboardInterrupt
        assert tiny.all_hooks(model.model) == 0
    with capture(model.anatomy):
        assert tiny.all_hooks(model.model) == count_hooks(model.model) == model.anatomy.n_layers + 2


@pytest.mark.parametrize("call", ["ask", "steer"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_cancelled_answer_stops_within_one_token(
    engine: LocalEngine, model: Loaded, question: Question, call: str, after: int
) -> None:
    seen: list[AnswerToken] = []
    answers: list[object] = []

    def cancelled() -> bool:
        return len(seen) >= after

    calls = {
        "ask": lambda: engine.ask(question, "gradient", TURNED, 5, seen.append, answers.append, cancelled),
        "steer": lambda: engine.steer(question, [700], TURNED, seen.append, cancelled),
    }
    with pytest.raises(Cancelled):
        calls[call]()
    assert len(seen) == after
    assert not answers
    assert tiny.all_hooks(model.model) == 0


def test_cancelling_between_answer_and_attribution_stops_there(engine: LocalEngine, question: Question) -> None:
    answers: list[object] = []
    with pytest.raises(Cancelled, match="before attribution"):
        engine.ask(question, on_answer=answers.append, cancelled=lambda: bool(answers))
    assert len(answers) == 1
    with pytest.raises(Cancelled):
        engine.attribute(question, [700], Target(), cancelled=lambda: True)


@pytest.mark.parametrize("method", ["gradient", "direct"])
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("model.language_model.layers.1.mlp.down_proj.weight", "the logits of answer token 1"),
        ("model.multi_modal_projector.linear_2.weight", "the picture's features"),
    ],
)
def test_a_nan_is_refused_with_the_place_where_it_shows(
    model: Loaded, question: Question, place: str, words: str, method: str
) -> None:
    broken = tiny.changed(model)
    engine = LocalEngine(broken)
    with torch.no_grad():
        broken.model.get_parameter(place)[0, 0] = torch.nan
    with pytest.raises(NonFinite, match=words):
        engine.ask(question, method)
    assert tiny.all_hooks(broken.model) == 0


def test_a_steering_that_would_overflow_is_refused_before_it_runs(model: Loaded, question: Question) -> None:
    engine = LocalEngine(model)
    wild = Steering(neurons=tuple(NeuronTurn(1, index, "set", 3e38) for index in range(48)))
    for call in (
        lambda: engine.ask(question, steering=wild),
        lambda: engine.steer(question, [700], wild),
        lambda: engine.attribute(question, [700], Target(), steering=wild),
        lambda: engine.attribute(question, [700], Target(), "direct", steering=wild),
    ):
        with pytest.raises(RequestError, match=r"magnitude at most 10000"):
            call()


@pytest.mark.parametrize(("start", "end"), [(0, 0), (2, 1), (-1, 1), (0, 3), (2, None), (5, 6)])
def test_a_target_outside_the_answer_is_refused(
    engine: LocalEngine, question: Question, start: int, end: int | None
) -> None:
    for method in ("gradient", "direct"):
        with pytest.raises(BadTarget, match=r"answer's 2 tokens\. Choose a start from 0 to 1"):
            engine.attribute(question, [700, 701], Target(start, end), method)
    with pytest.raises(BadTarget, match="nothing to attribute"):
        engine.attribute(question, [], Target())


def test_an_answer_that_ends_at_once_is_given_and_then_refused_for_attribution(
    model: Loaded, question: Question
) -> None:
    other = tiny.changed(model)
    engine = LocalEngine(other)
    first = int(tiny.logits(other.model, build_prompt(other, question))[-1].argmax())
    other.model.generation_config.eos_token_id = [2, first]
    answers: list[Answer] = []
    with pytest.raises(BadTarget, match="answer is empty"):
        engine.ask(question, on_answer=answers.append)
    assert [(answer.text, answer.tokens, answer.stopped) for answer in answers] == [("", (), "end")]


def test_an_unknown_method_is_refused_with_near_misses(engine: LocalEngine, question: Question) -> None:
    with pytest.raises(UnknownName, match=r"gradients.*Did you mean gradient"):
        engine.ask(question, "gradients")
    with pytest.raises(UnknownName, match="pans"):
        engine.attribute(question, [700], Target(), "pans")


def test_an_engine_belongs_to_one_thread(model: Loaded, question: Question) -> None:
    engine = LocalEngine(model)
    engine.ask(question, "direct", top=1)
    errors: list[BaseException] = []

    def elsewhere() -> None:
        try:
            engine.ask(question, "direct", top=1)
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert [str(error) for error in errors] == ["This engine is owned by another thread."]


def test_a_closed_engine_frees_the_model_and_says_so(model: Loaded, question: Question) -> None:
    own = tiny.changed(model)
    engine = LocalEngine(own)
    engine.ask(question, "direct", top=1)
    weights = weakref.ref(own.anatomy.downs[0])
    engine.close()
    del own
    gc.collect()
    assert weights() is None
    for call in (lambda: engine.ask(question), lambda: engine.grid(question)):
        with pytest.raises(EngineError, match="closed"):
            call()


def living_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def test_thirty_questions_leave_no_hook_and_no_tensor(model: Loaded) -> None:
    engine = LocalEngine(model)

    def ask(number: int) -> None:
        steering = TURNED if number % 3 == 0 else PLAIN
        method = ("gradient", "direct")[number % 2]
        asked = engine.ask(Question(tiny.picture(number), "what is this?", 3), method, steering, top=3)
        engine.steer(Question(tiny.picture(number), "what is this?", 2), answer_ids(asked.answer), TURNED)
        assert tiny.all_hooks(model.model) == 0

    for number in range(10):  # fills the cache of picture features
        ask(number)
    before = living_tensors()
    for number in range(10, 40):
        ask(number)
    assert living_tensors() <= before


def test_picture_features_are_kept_for_the_last_pictures_only(model: Loaded, question: Question) -> None:
    cache = FeatureCache(size=2)
    prompts = [build_prompt(model, Question(tiny.picture(seed), "what?")) for seed in range(3)]
    first = cache.get(model, prompts[0])
    assert cache.get(model, prompts[0]) is first
    for prompt in prompts:
        cache.get(model, prompt)
    assert list(cache.kept) == [prompts[1].key, prompts[2].key]
    again = cache.get(model, prompts[0])
    assert first is not None
    assert again is not None
    assert again is not first
    assert torch.equal(again.features, first.features)
    assert cache.get(model, build_prompt(model, Question(None, "what?"))) is None


def test_prompts_are_kept_for_the_last_questions_only(model: Loaded) -> None:
    cache = PromptCache(size=2)
    asked = [
        Question(tiny.picture(0), "what?"),
        Question(tiny.picture(0), "where?"),
        Question(tiny.picture(1), "what?"),
    ]
    first = cache.get(model, asked[0])
    assert cache.get(model, Question(tiny.picture(0), "what?")) is first
    others = [cache.get(model, question) for question in asked[1:]]
    assert others[0].ids.tolist() != first.ids.tolist()
    assert others[1].key != first.key
    assert len(cache.kept) == 2
    again = cache.get(model, asked[0])
    assert again is not first
    assert torch.equal(again.ids, first.ids)
    assert again.key == first.key


def test_interleaved_clean_and_steered_calls_do_not_touch_one_another(engine: LocalEngine, question: Question) -> None:
    clean = engine.ask(question)
    steered = engine.steer(question, [700], TURNED)
    for _ in range(3):
        assert engine.steer(question, [700], TURNED) == steered
        again = engine.ask(question)
        assert again.answer == clean.answer
        assert np.array_equal(again.attribution.scores, clean.attribution.scores)
