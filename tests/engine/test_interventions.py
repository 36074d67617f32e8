"""Steering against weight surgery and against hooks written here (METHODS.md §3)."""

import numpy as np
import pytest
import torch

from engine.contract import (
    MAX_SET,
    Concept,
    ConceptTurn,
    EngineError,
    Floats,
    Library,
    NeuronTurn,
    Question,
    RequestError,
    Steering,
    Target,
    UnknownName,
)
from engine.hooks import capture, intervene
from engine.interventions import NO_EDITS, Edits, compile_steering, factors, members, where_mask
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import Prompt, build_prompt
from engine.running import answer_ids, embed, forward, picture_features, with_answer
from tests.engine import tiny

WHOLE = Target()


def fuzzy(shape: tuple[int, int], seed: int, size: int) -> Floats:
    """Random memberships (n_layers, d_mlp) in [0.1, 1] of `size` neurons, one of them 1."""
    rng = np.random.default_rng(seed)
    flat = np.zeros(shape[0] * shape[1], np.float32)
    chosen = rng.choice(flat.size, size, replace=False)
    flat[chosen] = rng.uniform(0.1, 1, size)
    flat[chosen[0]] = 1
    return flat.reshape(shape)


def small_library(loaded: Loaded) -> Library:
    shape = (loaded.anatomy.n_layers, loaded.anatomy.d_mlp)
    return Library(
        "made",
        (Concept("traffic light", "object", 4, fuzzy(shape, 1, 30)), Concept("red", "colour", 4, fuzzy(shape, 2, 20))),
    )


def with_library(loaded: Loaded) -> LocalEngine:
    engine = LocalEngine(loaded)
    engine._library = small_library(loaded)
    return engine


def compiled(loaded: Loaded, prompt: Prompt, steering: Steering) -> Edits:
    anatomy = loaded.anatomy
    return compile_steering(steering, small_library(loaded), prompt.modality, anatomy.n_layers, anatomy.d_mlp)


def acts(positions: str, prompt: Prompt, length: int) -> torch.Tensor:
    """(pos,) bool: where a steering acts, written out from the contract's words."""
    result = torch.zeros(length, dtype=torch.bool)
    for place in range(length):
        kind = prompt.modality[place] if place < prompt.length else "answer"
        result[place] = {
            "all": True,
            "image": kind == "image",
            "question": kind in ("question", "template"),
            "answer": place >= prompt.length - 1,
        }[positions]
    return result


def manual(loaded: Loaded, prompt: Prompt, multipliers: Floats, positions: str) -> tiny.Edit:
    """a' = a · multiplier at the positions of the word, for whole sequences."""
    factor = torch.from_numpy(multipliers)

    def edit(layer: int, activation: torch.Tensor) -> torch.Tensor:
        here = acts(positions, prompt, activation.shape[1])[None, :, None]
        return torch.where(here, activation * factor[layer], activation)

    return edit


def test_setting_a_neuron_to_zero_is_zeroing_its_write_vector(any_model: Loaded, question: Question) -> None:
    prompt = build_prompt(any_model, question)
    layer, index = 1, 11
    edits = compiled(any_model, prompt, Steering(neurons=(NeuronTurn(layer, index, "set", 0.0),)))
    embeddings = embed(any_model, prompt.ids, picture_features(any_model, prompt.pixels))
    with torch.no_grad():
        plain = forward(any_model, embeddings, prompt.length)[0]
        with intervene(any_model.anatomy, [edits]):
            ours = forward(any_model, embeddings, prompt.length)[0]
        column = tiny.decoder_of(any_model.model).layers[layer].mlp.down_proj.weight[:, index]
        kept = column.clone()
        try:
            column.zero_()
            surgery = tiny.logits(any_model.model, prompt)
        finally:
            column.copy_(kept)
    scale = float(surgery.abs().max())
    assert float((ours - surgery).abs().max()) < 1e-5 * scale
    assert float((plain - surgery).abs().max()) > 1e-4 * scale


