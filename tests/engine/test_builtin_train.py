"""How the built-in model is made: packing, resuming, folding, shipping, measuring."""

import os
import random
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.builtin import architecture, curriculum, evaluate, export, packing, scenes, threads, tokenizer, train, world

TINY = architecture.Size(hidden=64, layers=2, mlp=96)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> train.Options:
    """A training of four steps of two pictures, repeatable to the bit."""
    return train.Options(
        tmp_path_factory.mktemp("straight"),
        steps=4,
        fresh=True,
        pictures=2,
        workers=0,
        threads=1,
        compiled=False,
        measured=2,
        size=TINY,
    )


@pytest.fixture(scope="module")
def checkpoint(options: train.Options) -> Path:
    return train.train(options)


def test_a_resumed_training_is_bit_equal(options: train.Options, checkpoint: Path, tmp_path: Path) -> None:
    halves = replace(options, out=tmp_path)
    train.train(halves, stop_at=2)
    between = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert between["step"] == 2
    train.train(halves, again=True)
    straight, resumed = (torch.load(path, weights_only=True) for path in (checkpoint, tmp_path / "checkpoint.pt"))
    assert straight["step"] == resumed["step"] == 4
    for part in ("learnt", "average", "auxiliary"):
        for name, value in straight[part].items():
            assert torch.equal(value, resumed[part][name]), name
    assert any(not torch.equal(value, between["learnt"][name]) for name, value in straight["learnt"].items())
    for one, other in zip(straight["optimisers"], resumed["optimisers"], strict=True):
        for key, state in one["state"].items():
            assert all(torch.equal(value, other["state"][key][name]) for name, value in state.items())


def test_training_moves_everything_but_the_tower(options: train.Options, checkpoint: Path) -> None:
    begun, state = train.begin(options), torch.load(checkpoint, weights_only=True)
    for name, value in begun.learnt().items():
        if "norm" not in name:
            assert not torch.equal(value, state["learnt"][name]), name
    assert not any("vision_tower" in name for name in state["learnt"])


