"""What can be explained: spans, texts the model did not say, contrasts, logits; and positions that are left out."""

from typing import Any

import numpy as np
import pytest
import torch

from engine.attribution.apart import high_norm_positions
from engine.contract import METHODS, MODALITIES, BadTarget, PromptTooLong, Question, Target
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.measures import moved
from engine.prompts import Prompt, build_prompt
from engine.targets import continuation_ids, parts_of, ways_to_write
from tests.engine import tiny

ANSWER = [700, 701, 686]


@pytest.fixture(scope="module")
def prompt(model: Loaded, question: Question) -> Prompt:
    return build_prompt(model, question)


def ids_of(model: Loaded, text: str) -> list[int]:
    return [int(token) for token in model.processor.tokenizer(text, add_special_tokens=False)["input_ids"]]


def close(ours: object, theirs: np.ndarray) -> bool:
    return bool(np.abs(np.asarray(ours) - theirs).max() <= 1e-4 * max(1e-6, np.abs(theirs).max()))


def test_a_text_that_was_not_said_is_explained_as_if_it_had_been(
    model: Loaded, engine: LocalEngine, question: Question, prompt: Prompt
) -> None:
    text = " a traffic light"
    ids = ids_of(model, text)
    assert len(ids) > 1
    result = engine.attribute(question, ANSWER, Target(text=text))
    said = engine.attribute(question, ids, Target())
    assert result.explained == tuple(ids)
    assert (result.target.start, result.target.end, result.target.text) == (0, len(ids), text)
    assert np.array_equal(result.scores, said.scores)
    rows = tiny.logits(model.model, prompt, ids)
    assert result.value == pytest.approx(float(tiny.span_logprob(rows, prompt, ids, 0, len(ids))), abs=1e-4)
    again = engine.attribute(question, ANSWER, result.target)
    assert np.array_equal(again.scores, result.scores)


def test_a_text_can_stand_behind_the_answers_first_tokens(
    model: Loaded, engine: LocalEngine, question: Question, prompt: Prompt
) -> None:
    ids = ids_of(model, " red lemon")
    sequence = [*ANSWER[:2], *ids]
    result = engine.attribute(question, ANSWER, Target(2, text=" red lemon"))
    rows = tiny.logits(model.model, prompt, sequence)
    assert result.value == pytest.approx(float(tiny.span_logprob(rows, prompt, sequence, 2, len(sequence))), abs=1e-4)
    assert result.explained == tuple(ids)
    assert len(result.modality_of_position) == prompt.length + len(sequence)


@pytest.mark.parametrize("method", [method for method in METHODS if method != "ablation"])
def test_a_contrasts_score_is_the_difference_of_scores(
    model: Loaded, engine: LocalEngine, question: Question, method: str
) -> None:
    one, other = " red", " a traffic light"
    both = engine.attribute(question, ANSWER, Target(text=one, against=other), method)
    alone = [engine.attribute(question, ANSWER, Target(text=text), method) for text in (one, other)]
    assert close(both.scores, alone[0].scores - alone[1].scores)
    assert both.value == pytest.approx(alone[0].value - alone[1].value, abs=1e-3)
    assert (both.explained, both.explained_against) == (alone[0].explained, alone[1].explained)
    assert both.layer_sums.shape == (3, len(MODALITIES))
    width = alone[0].positions.shape[1]
    padded = alone[1].positions.copy()
    padded[:, :width] -= alone[0].positions
    assert close(both.positions, -padded)
    assert close(both.layer_sums.sum(1), both.positions.sum(1))
    assert np.abs(both.scores).max() > 0


def test_a_contrast_is_ablated_as_one(model: Loaded, engine: LocalEngine, question: Question) -> None:
    target = Target(text=" red", against=" lemon")
    both = engine.attribute(question, ANSWER, target, "ablation")
    alone = [engine.attribute(question, ANSWER, Target(text=text), "ablation") for text in (" red", " lemon")]
    assert np.abs(both.scores - (alone[0].scores - alone[1].scores)).max() < 1e-4 * np.abs(both.scores).max() + 1e-5


