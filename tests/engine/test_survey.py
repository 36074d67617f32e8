"""Lens, survey and fires against oracles: the model's own norm and unembedding, and totals made from plain captures."""

import math

import numpy as np
import pytest
import torch

from engine.contract import Cancelled, Question, RequestError, UnknownName
from engine.features import forward
from engine.hooks import capture, count_hooks
from engine.local import LocalEngine
from engine.neurons_contract import BINS, EDGES, TOP
from engine.prompts import build_prompt
from engine.running import embed, picture_features
from engine.weights import weight
from tests.engine import tiny


def asked(n: int) -> list[Question]:
    """Questions of several lengths; every fourth without a picture."""
    texts = ("what is it?", "what is on the left of it?", "red or blue?")
    return [Question(None if k % 4 == 3 else tiny.picture(k), texts[k % 3], 1) for k in range(n)]


def activations(engine: LocalEngine, question: Question) -> tuple[torch.Tensor, tuple[str, ...]]:
    """(n_layers, pos, d_mlp) by one plain pass, and the modality of each position."""
    loaded = engine.loaded
    prompt = build_prompt(loaded, question)
    features = picture_features(loaded, prompt.pixels) if prompt.pixels else None
    with torch.no_grad(), capture(loaded.anatomy) as captured:
        forward(loaded, embed(loaded, prompt.ids, features), 1)
    return torch.stack([layer[0] for layer in captured.layers()]), prompt.modality


def test_the_lens_is_what_the_neuron_does_to_the_logits(engine: LocalEngine) -> None:
    """Writing v onto a stream whose norm is held moves the logits by the lens, up to one factor and one constant."""
    loaded, layer, index = engine.loaded, 1, 3
    anatomy = loaded.anatomy
    vector = anatomy.write_vectors(layer)[index].double()
    stream = torch.randn(anatomy.d_model, generator=torch.Generator().manual_seed(0)).double()
    norm, unembedding = anatomy.final_norm, weight(anatomy.unembedding).double()
    gamma = weight(norm).double()
    rho = stream.pow(2).mean().sqrt()
    moved = ((stream + vector) / rho * gamma - stream / rho * gamma) @ unembedding.T * rho
    moved -= moved.mean()
    found = engine.lens(layer, index, top=5)
    known = len(loaded.processor.tokenizer)
    order = moved[:known].argsort(descending=True)
    assert [token.id for token in found.promoted] == order[:5].tolist()
    assert [token.id for token in found.suppressed] == order.flip(0)[:5].tolist()
    assert [token.value for token in found.promoted] == pytest.approx(moved[order[:5]].tolist(), rel=1e-3)
    assert found.suppressed[0].value < 0 < found.promoted[0].value


def test_neurons_alike_are_the_nearest_write_vectors(engine: LocalEngine) -> None:
    anatomy = engine.loaded.anatomy
    every = torch.cat([anatomy.write_vectors(layer) for layer in range(anatomy.n_layers)]).float()
    cosines = torch.nn.functional.cosine_similarity(every, every[2:3], dim=-1)
    cosines[2] = -2
    names = [f"text.{int(k) // anatomy.d_mlp}.{int(k) % anatomy.d_mlp}" for k in cosines.argsort(descending=True)[:10]]
    found = engine.lens(0, 2).alike
    assert [name for name, _ in found] == names
    assert found[0][1] == pytest.approx(float(cosines.max()), abs=1e-5)


def test_the_lens_of_all_neurons_is_that_of_each(engine: LocalEngine) -> None:
    found = engine.promotions(top=3)
    layers, d_mlp, top = found.ids.shape
    assert (layers, d_mlp, top) == (engine.info().n_layers, engine.info().d_mlp, 3)
    one = engine.lens(1, 4, top=3)
    assert found.ids[1, 4].tolist() == [token.id for token in one.promoted]
    assert [found.texts[k] for k in found.ids[1, 4].tolist()] == [token.text for token in one.promoted]