def test_a_signal_ends_training_with_a_checkpoint(options: train.Options, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with train.stoppable() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_rate_warms_up_stays_and_falls() -> None:
    assert train.rate_factor(0.0, 0.4) < 0.2
    assert train.rate_factor(0.2, 0.4) == 1
    assert train.rate_factor(0.7, 0.4) == pytest.approx(0.5)
    assert train.rate_factor(1.0, 0.4) == train.FLOOR


def test_a_shipped_checkpoint_answers_as_the_trained_model(
    options: train.Options, checkpoint: Path, tmp_path: Path
) -> None:
    shipped = export.export(checkpoint, out=tmp_path / "model")
    assert {path.name for path in shipped.iterdir()} >= {
        *export.SHARDS,
        "model.safetensors.index.json",
        "tokenizer.json",
    }
    assert not (shipped / "model.safetensors").exists()
    trainee = train.begin(options)
    train.resume(trainee, checkpoint)
    trainee.model.load_state_dict(trainee.average, strict=False)
    architecture.fold(trainee.model, trainee.standard)
    loaded = architecture.from_folder(shipped)
    row = packing.pack(scenes.make_scene(random.Random(0)), random.Random(0), _encode(), {"exist": 1.0})
    picture = scenes.render(scenes.make_scene(random.Random(0))).pixels[None]
    inputs = {"input_ids": torch.tensor([row.ids[:100]]), "pixel_values": architecture.pixel_values(picture)}
    with torch.inference_mode():
        ours, theirs = (m.eval()(**inputs).logits for m in (trainee.model, loaded))
    assert (ours - theirs).abs().max() < 0.02 * ours.abs().max()  # float16 rounds
    # Shipping anew leaves the tower's file alone, byte for byte, and replaces the rest.
    before = (shipped / export.SHARDS[0]).read_bytes()
    export.export(checkpoint, base=shipped, out=shipped)
    assert (shipped / export.SHARDS[0]).read_bytes() == before
    assert not list(tmp_path.glob("*.new")) + list(tmp_path.glob("*.old"))


def test_folding_and_unfolding_are_opposites_and_fold_standardises() -> None:
    model = architecture.fresh(TINY, architecture.from_folder(train.SHIPPED))
    first = model.model.multi_modal_projector.linear_1
    weight, states = first.weight.detach().clone(), torch.randn(5, 768)
    standard = architecture.Standard(torch.randn(768), torch.rand(768) + 0.5)
    with torch.no_grad():
        wanted = first((states - standard.mean) / standard.scale)
        architecture.fold(model, standard)
        assert torch.allclose(first(states), wanted, atol=1e-5)
    architecture.unfold(model, standard)
    assert torch.allclose(first.weight, weight, atol=1e-6)


def _encode() -> packing.Encode:
    return curriculum.encoder(tokenizer.load(train.SHIPPED))


def test_a_packed_question_sees_what_it_would_see_alone() -> None:
    torch.manual_seed(0)
    model = architecture.fresh(TINY, architecture.from_folder(train.SHIPPED)).eval()
    decoder = model.model.language_model
    decoder.set_attn_implementation("eager")
    row = packing.pack(scenes.make_scene(random.Random(1)), random.Random(1), _encode(), curriculum.WEIGHTS, 0.3)
    ids, segments = torch.tensor([row.ids]), torch.tensor([row.segments])
    words = torch.randn(1, packing.ROW, TINY.hidden)  # whatever the embeddings are
    with torch.inference_mode():
        packed = decoder(
            inputs_embeds=words,
            attention_mask=packing.block_mask(segments),
            position_ids=torch.tensor([row.positions]),
            use_cache=False,
        ).last_hidden_state[0]
        prefix = list(range(len(packing.PREFIX)))
        for segment in sorted({s for s in row.segments if s > 0}):
            own = [k for k, s in enumerate(row.segments) if s == segment]
            places = (prefix if segment < packing.FIRST_FACT else prefix[:2]) + own
            alone = decoder(inputs_embeds=words[:, places], use_cache=False).last_hidden_state[0]
            assert torch.allclose(alone[-len(own) :], packed[own], atol=1e-4), segment
    assert ids.shape == (1, packing.ROW)


def test_rows_teach_answers_only_and_balance_yes_with_no() -> None:
    tok, rng = tokenizer.load(train.SHIPPED), random.Random(2)
    encode, said = curriculum.encoder(tok), []
    for _ in range(30):
        row = packing.pack(scenes.make_scene(rng, mix=curriculum.MIX), rng, encode, curriculum.WEIGHTS, 0.3)
        assert len(row.ids) == len(row.targets) == len(row.positions) == len(row.segments) == packing.ROW
        taught = [k for k, target in enumerate(row.targets) if target != packing.IGNORED]
        assert all(row.targets[k] == row.ids[k + 1] for k in taught)
        assert sum(row.targets[k] == tokenizer.EOS for k in taught) == row.n_pairs
        said += [tok.decode(row.targets[k]).strip() for k in taught]
    assert 0.35 < said.count("yes") / (said.count("yes") + said.count("no")) < 0.65


def test_patch_labels_say_what_lies_where() -> None:
    scene = scenes.make_scene(random.Random(3), ["fire truck", "pink star"])
    labels = packing.patch_labels(scene, scenes.render(scene).mask)
    for thing, name in zip(scene.things, ("fire truck", "star"), strict=True):
        mine = np.flatnonzero(labels[:, 0] == packing.CLASSES[name])
        assert len(mine) >= 4
        x, y = (mine % packing.GRID + 0.5) * packing.PATCH, (mine // packing.GRID + 0.5) * packing.PATCH
        assert np.allclose(x + labels[mine, 2] * 28, thing.x, atol=1e-3)
        assert np.allclose(labels[mine, 5] * scenes.SIZE, thing.y, atol=1e-3)
        assert (np.abs(y - thing.y) < thing.side).all()
    assert set(labels[labels[:, 0] == packing.CLASSES["star"], 1]) == {packing.COLOUR_CLASSES["pink"]}


def test_batches_follow_from_seed_and_step_alone() -> None:
    encode = _encode()
    a, b, c = curriculum.batch(1, 2, 3, encode), curriculum.batch(1, 2, 3, encode), curriculum.batch(1, 3, 3, encode)
    assert torch.equal(a.pixels, b.pixels)
    assert torch.equal(a.ids, b.ids)
    assert not torch.equal(a.ids, c.ids)


def test_the_dense_loss_is_least_for_the_right_answer() -> None:
    scene = scenes.make_scene(random.Random(4), ["dog"])
    labels = torch.from_numpy(packing.patch_labels(scene, scenes.render(scene).mask))[None]
    n, m = packing.N_CLASSES, packing.N_COLOURS
    right = torch.cat(
        [
            20.0 * torch.nn.functional.one_hot(labels[..., 0].long(), n),
            20.0 * torch.nn.functional.one_hot(labels[..., 1].long(), m),
            labels[..., 2:],
        ],
        -1,
    )
    assert train.dense_loss(right, labels) < 1e-3
    assert train.dense_loss(right.roll(1, 1), labels) > 0.1


def test_the_chooser_keeps_the_faster_count_and_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    chooser = threads.Chooser((1, 2))
    for _ in range(2 * threads.TRIAL):
        chooser.step({1: 1.0, 2: 3.0}[chooser.using])
    assert chooser.using == 1
    for _ in range(threads.SPELL + 2 * threads.TRIAL):
        chooser.step({1: 3.0, 2: 1.0}[chooser.using])
    assert chooser.using == 2
    assert threads.Chooser((2,)).using == 2


def test_learning_a_tokenizer_puts_the_special_tokens_first() -> None:
    tok = tokenizer.learn(iter([" what is this?", " penguin"] * 20), vocabulary=300)
    assert tok.convert_tokens_to_ids(list(tokenizer.SPECIAL)) == list(range(6))
    assert tok.decode(tok.encode(" what is this?")) == " what is this?"


def test_intervals_are_wilsons() -> None:
    figure = evaluate.wilson(9, 10)
    assert (figure.low, figure.high) == (pytest.approx(0.596, abs=1e-3), pytest.approx(0.982, abs=1e-3))
    assert evaluate.wilson(0, 5).low == 0
    assert evaluate.wilson(5, 5).high == 1


def test_evaluation_covers_every_kind_object_and_fact() -> None:
    groups: dict[str, int] = {}
    for case in evaluate.cases(2):
        groups[case.group] = groups.get(case.group, 0) + 1
    assert {group.split("/")[1] for group in groups if group.startswith("canonical/")} >= {"name", "twohop held"}
    assert groups["fact/trained template"] == len(world.FACTS)
    assert groups["drawing/one word"] + groups["drawing/several words"] == 3 * len(world.OBJECTS) - 39