def test_a_contrast_with_itself_is_nothing(engine: LocalEngine, question: Question) -> None:
    result = engine.attribute(question, ANSWER, Target(text=" red", against=" red"))
    assert result.value == 0
    assert not result.scores.any()


def test_log_probabilities_and_logits_differ_by_the_normaliser_alone(
    model: Loaded, engine: LocalEngine, question: Question, prompt: Prompt
) -> None:
    """At one place the normaliser is shared: contrasts of either quantity agree; single targets do not."""
    logprob = engine.attribute(question, ANSWER, Target(text=" red", against=" lemon"))
    logit = engine.attribute(question, ANSWER, Target(text=" red", against=" lemon", quantity="logit"))
    assert close(logprob.scores, logit.scores)
    rows = tiny.logits(model.model, prompt, ANSWER)
    single = engine.attribute(question, ANSWER, Target(0, 2, quantity="logit"))
    wanted = float(rows[prompt.length - 1, ANSWER[0]] + rows[prompt.length, ANSWER[1]])
    assert single.value == pytest.approx(wanted, abs=1e-3)
    assert not close(single.scores, engine.attribute(question, ANSWER, Target(0, 2)).scores)


def test_gradient_of_a_logit_is_what_scaling_a_neuron_does_to_it(
    model: Loaded, engine: LocalEngine, question: Question, prompt: Prompt
) -> None:
    result = engine.attribute(question, ANSWER, Target(0, 1, quantity="logit"))
    best, h, values = result.neurons[0], 0.02, []
    for factor in (1 + h, 1 - h):

        def edit(layer: int, activation: torch.Tensor, factor: float = factor) -> torch.Tensor:
            changed = activation.clone()
            if layer == best.layer:
                changed[..., best.index] *= factor
            return changed

        with tiny.edited(model.model, edit):
            values.append(float(tiny.logits(model.model, prompt, ANSWER)[prompt.length - 1, ANSWER[0]]))
    assert (values[0] - values[1]) / (2 * h) == pytest.approx(best.score, rel=0.02)


def normalised(tokenizer: Any, text: str) -> str:
    """The text as the tokenizer's normaliser leaves it, which is all that ids can say."""
    normaliser = tokenizer.backend_tokenizer.normalizer
    return text if normaliser is None else str(normaliser.normalize_str(text))


@pytest.mark.parametrize("text", [" lemon", "lemon", " a traffic light", "Red, two.", " 大きい", " مرحبا"])
def test_a_texts_ids_are_exactly_its_own(model: Loaded, text: str) -> None:
    tokenizer = model.processor.tokenizer
    ids = continuation_ids(tokenizer, text)
    before = tokenizer(" it is", add_special_tokens=False)["input_ids"]
    # up to the tokenizer's own normaliser: the built-in vocabulary is lower-case
    assert tokenizer.decode([*before, *ids]) == f" it is{normalised(tokenizer, text)}"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Target(text="  "), "empty"),
        (Target(text=" <image>"), "reserves"),
        (Target(against=""), "empty"),
        (Target(4, text=" red"), "0 to 3"),
        (Target(quantity="probability"), "logprob or logit"),
        (Target(leave_out=("the sky",)), "special and high-norm"),
        (Target(9), "does not lie inside"),
    ],
)
def test_a_target_that_makes_no_sense_is_refused(
    engine: LocalEngine, question: Question, target: Target, words: str
) -> None:
    with pytest.raises(BadTarget, match=words):
        engine.attribute(question, ANSWER, target)


def test_a_text_longer_than_the_model_is_refused(engine: LocalEngine, question: Question) -> None:
    with pytest.raises(PromptTooLong, match="positions; the model has 256"):
        engine.attribute(question, ANSWER, Target(text=" red" * 250))


