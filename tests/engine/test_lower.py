"""Leaving out the layers below a steering: the same numbers, bit by bit where one row is run, and only where proved."""

import dataclasses

import pytest
import torch

from engine import lower
from engine.contract import Cancelled, EngineError, NeuronTurn, Question, Steered, Steering
from engine.hooks import count_hooks, keep_blocks
from engine.interventions import NO_EDITS, Edits, LatentEdit, LayerEdit
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import build_prompt
from engine.reuse import run_prefix
from engine.running import embed, picture_features
from engine.sae.contract import SaeInfo
from engine.sae.sae import make
from tests.engine import tiny
from tests.engine.families import kits, seeing

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # PaliGemma's processor

TURN = NeuronTurn(2, 5, "add", 6.0)
UPPER = Steering(neurons=(TURN, NeuronTurn(2, 11, "scale", -3.0)))
HELD_BACK = {"gemma2", "gemma3", "paligemma"}
"""Sliding windows; a prompt that sees all of itself."""
ONE_BY_ONE = {"paligemma", "qwen3_vl", "blip2", "instructblip"}
"""Cannot become several rows on the way: features for single layers; positions laid end to end."""


def all_run(engine: LocalEngine) -> LocalEngine:
    """An engine that runs every layer, and as many rows everywhere."""
    engine.reuse.proved_below = {True: False, False: False}
    engine.reuse.proved_spread = {True: False, False: False}
    return engine


def numbers(steered: Steered) -> tuple[object, ...]:
    return (
        [(token.id, token.logprob) for token in steered.answer.tokens],
        steered.original_under_steered,
        steered.steered_under_original,
    )