@pytest.mark.parametrize("positions", ["all", "image", "question", "answer"])
def test_a_steered_answer_is_that_of_scaled_down_projection_inputs_without_a_cache(
    model: Loaded, question: Question, positions: str
) -> None:
    """Generation uses a key–value cache; the oracle runs the whole sequence anew at each step."""
    engine = with_library(model)
    prompt = build_prompt(model, question)
    steering = Steering((ConceptTurn("traffic light", 3.5), ConceptTurn("red", -1.5)), positions=positions)
    first, second = (concept.memberships for concept in engine.library().concepts)
    edit = manual(model, prompt, 1 + 3.5 * first - 1.5 * second, positions)
    with tiny.edited(model.model, edit):
        ids, logprobs = tiny.greedy(model.model, prompt, question.max_new_tokens)
    steered = engine.steer(question, [700, 701], steering)
    assert answer_ids(steered.answer) == ids
    assert [token.logprob for token in steered.answer.tokens] == pytest.approx(logprobs, abs=2e-3)
    plain = engine.ask(question).answer
    assert [token.logprob for token in plain.tokens] != pytest.approx(logprobs, abs=1e-2)
    with tiny.edited(model.model, edit):
        rows = tiny.logits(model.model, prompt, [700, 701])
    expected = [tiny.span_logprob(rows, prompt, [700, 701], k, k + 1).item() for k in range(2)]
    assert steered.original_under_steered == pytest.approx(expected, abs=2e-3)
    rows = tiny.logits(model.model, prompt, ids)
    expected = [tiny.span_logprob(rows, prompt, ids, k, k + 1).item() for k in range(len(ids))]
    assert steered.steered_under_original == pytest.approx(expected, abs=2e-3)


def test_cached_generation_equals_whole_passes_on_the_builtin_model(builtin: Loaded, question: Question) -> None:
    engine = with_library(builtin)
    prompt = build_prompt(builtin, question)
    turn = ConceptTurn("traffic light", 4.0)
    for positions in ("answer", "image"):
        edit = manual(builtin, prompt, 1 + 4 * engine.library().concepts[0].memberships, positions)
        with tiny.edited(builtin.model, edit):
            ids, logprobs = tiny.greedy(builtin.model, prompt, question.max_new_tokens)
        steered = engine.steer(question, ids, Steering((turn,), positions=positions))
        assert answer_ids(steered.answer) == ids
        assert [token.logprob for token in steered.answer.tokens] == pytest.approx(logprobs, abs=2e-3)
        assert steered.original_under_steered == pytest.approx(logprobs, abs=2e-3)


@pytest.mark.parametrize("operation", ["scale", "add", "set"])
def test_single_neurons_are_edited_after_concepts(model: Loaded, question: Question, operation: str) -> None:
    prompt = build_prompt(model, question)
    library = small_library(model)
    layer, index = (int(n) for n in np.argwhere(library.concepts[0].memberships == 1)[0])
    steering = Steering((ConceptTurn("traffic light", 2.0),), (NeuronTurn(layer, index, operation, 0.7),))
    factor = torch.from_numpy(1 + 2 * library.concepts[0].memberships)

    def edit(number: int, activation: torch.Tensor) -> torch.Tensor:
        result = activation * factor[number]
        if number == layer:
            old = result[..., index]
            result[..., index] = {"scale": old * 0.7, "add": old + 0.7, "set": torch.full_like(old, 0.7)}[operation]
        return result

    with tiny.edited(model.model, edit):
        expected = tiny.logits(model.model, prompt)
    embeddings = embed(model, prompt.ids, picture_features(model, prompt.pixels))
    with torch.no_grad(), intervene(model.anatomy, [compiled(model, prompt, steering)]):
        ours = forward(model, embeddings, prompt.length)[0]
    assert float((ours - expected).abs().max()) < 1e-4 * float(expected.abs().max())