def test_variants_show_exact_ids_most_probable_first(
    model: Loaded, engine: LocalEngine, question: Question, prompt: Prompt
) -> None:
    found = engine.variants(question, "red Lemon", ANSWER[:1])
    assert [variant.logprob for variant in found] == sorted((variant.logprob for variant in found), reverse=True)
    assert len({variant.ids for variant in found}) == len(found)
    tokenizer = model.processor.tokenizer
    assert {" red lemon", "red lemon"} <= {normalised(tokenizer, variant.text) for variant in found}
    for variant in found:
        assert "".join(variant.pieces) == normalised(tokenizer, variant.text)
        sequence = [ANSWER[0], *variant.ids]
        rows = tiny.logits(model.model, prompt, sequence)
        expected = float(tiny.span_logprob(rows, prompt, sequence, 1, len(sequence)))
        assert variant.logprob == pytest.approx(expected, abs=1e-3)
        again = engine.attribute(question, ANSWER, Target(1, text=variant.text))
        assert again.explained == variant.ids


def test_ways_to_write_name_each_text_once() -> None:
    assert ways_to_write("red") == ["red", " red", " Red", "Red"]
    assert ways_to_write(" Red ")[0] == " Red "
    (part,) = parts_of(Target(1, 3), ANSWER, lambda _: [])
    assert part.explained == (701, 686)


def test_high_norm_positions_are_those_far_above_the_median() -> None:
    norms = torch.tensor([40.0, 1, 1.2, 0.9, 7, 1.1, 1])
    text = ["template"] * 7
    assert high_norm_positions(norms, text) == (0, 4)
    assert high_norm_positions(norms, [*text[:4], "image", "image", "image"]) == (0, 4)
    assert high_norm_positions(norms, ["image", *text[:3], "image", "image", "image"]) == (0, 4)
    assert high_norm_positions(None, text) == ()


def test_special_positions_are_named_and_left_out_only_on_request(
    engine: LocalEngine, question: Question, prompt: Prompt
) -> None:
    plain = engine.attribute(question, ANSWER, Target())
    special = next(entry for entry in plain.apart if entry.kind == "special")
    assert 0 in special.positions
    assert all(prompt.modality[p] != "image" for p in special.positions)
    assert 0 < special.share < 1
    assert not any(entry.left_out for entry in plain.apart)
    without = engine.attribute(question, ANSWER, Target(leave_out=("special",)))
    assert next(entry for entry in without.apart if entry.kind == "special").left_out
    expected = plain.positions.copy()
    expected[:, list(special.positions)] = 0
    assert close(without.positions, expected)
    assert close(without.layer_sums.sum(1), expected.sum(1))
    assert any("left out" in check.name for check in without.checks)
    assert not any("left out" in check.name for check in plain.checks)


def test_the_norms_are_those_of_the_stream_that_enters_the_middle_layer(
    model: Loaded, engine: LocalEngine, question: Question, prompt: Prompt
) -> None:
    """A bias of the embedding that makes one token's stream long is found, by every method."""
    other = tiny.changed(model)
    token = int(prompt.ids[-1])
    with torch.no_grad():
        other.model.get_input_embeddings().weight[token] *= 60
    where = [p for p, here in enumerate(prompt.ids.tolist()) if here == token]
    for method in ("gradient", "direct", "integrated"):
        result = LocalEngine(other).attribute(question, ANSWER, Target(), method)
        high = next(entry for entry in result.apart if entry.kind == "high-norm")
        assert set(where) <= set(high.positions), method


def test_the_noise_band_names_who_changes_place(engine: LocalEngine, question: Question) -> None:
    half, batch = engine.noise(question, ANSWER, Target())
    assert (half.against, batch.against, half.top) == ("bfloat16", "a batch of two", 20)
    assert 1e-5 < half.difference < 0.5
    assert batch.difference < 1e-4
    assert len(batch.moved) <= len(half.moved) <= 20
    plain = [neuron.neuron for neuron in engine.attribute(question, ANSWER, Target(), top=20).neurons]
    assert set(half.moved) <= set(plain)
    assert moved(["a", "b", "c"], ["b", "a", "c"]) == ("a", "b")
