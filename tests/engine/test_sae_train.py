"""Training an SAE: what it learns from, that it learns, that a stopped one goes on to the bit; and the shipped one."""

import csv
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from engine.contract import Cancelled, Question, RequestError, saes
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import build_prompt
from engine.sae import activations, train
from engine.sae.activations import Asked
from engine.sae.calls import SHIPPED
from engine.sae.contract import Recipe, TrainingPoint
from engine.sae.loading import read
from engine.sae.sae import fit_of
from tests.engine import tiny

SMALL = Recipe(1, n_latents=48, k=6, steps=24, batch=64, rate=5e-3, pictures=2, each=4, kept=200)


def asked(start: int, n: int) -> list[Asked]:
    return [
        Asked(tiny.picture(number), (("what is on the left?", "a dog"), ("what is it?", "")))
        for number in range(start, start + n)
    ]


def run(loaded: Loaded, out: Path, recipe: Recipe = SMALL, **more: object) -> list[TrainingPoint]:
    """The points of its steps. While none of them is done, and between them, nothing is on the model."""
    points: list[TrainingPoint] = []

    def on_point(point: TrainingPoint) -> None:
        assert tiny.all_hooks(loaded.model) == 0
        points.append(point)

    train.train(loaded, recipe, out, asked, asked(900, 2), on_point=on_point, **more)  # type: ignore[arg-type]
    gathering = [point for point in points if point.step == 0]
    assert [point.gathered for point in gathering] == sorted({point.gathered for point in gathering})
    assert all(point.gathered < recipe.kept and math.isnan(point.loss) for point in gathering)
    trained = points[len(gathering) :]
    return [point for k, point in enumerate(trained) if point not in trained[:k]]  # the last again while measuring


def test_values_are_the_sites_at_image_positions_once_and_all_text_positions_but_the_first(
    any_model: Loaded, any_engine: LocalEngine
) -> None:
    (one,) = asked(3, 1)
    found = activations.values(any_model, [one], 1, "mlp")
    expected = []
    for k, (text, answer) in enumerate(one.questions):
        prompt = build_prompt(any_model, Question(one.picture, text, 1))
        ids = any_model.processor.tokenizer.encode(f" {answer}", add_special_tokens=False) if answer else []
        caught: list[torch.Tensor] = []
        mlp = tiny.decoder_of(any_model.model).layers[1].mlp
        handle = mlp.register_forward_hook(lambda _m, _a, result, caught=caught: caught.append(result[0]))
        try:
            tiny.logits(any_model.model, prompt, ids)
        finally:
            handle.remove()
        if k == 0:
            expected.append(caught[0][prompt.image_positions])
        text_at = [p for p in range(1, prompt.length + len(ids)) if p not in set(prompt.image_positions)]
        expected.append(caught[0][text_at])
    whole = torch.cat(expected)
    assert found.shape == whole.shape
    assert (found - whole).abs().max() < 1e-4 * float(whole.abs().max())
    assert tiny.all_hooks(any_model.model) == 0


@pytest.mark.parametrize("architecture", ["topk", "jumprelu"])
def test_it_learns_and_writes_what_it_measured(model: Loaded, tmp_path: Path, architecture: str) -> None:
    k = 6 if architecture == "topk" else 2
    recipe = dataclasses.replace(SMALL, architecture=architecture, k=k, steps=200, each=50, name="small")
    points = run(model, tmp_path, recipe)
    assert [point.step for point in points] == list(range(1, 201))
    assert points[-1].explained_variance > points[0].explained_variance + 0.1
    assert points[-1].loss < points[0].loss
    sae = read(str(tmp_path))
    assert sae.info.card["command"].startswith("python -m engine.sae.train --layer 1 ")
    assert sae.info.card["command"].endswith(" --model MODEL --folder PICTURES --out DIR")
    assert sae.info.model_revision == model.revision
    Z = activations.values(model, asked(900, 2), 1, "residual")
    explained, l0, active = fit_of(sae, Z)
    assert sae.info.card["explained_variance"] == pytest.approx(explained, abs=1e-4)
    assert sae.info.card["l0"] == pytest.approx(l0, abs=0.01)
    assert sae.info.card["dead_share"] == pytest.approx(1 - float(active.float().mean()), abs=1e-4)
    assert explained > 0.3
    assert (sae.W_dec.norm(dim=1) - 1).abs().max() < 2e-3
    if architecture == "topk":
        assert l0 <= recipe.k
    else:
        assert points[-1].l0 < points[0].l0 - 2  # it began at about 6.5 and is drawn to 2
        assert sae.threshold is not None
        assert (sae.threshold > 0).all()


def test_folding_the_scale_in_changes_nothing(model: Loaded, tmp_path: Path) -> None:
    run(model, tmp_path)
    trainee, _ = train.resume(tmp_path, SMALL)
    Z = trainee.store[:50]
    with torch.no_grad():
        made, H, _ = trainee.run((Z - trainee.mean) / trainee.scale)
        sae = read(str(tmp_path))
        ours = sae.encode(Z)
    assert (made * trainee.scale + trainee.mean - sae.decode(ours)).abs().max() < 0.02 * float(Z.abs().max())
    assert (H * trainee.scale - ours).abs().max() < 0.02 * float(ours.max())