def test_attribution_explains_the_steered_model(model: Loaded, question: Question) -> None:
    """Σ over a neuron scaled to zero is zero, and the value is the steered one."""
    engine = with_library(model)
    steering = Steering((ConceptTurn("traffic light", -1.0),))
    result = engine.attribute(question, [700, 701], steering=steering, target=WHOLE)
    ablated = engine.library().concepts[0].memberships == 1
    assert not result.scores[ablated].any()
    assert result.value == pytest.approx(
        sum(engine.steer(question, [700, 701], steering).original_under_steered), abs=1e-3
    )
    assert result.value != pytest.approx(engine.attribute(question, [700, 701], WHOLE).value, abs=1e-2)


def test_lambda_zero_is_bit_equal_to_no_steering(any_model: Loaded, question: Question) -> None:
    engine = with_library(any_model)
    plain = engine.ask(question)
    zero = engine.ask(question, steering=Steering((ConceptTurn("red", 0.0), ConceptTurn("traffic light", 0.0))))
    assert zero.answer == plain.answer
    assert zero.attribution.value == plain.attribution.value
    assert np.array_equal(zero.attribution.scores, plain.attribution.scores)
    assert engine.steer(question, [700], Steering((ConceptTurn("red", 0.0),))).answer == plain.answer


def test_image_steering_leaves_all_other_positions_activations_at_the_first_layer(
    model: Loaded, question: Question
) -> None:
    """Later layers change through attention; at layer 0 the edit is all that can differ."""
    prompt = build_prompt(model, question)
    embeddings = embed(model, with_answer(prompt, [700, 701]), picture_features(model, prompt.pixels))
    turn = NeuronTurn(0, 3, "add", 5.0)
    for positions in ("image", "question", "answer"):
        edits = compiled(model, prompt, Steering(neurons=(turn,), positions=positions))
        with torch.no_grad(), capture(model.anatomy) as plain:
            forward(model, embeddings, 1)
        with torch.no_grad(), intervene(model.anatomy, [edits]), capture(model.anatomy) as steered:
            forward(model, embeddings, 1)
        difference = steered.layer(0)[0] - plain.layer(0)[0]
        where = acts(positions, prompt, prompt.length + 2)
        assert not difference[~where].any()
        assert torch.allclose(difference[where][:, 3], torch.tensor(5.0), atol=1e-5)
        assert not difference[:, [0, 1, 2, 4, 47]].any()


def test_a_row_without_edits_is_bit_equal_in_a_batch(model: Loaded, question: Question) -> None:
    prompt = build_prompt(model, question)
    row = embed(model, prompt.ids, picture_features(model, prompt.pixels))
    rows = row.repeat(3, 1, 1)
    edits = compiled(model, prompt, Steering((ConceptTurn("red", 3.0),)))
    with torch.no_grad():
        plain = forward(model, rows, prompt.length)
        with intervene(model.anatomy, [NO_EDITS, edits, NO_EDITS]):
            mixed = forward(model, rows, prompt.length)
        with intervene(model.anatomy, [edits]):
            alone = forward(model, row, prompt.length)
    assert torch.equal(mixed[[0, 2]], plain[[0, 2]])
    assert float((mixed[1] - alone[0]).abs().max()) < 1e-4
    assert float((mixed[1] - plain[1]).abs().max()) > 1e-2


def test_an_intervention_refuses_a_batch_or_a_call_it_cannot_place(model: Loaded, question: Question) -> None:
    prompt = build_prompt(model, question)
    embeddings = embed(model, prompt.ids, picture_features(model, prompt.pixels))
    edits = compiled(model, prompt, Steering((ConceptTurn("red", 3.0),)))
    with intervene(model.anatomy, [edits]), pytest.raises(EngineError, match="1 rows but the batch has 2"):
        forward(model, embeddings.repeat(2, 1, 1), 1)
    with intervene(model.anatomy, [edits]), pytest.raises(EngineError, match="without inputs"):
        model.anatomy.decoder(use_cache=False)
    assert tiny.all_hooks(model.model) == 0


# The set that a concept steers through, and its control


