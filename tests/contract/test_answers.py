"""What `info`, `library`, `grid` and `ask` promise about the model and its answers."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from engine.contract import (
    METHODS,
    MODALITIES,
    Answer,
    AnswerToken,
    Asked,
    Cancelled,
    Engine,
    PictureTooSmall,
    PromptTooLong,
    Question,
    RequestError,
    Steering,
    Target,
    UnknownName,
)

WHOLE = Target()


def test_info_describes_a_checked_model(engine: Engine) -> None:
    info = engine.info()
    assert info.name
    assert info.revision
    assert min(info.n_layers, info.d_model, info.d_mlp, info.n_parameters) > 0
    assert info.n_neurons == info.n_layers * info.d_mlp
    assert info.checks
    assert info.holds
    assert all(check.name and check.detail for check in info.checks)
    assert engine.info() == info


def test_the_librarys_concepts_are_fuzzy_sets_over_all_neurons(engine: Engine) -> None:
    library, info = engine.library(), engine.info()
    names = [concept.name for concept in library.concepts]
    assert names
    assert len(set(names)) == len(names)
    assert library.revision
    for concept in library.concepts:
        assert concept.memberships.shape == (info.n_layers, info.d_mlp)
        assert concept.memberships.dtype == np.float32
        assert concept.memberships.min() >= 0
        assert 0 < concept.memberships.max() <= 1
        assert concept.kind
        assert concept.probes > 0
    assert engine.library().revision == library.revision


def test_the_grid_is_known_before_the_answer(engine: Engine, question: Question, asked: Asked) -> None:
    grid = engine.grid(question)
    assert grid is not None
    assert grid == asked.attribution.grid
    assert grid.rows > 0
    assert grid.cols > 0
    left, top, right, bottom = grid.box
    assert left < right
    assert top < bottom
    assert engine.grid(dataclasses.replace(question, picture=None)) is None


def test_an_answer_is_its_tokens_joined_without_the_end(asked: Asked, question: Question) -> None:
    answer = asked.answer
    assert answer.text == "".join(token.text for token in answer.tokens).strip()
    assert answer.text
    assert answer.stopped in ("end", "length")
    assert len(answer.tokens) <= question.max_new_tokens
    assert (answer.stopped == "length") <= (len(answer.tokens) == question.max_new_tokens)
    assert not any("</s>" in token.text for token in answer.tokens)


def test_a_shorter_limit_gives_the_same_tokens_and_says_so(engine: Engine, question: Question, asked: Asked) -> None:
    short = engine.ask(dataclasses.replace(question, max_new_tokens=2)).answer
    assert [token.id for token in short.tokens] == [token.id for token in asked.answer.tokens[:2]]
    assert short.stopped == "length"


def test_each_token_is_the_most_probable_of_its_alternatives(asked: Asked) -> None:
    for token in asked.answer.tokens:
        logprobs = [alternative.logprob for alternative in token.alternatives]
        assert len(logprobs) > 1
        assert logprobs == sorted(logprobs, reverse=True)
        assert logprobs[0] <= 0
        assert sum(np.exp(logprobs)) <= 1 + 1e-5
        assert token.alternatives[0].id == token.id
        assert token.alternatives[0].logprob == pytest.approx(token.logprob)
        assert len({alternative.id for alternative in token.alternatives}) == len(logprobs)


def test_the_prompt_folds_the_pictures_placeholders(engine: Engine, question: Question, asked: Asked) -> None:
    grid = engine.grid(question)
    assert grid is not None
    prompt = asked.answer.prompt
    assert {token.modality for token in prompt} <= set(MODALITIES) - {"answer"}
    assert [token.count for token in prompt if token.modality == "image"] == [grid.rows * grid.cols]
    assert all(token.count == 1 for token in prompt if token.modality != "image")
    asked_words = "".join(token.text for token in prompt if token.modality == "question")
    assert asked_words.strip().lower() == question.text
    unfolded = [token.modality for token in prompt for _ in range(token.count)]
    assert asked.attribution.modality_of_position == (*unfolded, *["answer"] * len(asked.answer.tokens))


def test_tokens_come_one_by_one_and_then_the_answer(engine: Engine, question: Question) -> None:
    events: list[object] = []
    result = engine.ask(question, on_token=events.append, on_answer=events.append)
    assert events == [*result.answer.tokens, result.answer]


def test_timing_is_by_stage(asked: Asked) -> None:
    assert set(asked.timing_ms) == {"picture", "generate", "attribute", "total"}
    parts = [asked.timing_ms[stage] for stage in ("picture", "generate", "attribute")]
    assert all(part >= 0 for part in parts)
    assert asked.timing_ms["total"] == pytest.approx(sum(parts), abs=5, rel=0.1)


def test_asking_again_gives_the_same(engine: Engine, question: Question, asked: Asked) -> None:
    again = engine.ask(question)
    assert again.answer == asked.answer
    assert np.array_equal(again.attribution.scores, asked.attribution.scores)
    assert again.attribution.value == asked.attribution.value


def test_a_question_without_a_picture_is_answered(engine: Engine) -> None:
    result = engine.ask(Question(None, "where does the penguin live?", 3))
    assert result.answer.tokens
    assert result.attribution.grid is None
    assert result.attribution.heat is None
    assert result.attribution.layer_heats is None
    assert all(neuron.activation is None for neuron in result.attribution.neurons)
    assert "image" not in result.attribution.modality_of_position


@pytest.mark.parametrize("method", ["gradients", "", "pans", "<script>"])
def test_an_unknown_method_is_refused(engine: Engine, question: Question, method: str) -> None:
    assert method not in METHODS
    with pytest.raises(UnknownName, match=method or "method"):
        engine.ask(question, method)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"picture": np.zeros((1, 1, 3), np.uint8)}, PictureTooSmall),
        ({"text": "what is this? " * 4000}, PromptTooLong),
    ],
)
def test_what_cannot_be_asked_is_refused_before_any_work(
    engine: Engine, question: Question, change: dict[str, object], error: type[RequestError]
) -> None:
    refused = dataclasses.replace(question, **change)  # type: ignore[arg-type]
    events: list[object] = []
    calls: list[Callable[[], object]] = [
        lambda: engine.ask(refused, on_token=events.append, on_answer=events.append),
        lambda: engine.attribute(refused, [10], WHOLE),
        lambda: engine.steer(refused, [10], Steering(), on_token=events.append),
    ]
    for call in calls:
        with pytest.raises(error) as caught:
            call()
        assert str(caught.value).endswith(".")
    assert not events


@pytest.mark.parametrize("after", [0, 1])
def test_a_cancelled_question_stops_within_one_token(engine: Engine, question: Question, after: int) -> None:
    tokens: list[AnswerToken] = []
    answers: list[Answer] = []
    with pytest.raises(Cancelled):
        engine.ask(question, on_token=tokens.append, on_answer=answers.append, cancelled=lambda: len(tokens) >= after)
    assert len(tokens) == after
    assert not answers


def test_cancelling_after_the_answer_stops_before_attribution(engine: Engine, question: Question) -> None:
    answers: list[Answer] = []
    with pytest.raises(Cancelled):
        engine.ask(question, on_answer=answers.append, cancelled=lambda: bool(answers))
    assert len(answers) == 1


def test_an_error_of_the_caller_passes_through_and_leaves_nothing(
    engine: Engine, question: Question, asked: Asked
) -> None:
    def fail(_token: AnswerToken) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.ask(question, on_token=fail)
    assert engine.ask(question).answer == asked.answer