@pytest.mark.parametrize("architecture", ["topk", "jumprelu"])
def test_a_stopped_training_goes_on_to_the_bit(
    model: Loaded, tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "RESAMPLE", 4)
    monkeypatch.setattr(train, "WINDOW", 2)
    recipe = dataclasses.replace(SMALL, architecture=architecture)
    run(model, tmp_path / "whole", recipe)
    with pytest.raises(Cancelled, match="step 12 of 24"):
        run(model, tmp_path / "parts", recipe, stop_at=12)
    assert not (tmp_path / "parts" / "sae.safetensors").exists()
    run(model, tmp_path / "parts", recipe, again=True)
    whole, parts = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "parts"))
    assert set(whole) == set(parts)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    one, other = ((tmp_path / name / "sae.safetensors").read_bytes() for name in ("whole", "parts"))
    assert one == other


def test_a_checkpoint_of_another_recipe_is_refused(model: Loaded, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be gone on from"):
        run(model, tmp_path, again=True)
    with pytest.raises(Cancelled):
        run(model, tmp_path, stop_at=4)
    with pytest.raises(RequestError, match="another recipe"):
        run(model, tmp_path, dataclasses.replace(SMALL, rate=1e-3), again=True)


def test_dead_latents_are_resampled(model: Loaded) -> None:
    trainee = train.Trainee(SMALL, activations.values(model, asked(0, 2), 1, "residual"))
    with torch.no_grad():
        trainee.parameters["b_enc"][:10] = -1e4
    for _ in range(5):
        trainee.learn()
    x = trainee.batch()
    with torch.no_grad():
        made, H, _ = trainee.run(x)
        assert not (H[:, :10] > 0).any()
        trainee.idle[:10] = train.WINDOW
        before = trainee.parameters["W_dec"][10:].clone()
        trainee.resample(x, made)
        _, H, _ = trainee.run(x)
    assert (H[:, :10] > 0).any(0).all()
    assert not trainee.idle[:10].any()
    assert torch.equal(trainee.parameters["W_dec"][10:], before)
    assert not trainee.adam.state[trainee.parameters["W_enc"]]["exp_avg"][:, :10].any()
    assert trainee.adam.state[trainee.parameters["W_enc"]]["exp_avg"][:, 10:].any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer": 3}, "layers go from 0 to 2"),
        ({"site": "embedding"}, "embedding"),
        ({"architecture": "standard"}, "topk or jumprelu"),
        ({"k": 49}, "k = 49"),
        ({"steps": 0}, "steps = 0"),
    ],
)
def test_recipes_that_cannot_be(model: Loaded, tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        run(model, tmp_path, dataclasses.replace(SMALL, **changes))  # type: ignore[arg-type]


def write_folder(folder: Path, rows: Sequence[dict[str, str]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(tiny.picture(1)).save(folder / "one.png")
    with (folder / "questions.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["question", "picture", "answer"])
        writer.writeheader()
        writer.writerows(rows)
    return folder


def test_a_folder_of_ones_own(tmp_path: Path, model: Loaded) -> None:
    rows = [
        {"question": "what?", "picture": "one.png", "answer": "a dog"},
        {"question": "where?", "picture": "one.png"},
        {"question": "who?"},
    ]
    folder = write_folder(tmp_path, rows)
    found = activations.folder(folder)
    assert [one.questions for one in found] == [(("what?", "a dog"), ("where?", "")), (("who?", ""),)]
    assert found[0].picture is not None
    assert np.array_equal(found[0].picture, tiny.picture(1))
    assert found[1].picture is None
    source, held = train.folder_source(folder)
    assert held
    assert len(source(0, 5)) == 5
    with pytest.raises(RequestError, match="not in the folder"):
        activations.folder(write_folder(tmp_path / "out", [{"question": "x", "picture": "../one.png"}]))
    with pytest.raises(RequestError, match="cannot be opened"):
        activations.folder(write_folder(tmp_path / "gone", [{"question": "x", "picture": "two.png"}]))
    with pytest.raises(RequestError, match="holds no questions"):
        activations.folder(tmp_path / "empty")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "questions.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(RequestError, match="needs `question`"):
        activations.folder(tmp_path / "bad")


def test_scenes_are_the_same_every_time_and_held_out_ones_are_others() -> None:
    one, again, other = (activations.world(*given) for given in (("train", 5, 2), ("train", 5, 2), ("held out", 5, 2)))
    assert [a.questions for a in one] == [a.questions for a in again]
    assert np.array_equal(one[0].picture, again[0].picture)
    assert not np.array_equal(one[0].picture, other[0].picture)
    assert activations.world("train", 6, 1)[0].questions == one[1].questions


def test_the_shipped_one_is_as_good_as_its_card_says(builtin: Loaded, builtin_engine: LocalEngine) -> None:
    shipped = builtin_engine.saes()[0]
    assert shipped.fits == ""
    assert shipped.model_revision == builtin.revision
    size = sum(file.stat().st_size for file in SHIPPED.rglob("*.safetensors"))
    assert 0 < size <= 5 * 2**20
    Z = activations.values(builtin, activations.world("held out", 0, 6), shipped.layer, shipped.site)
    explained, l0, _ = fit_of(builtin_engine._sae(shipped.name), Z)
    assert explained == pytest.approx(shipped.card["explained_variance"], abs=0.05)
    assert l0 == pytest.approx(shipped.card["l0"], abs=1)
    assert saes.parse_latent(f"sae.{shipped.name}.3") == (shipped.name, 3)