def test_members_are_the_most_belonging_neurons_at_most_three_hundred_ties_by_place() -> None:
    memberships = np.full((2, 400), 0.5, np.float32)
    memberships[1, 399] = 0.9
    memberships[0, :10] = 0
    chosen = members(memberships).tolist()
    assert chosen == [799, *range(10, 309)]
    assert len(chosen) == MAX_SET
    assert members(np.zeros((2, 4), np.float32)).tolist() == []


def test_the_control_deals_the_same_factors_to_other_neurons(model: Loaded) -> None:
    library = small_library(model)
    turns = (ConceptTurn("traffic light", 2.0),)
    true = factors(Steering(turns), library, 3, 48)
    control = factors(Steering(turns, control=5), library, 3, 48)
    assert len(control) == len(true) == 30
    assert not set(control) & set(true)
    assert sorted(control.values()) == sorted(true.values())
    assert sorted(neuron // 48 for neuron in control) == sorted(neuron // 48 for neuron in true)  # layer by layer
    assert control == factors(Steering(turns, control=5), library, 3, 48)
    assert control != factors(Steering(turns, control=6), library, 3, 48)


def test_n_neurons_counts_the_turned_neurons(model: Loaded, question: Question) -> None:
    engine = with_library(model)
    union = np.count_nonzero(sum(concept.memberships for concept in engine.library().concepts))
    both = (ConceptTurn("traffic light", 1.0), ConceptTurn("red", 1.0))
    assert engine.steer(question, [700], Steering(both)).n_neurons == union
    assert engine.steer(question, [700], Steering(both, control=1)).n_neurons == union
    assert engine.steer(question, [], Steering((ConceptTurn("red", 0.0),))).n_neurons == 0


@pytest.mark.parametrize(
    ("steering", "error", "words"),
    [
        (Steering((ConceptTurn("trafic light", 1.0),)), UnknownName, "Did you mean traffic light"),
        (Steering((ConceptTurn("<img src=x onerror=alert(1)>", 1.0),)), UnknownName, "There is no concept"),
        (Steering((ConceptTurn("red", 4.1),)), RequestError, "between -2 and 4"),
        (Steering((ConceptTurn("red", -2.01),)), RequestError, "between -2 and 4"),
        (Steering((ConceptTurn("red", float("nan")),)), RequestError, "between -2 and 4"),
        (Steering(positions="everywhere"), UnknownName, "all, image, question, answer"),
        (Steering(neurons=(NeuronTurn(3, 0, "set", 0.0),)), UnknownName, "no neuron text.3.0: layers run from 0 to 2"),
        (Steering(neurons=(NeuronTurn(0, 48, "set", 0.0),)), UnknownName, "no neuron text.0.48"),
        (Steering(neurons=(NeuronTurn(-1, 0, "set", 0.0),)), UnknownName, "no neuron text.-1.0"),
        (Steering(neurons=(NeuronTurn(0, 0, "delete", 0.0),)), UnknownName, "scale, add, set"),
        (Steering(neurons=(NeuronTurn(0, 0, "set", float("inf")),)), RequestError, "finite"),
    ],
)
def test_a_steering_that_cannot_be_carried_out_is_refused_before_any_work(
    model: Loaded, question: Question, steering: Steering, error: type[Exception], words: str
) -> None:
    engine = with_library(model)
    seen: list[object] = []
    for call in (
        lambda: engine.ask(question, steering=steering, on_token=seen.append),
        lambda: engine.steer(question, [700], steering, on_token=seen.append),
        lambda: engine.attribute(question, [700], WHOLE, steering=steering),
    ):
        with pytest.raises(error, match=words.replace("(", r"\(").replace(")", r"\)")):
            call()
    assert not seen


def test_the_positions_words_cover_each_prompt_position_as_the_contract_says() -> None:
    modality = ("template", "image", "image", "question", "template")
    expected = {
        "all": (None, True),
        "image": ([False, True, True, False, False], False),
        "question": ([True, False, False, True, True], False),
        "answer": ([False, False, False, False, True], True),
    }
    for word, (mask, later) in expected.items():
        ours, ours_later = where_mask(word, modality)
        assert (None if ours is None else ours.tolist(), ours_later) == (mask, later)