@pytest.mark.parametrize("name", [*kits.TEXT, *seeing.SEEING])
def test_leaving_lower_layers_out_changes_no_number(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    kit = kits.TEXT[name]() if name in kits.TEXT else seeing.SEEING[name]()
    loaded = kits.make(tmp_path_factory.mktemp("lower"), kit)
    ours, theirs = LocalEngine(loaded), all_run(LocalEngine(loaded))
    question = Question(tiny.picture(1) if loaded.sees else None, "what is this?", 4)
    for positions in ("all", "question", *(("image",) if loaded.sees else ())):
        steering = dataclasses.replace(UPPER, positions=positions)
        assert numbers(ours.steer(question, [700, 701], steering)) == numbers(
            theirs.steer(question, [700, 701], steering)
        )
    points = [engine.sweep(question, [700], UPPER, TURN, (-9.0, 0.0, 9.0)) for engine in (ours, theirs)]
    for mine, other in zip(*points, strict=True):
        assert mine.ids == other.ids
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert mine.original == pytest.approx(other.original, abs=1e-4)
    assert ours.reuse.proved_below.get(loaded.sees, False) == (name not in HELD_BACK)
    assert ours.reuse.proved_spread.get(loaded.sees, False) == (name not in ONE_BY_ONE)
    assert count_hooks(loaded.model) == 0


def test_a_sweep_runs_one_row_up_to_its_first_edit(cropping: Loaded, question: Question) -> None:
    engine, n_layers = LocalEngine(cropping), cropping.anatomy.n_layers
    turn = NeuronTurn(1, 3, "add", 2.0)
    engine.sweep(question, [700], Steering(neurons=(turn,)), turn, (0.0, 1.0))
    assert engine.reuse.proved_spread == {True: True}
    rows: list[list[int]] = [[] for _ in range(n_layers)]
    handles = [
        layer.register_forward_pre_hook(
            lambda _module, args, kwargs, seen=seen: seen.append(len(args[0] if args else kwargs["hidden_states"])),
            with_kwargs=True,
        )
        for layer, seen in zip(cropping.anatomy.layers, rows, strict=True)
    ]
    try:
        engine.sweep(question, [700], Steering(neurons=(turn,)), turn, (-9.0, 0.0, 9.0))
    finally:
        for handle in handles:
            handle.remove()
    assert [seen[0] for seen in rows][1:] == [1, *[3] * (n_layers - 2)], "the first block's place was taken"
    assert all(count == 3 for seen in rows for count in seen[1:])


def test_blocks_below_are_not_run(cropping: Loaded, question: Question) -> None:
    engine = LocalEngine(cropping)
    engine.steer(question, [700], UPPER)
    anatomy = cropping.anatomy
    runs = {"mlp": [0] * anatomy.n_layers, "attention": [0] * anatomy.n_layers}
    handles = [
        module.register_forward_hook(
            lambda *_, kind=kind, layer=layer: runs[kind].__setitem__(layer, runs[kind][layer] + 1)
        )
        for kind, modules in (("mlp", anatomy.downs), ("attention", anatomy.attentions))
        for layer, module in enumerate(modules)
        if module is not None
    ]
    try:
        steered = engine.steer(question, [700], UPPER)
    finally:
        for handle in handles:
            handle.remove()
    steps = len(steered.answer.tokens) + (steered.answer.stopped == "end")
    # Two teacher-forced passes beside the steps; the prompt in the last layer alone, whose MLP nothing reads there.
    assert runs == {"mlp": [steps + 2] * 3, "attention": [steps + 2, steps + 2, steps + 3]}


def test_interleaved_steerings_of_two_prompts_do_not_mix(cropping: Loaded) -> None:
    questions = [Question(tiny.picture(k), "what is this?", 4) for k in range(2)]
    steerings = [
        UPPER,
        Steering(neurons=(NeuronTurn(1, 3, "add", 9.0),)),
        dataclasses.replace(UPPER, positions="image"),
    ]
    alone = [
        [numbers(LocalEngine(cropping).steer(question, [700], steering)) for steering in steerings]
        for question in questions
    ]
    engine = LocalEngine(cropping)
    for _ in range(3):
        for at, steering in enumerate(steerings):
            for of, question in enumerate(questions):
                assert numbers(engine.steer(question, [700], steering)) == alone[of][at]


def test_nothing_is_left_after_a_cancel_or_an_error(cropping: Loaded, question: Question) -> None:
    engine = LocalEngine(cropping)
    first = numbers(engine.steer(question, [700], UPPER))
    with pytest.raises(Cancelled):
        engine.steer(question, [700], UPPER, cancelled=lambda: True)
    prompt = build_prompt(cropping, question)
    inputs = embed(cropping, prompt.ids, picture_features(cropping, prompt.pixels))
    (past,) = engine.reuse.kept.values()
    standing = lower.standing_below(past, 2)
    assert standing is not None
    before = [block.forward for block in cropping.anatomy.layers]
    with lower.given_below(cropping.anatomy, standing):
        assert count_hooks(cropping.model) == 2
    with pytest.raises(KeyboardInterrupt), lower.given_below(cropping.anatomy, standing):
        raise KeyboardInterrupt
    longer = dataclasses.replace(
        inputs, ids=torch.cat([inputs.ids, inputs.ids[:, -1:]], 1), embeddings=None, pictures=None
    )
    with pytest.raises(EngineError, match="was not run as it was"):
        run_prefix(cropping, longer, standing)
    assert count_hooks(cropping.model) == 0
    assert [block.forward for block in cropping.anatomy.layers] == before
    assert not any("forward" in vars(block) for block in cropping.anatomy.layers)
    assert numbers(engine.steer(question, [700], UPPER)) == first


def test_a_block_that_gives_more_than_its_stream_is_not_kept(cropping: Loaded, question: Question) -> None:
    prompt = build_prompt(cropping, question)
    inputs = embed(cropping, prompt.ids, picture_features(cropping, prompt.pixels))
    second = cropping.anatomy.layers[1]
    handle = second.register_forward_hook(lambda _module, _args, result: (result, torch.ones(1)))
    try:
        with torch.no_grad(), keep_blocks(cropping.anatomy) as kept, pytest.raises((AttributeError, TypeError)):
            run_prefix(cropping, inputs)
    finally:
        handle.remove()
    assert len(kept) == 1


def test_where_a_steering_begins(cropping: Loaded) -> None:
    d_model = cropping.anatomy.d_model
    neurons = Edits({1: LayerEdit(torch.tensor([0]), torch.zeros(1), torch.zeros(1))}, None, True)

    def latents(layer: int, site: str) -> Edits:
        info = SaeInfo("", "s", layer, site, "standard", d_model, 4, None, "", "")
        shapes = {"W_enc": (d_model, 4), "W_dec": (4, d_model), "b_enc": (4,), "b_dec": (d_model,)}
        sae = make(info, {name: torch.ones(shape) for name, shape in shapes.items()})
        return Edits({}, None, True, (LatentEdit(sae, LayerEdit(torch.tensor([0]), torch.zeros(1), torch.ones(1)), 0),))

    assert lower.first_layer([NO_EDITS], 3) == 3
    assert lower.first_layer([NO_EDITS, neurons], 3) == 1
    assert lower.first_layer([latents(1, "residual")], 3) == 2
    assert lower.first_layer([latents(1, "mlp")], 3) == lower.first_layer([latents(1, "attention")], 3) == 1
    assert lower.first_layer([latents(2, "residual")], 3) == 3
    assert lower.first_layer([latents(2, "residual"), neurons], 3) == 1