def test_a_survey_adds_up(engine: LocalEngine) -> None:
    """Every figure of two neurons, against plain passes over the same prompts."""
    questions, tokenizer = asked(14), engine.loaded.processor.tokenizer
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_encoder.values()}
    steps: list[tuple[int, int]] = []
    found = engine.survey(questions, lambda done, total: steps.append((done, total)))
    assert steps[-1] == (14, 14)
    d_mlp = engine.info().d_mlp
    for layer, index in ((0, 0), (1, 5)):
        record = found.neurons[layer * d_mlp + index]
        for sort in range(2):
            values, best = [], []
            for case, question in enumerate(questions):
                seen, modality = activations(engine, question)
                ids = build_prompt(engine.loaded, question).ids.tolist()
                at = [
                    p for p, kind in enumerate(modality)
                    if (kind == "image") == (sort == 0) and (kind == "image" or ids[p] not in special)
                ]  # fmt: skip
                if at:
                    here = seen[layer, at, index].double().numpy()
                    values.append(here)
                    best.append((abs(here).max(), case, at[int(abs(here).argmax())]))
            whole = np.concatenate(values)
            assert len(whole) == found.positions[sort]
            assert record["mean"][sort] == pytest.approx(whole.mean(), abs=1e-5)
            assert record["deviation"][sort] == pytest.approx(whole.std(), abs=1e-5)
            assert record["positive"][sort] == pytest.approx((whole > 0).mean(), abs=1e-6)
            expected = np.bincount(np.searchsorted(EDGES, whole), minlength=BINS)
            assert abs(record["bins"][sort].astype(int) - expected).sum() <= 2  # a value may lie on an edge
            best.sort(key=lambda entry: -entry[0])
            count = min(TOP, len(best))
            assert record["case"][sort][:count].tolist() == [case for _, case, _ in best[:count]]
            assert record["position"][sort][:count].tolist() == [position for *_, position in best[:count]]
            assert (record["case"][sort][count:] == -1).all()
    assert count_hooks(engine.loaded.model) == 0


def test_two_surveys_bins_add_up(engine: LocalEngine) -> None:
    questions = asked(9)
    whole = engine.survey(questions).neurons["bins"].astype(int)
    parts = [engine.survey(some).neurons["bins"].astype(int) for some in (questions[:4], questions[4:])]
    assert abs(whole - parts[0] - parts[1]).sum() <= whole.sum() * 1e-3
    assert np.ptp(whole.sum(axis=2), axis=0).tolist() == [0, 0]


def test_a_survey_stops_between_batches_and_says_what_it_cannot_ask(engine: LocalEngine) -> None:
    with pytest.raises(Cancelled):
        engine.survey(asked(4), cancelled=lambda: True)
    found = engine.survey([*asked(2), Question(None, " ", 1)])
    assert [number for number, _ in found.refused] == [2]
    assert "empty" in found.refused[0][1]
    assert found.tokens[2] == ()
    with pytest.raises(RequestError, match="empty"):
        engine.survey([Question(None, " ", 1)])
    with pytest.raises(RequestError, match="no question"):
        engine.survey([])


def test_maps_show_the_peak_that_the_survey_found(engine: LocalEngine) -> None:
    questions = asked(5)
    record = engine.survey(questions).neurons[7]
    cases = [case for case in record["case"][0].tolist() if case >= 0]
    maps = engine.activation_maps(0, 7, [questions[case] for case in cases])
    for drawn, value in zip(maps, record["value"][0], strict=False):
        assert drawn is not None
        assert drawn.flat[abs(drawn).argmax()] == pytest.approx(value, abs=1e-5)
    assert engine.activation_maps(0, 7, [questions[3]]) == (None,)
    with pytest.raises(UnknownName, match="layers go from 0"):
        engine.activation_maps(99, 0, questions)


def test_fires_is_the_mean_inside_the_box(engine: LocalEngine) -> None:
    question = asked(1)[0]
    assert question.picture is not None
    grid = engine.grid(question)
    assert grid is not None
    left, top, right, bottom = grid.box
    width, height = (right - left) / grid.cols, (bottom - top) / grid.rows
    found = engine.fires(question, (left, top, left + 1.1 * width, top + 0.9 * height), top=4)
    assert found.cells == 1
    seen, modality = activations(engine, question)
    first = next(p for p, kind in enumerate(modality) if kind == "image")
    inside = seen[:, first].abs().flatten()
    order = inside.argsort(descending=True)[:4]
    d_mlp = engine.info().d_mlp
    assert [one.neuron for one in found.neurons] == [f"text.{int(k) // d_mlp}.{int(k) % d_mlp}" for k in order]
    assert found.neurons[0].inside == pytest.approx(float(inside.max()), rel=1e-4)
    rest = seen[int(order[0]) // d_mlp, first + 1 : first + grid.rows * grid.cols, int(order[0]) % d_mlp].abs().mean()
    assert found.neurons[0].outside == pytest.approx(float(rest), rel=1e-4)
    assert abs(found.neurons[0].activation[0, 0]) == pytest.approx(found.neurons[0].inside, rel=1e-4)
    with pytest.raises(RequestError, match="patches are about"):
        engine.fires(question, (-9, -9, -8, -8))
    with pytest.raises(RequestError, match="Without a picture"):
        engine.fires(Question(None, "what is it?", 1), (0, 0, 9, 9))


def test_the_builtin_models_scenes_are_fixed_and_askable(builtin_engine: LocalEngine) -> None:
    some = builtin_engine.scenes(3)
    again = builtin_engine.scenes(5)[:3]
    for one, other in zip(some, again, strict=True):
        assert one.text == other.text
        assert one.picture is not None
        assert other.picture is not None
        assert np.array_equal(one.picture, other.picture)
    found = builtin_engine.survey(some)
    assert not found.refused
    assert math.isclose(float(found.neurons["bins"][0, 0].sum()), found.positions[0])
