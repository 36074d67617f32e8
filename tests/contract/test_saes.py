"""What both engines promise of sparse autoencoders and the influence of their latents."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine.contract import (
    MODALITIES,
    Asked,
    BadTarget,
    Cancelled,
    Engine,
    Question,
    RequestError,
    UnknownName,
    saes,
)

Found = saes.Influence


@pytest.fixture(scope="session")
def sae(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> saes.SaeInfo:
    """What ships with the model; or, where nothing does yet, one that was hardly trained."""
    shipped = engine.saes()
    if shipped:
        return shipped[0]
    recipe = saes.Recipe(1, n_latents=64, k=8, steps=4, batch=64, kept=256, pictures=2)
    return engine.train_sae(recipe, str(tmp_path_factory.mktemp("sae")))


@pytest.fixture(scope="session")
def found(engine: Engine, question: Question, ids: list[int], sae: saes.SaeInfo) -> Found:
    return engine.latent_influence(question, ids, sae.name, top=12)


def test_what_stands_is_listed(engine: Engine, sae: saes.SaeInfo) -> None:
    assert sae in engine.saes()
    assert sae.architecture in saes.ARCHITECTURES
    assert sae.site in saes.SITES
    assert 0 <= sae.layer < engine.info().n_layers
    assert sae.model_revision == engine.info().revision
    assert sae.fits == ""
    assert 0 < float(sae.card["explained_variance"]) <= 1
    assert 0 <= float(sae.card["dead_share"]) < 1


def test_how_one_reads_a_sample(engine: Engine, sae: saes.SaeInfo, question: Question) -> None:
    world, own = engine.check_sae(sae.id), engine.check_sae(sae.name, [question])
    for fit in (world, own):
        assert fit.explained_variance <= 1
        assert 0 < fit.l0 <= sae.n_latents
        assert 0 <= fit.dead_share < 1
        assert fit.positions > 0
    assert world.positions > own.positions
    assert engine.check_sae(sae.name, [question]) == own
    with pytest.raises(UnknownName):
        engine.check_sae("nothing")


def test_all_latents_have_their_totals(found: Found, sae: saes.SaeInfo) -> None:
    assert found.sae == sae
    assert found.influence.shape == found.mean_activation.shape == found.active.shape == (sae.n_latents,)
    assert (found.influence >= 0).all()
    assert (found.mean_activation >= 0).all()
    assert not found.influence[~found.active].any()
    assert np.array_equal(found.mean_activation > 0, found.active)
    assert 0 < found.last_active <= found.active.sum()
    assert found.fit.dead_share == pytest.approx(1 - float(found.active.mean()))
    if sae.k is not None:
        assert 0 < found.fit.l0 <= sae.k


def test_the_listed_are_the_first_of_both_orders(found: Found) -> None:
    indices = [latent.index for latent in found.latents]
    wanted = saes.listed(found.influence, found.mean_activation, 12)
    assert indices == wanted
    assert set(indices) == set(np.argsort(-found.influence, kind="stable")[:12].tolist()) | set(
        np.argsort(-found.mean_activation, kind="stable")[:12].tolist()
    )
    assert [latent.influence for latent in found.latents] == [float(found.influence[c]) for c in indices]
    assert [latent.influence for latent in found.latents] == sorted((x.influence for x in found.latents), reverse=True)
    for latent in found.latents:
        assert latent.peak >= latent.mean_activation > 0
        assert latent.at >= 1
        assert 0 <= latent.image_share <= 1


def test_maps_hold_what_the_image_holds(found: Found) -> None:
    assert found.grid is not None
    assert found.heat is not None
    shape = (found.grid.rows, found.grid.cols)
    assert found.heat.shape == shape
    assert (found.heat >= 0).all()
    for latent in found.latents:
        assert latent.heat is not None
        assert latent.activation is not None
        assert latent.heat.shape == latent.activation.shape == shape
        assert float(latent.heat.sum()) == pytest.approx(latent.by_modality[0], abs=1e-4)
        assert latent.activation.max() <= latent.peak + 1e-4


def test_with_the_error_kept_the_answer_is_the_models_own(asked: Asked, found: Found) -> None:
    assert found.value == pytest.approx(sum(token.logprob for token in asked.answer.tokens), abs=1e-4)


def test_a_probability_only_shrinks_the_influence(
    engine: Engine, question: Question, ids: list[int], sae: saes.SaeInfo, found: Found
) -> None:
    other = engine.latent_influence(question, ids, sae.id, saes.Settings(quantity="probability"), top=12)
    assert other.value == pytest.approx(np.exp(found.value), rel=1e-4)
    assert np.abs(other.influence - other.value * found.influence).max() <= 1e-4 * other.value * found.influence.max()


def test_the_mean_of_the_positive_parts_is_no_less_than_the_positive_part_of_the_mean(
    engine: Engine, question: Question, ids: list[int], sae: saes.SaeInfo, found: Found
) -> None:
    other = engine.latent_influence(question, ids, sae.name, saes.Settings(positive="mean"), top=12)
    assert (other.influence <= found.influence + 1e-6 * found.influence.max()).all()
    assert (other.influence < found.influence).any()
    assert other.mean_activation == pytest.approx(found.mean_activation)


def test_the_next_token_alone(engine: Engine, question: Question, ids: list[int], sae: saes.SaeInfo) -> None:
    settings = saes.Settings(of="next")
    whole = engine.latent_influence(question, ids, sae.name, settings)
    first = engine.latent_influence(question, ids[:1], sae.name)
    assert np.allclose(whole.influence, first.influence, atol=1e-6 * max(float(first.influence.max()), 1e-30))
    assert whole.value == pytest.approx(first.value, abs=1e-5)


def test_ablation_is_zero_where_a_latent_is_not_active(
    engine: Engine, question: Question, ids: list[int], sae: saes.SaeInfo, found: Found
) -> None:
    quiet = np.flatnonzero(~found.active)[:2].tolist()
    chosen = [latent.index for latent in found.latents[:3]]
    seen: list[tuple[int, int]] = []
    lost = engine.latent_ablation(
        question, ids, sae.name, [*quiet, *chosen], on_progress=lambda done, whole: seen.append((done, whole))
    )
    assert lost.shape == (len(quiet) + len(chosen),)
    assert not lost[: len(quiet)].any()
    assert lost[len(quiet) :].any()
    assert seen
    assert seen[-1][0] == seen[-1][1]


def test_answers_with_nothing_zeroed_and_the_error_kept_are_the_models(
    engine: Engine, asked: Asked, question: Question, sae: saes.SaeInfo, found: Found
) -> None:
    active = np.flatnonzero(found.active).tolist()
    same, other, again = engine.latent_answers(question, sae.name, [[], active, []])
    assert same.text == again.text
    if same.text != asked.answer.text:  # the fake one answers with one word
        assert engine.info().family == "fake"
    assert other.text != same.text


def test_a_lens(engine: Engine, sae: saes.SaeInfo, found: Found) -> None:
    index = found.latents[0].index
    lens = engine.latent_lens(sae.name, index)
    for tokens, sign in ((lens.promoted, 1), (lens.suppressed, -1)):
        values = [sign * value for _, _, value in tokens]
        assert len(tokens) == 12
        assert values == sorted(values, reverse=True)
    assert all(index != other for other, _ in lens.alike)
    assert all(int(name.split(".")[1]) <= sae.layer for name, _ in lens.written_by)
    assert lens.written_by


def test_pictures_that_a_latent_answers_to(engine: Engine, question: Question, sae: saes.SaeInfo, found: Found) -> None:
    index = max(found.latents, key=lambda latent: latent.peak).index
    alone = dataclasses.replace(question, picture=None)
    (rows,) = engine.seen_latents(sae.name, [index], [question, alone], top=5)
    assert [row.peak for row in rows] == sorted((row.peak for row in rows), reverse=True)
    assert all(row.index == index and row.peak > 0 for row in rows)
    for row in rows:
        assert row.question == (question, alone)[row.case].text
        assert (row.heat is None) == (row.case == 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (saes.Settings(of="phrase"), "phrase"),
        (saes.Settings(quantity="logit"), "logit"),
        (saes.Settings(positive="max"), "max"),
    ],
)
def test_variants_that_do_not_exist(
    engine: Engine, question: Question, ids: list[int], sae: saes.SaeInfo, settings: saes.Settings, words: str
) -> None:
    with pytest.raises(UnknownName, match=words):
        engine.latent_influence(question, ids, sae.name, settings)


def test_refusals(engine: Engine, question: Question, ids: list[int], sae: saes.SaeInfo) -> None:
    with pytest.raises(UnknownName, match="There is no SAE"):
        engine.latent_influence(question, ids, "nobody")
    with pytest.raises(BadTarget, match="empty"):
        engine.latent_influence(question, [], sae.name)
    with pytest.raises(UnknownName, match=str(sae.n_latents - 1)):
        engine.latent_ablation(question, ids, sae.name, [sae.n_latents])
    with pytest.raises(UnknownName, match=str(sae.n_latents - 1)):
        engine.latent_lens(sae.name, sae.n_latents)
    with pytest.raises(RequestError):
        engine.attach_sae("/nowhere/at-all")
    with pytest.raises(Cancelled):
        engine.latent_influence(question, ids, sae.name, cancelled=lambda: True)
    with pytest.raises(UnknownName):
        engine.detach_sae("nobody")


@pytest.fixture
def trained(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[saes.SaeInfo, list[int], str]]:
    """One of one's own, the steps that were told, and its folder."""
    steps: list[int] = []
    out = str(tmp_path_factory.mktemp("own"))
    recipe = saes.Recipe(1, "mlp", n_latents=32, k=4, steps=3, batch=32, kept=128, pictures=1, name="my own")
    made = engine.train_sae(recipe, out, on_point=lambda point: steps.append(point.step))
    yield made, steps, out
    if made in engine.saes():
        engine.detach_sae(made.name)


def test_a_trained_one_is_attached_and_written(engine: Engine, trained: tuple[saes.SaeInfo, list[int], str]) -> None:
    made, steps, out = trained
    assert (made.name, made.layer, made.site) == ("my-own", 1, "mlp")
    assert steps[0] == 0, "gathering comes first"
    assert sorted(set(steps)) == [0, 1, 2, 3]
    assert steps == sorted(steps)
    assert made in engine.saes()
    assert engine.attach_sae(out).id == made.id
    engine.detach_sae(made.id)
    assert made not in engine.saes()
    assert engine.attach_sae(out).name == "my-own"


def test_the_experiment(engine: Engine, sae: saes.SaeInfo) -> None:
    items = engine.experiment_items(4)
    assert [item.about for item in items[:2]] == [items[0].about] * 2
    assert len({item.about for item in items}) == 2
    assert [item.question.text for item in engine.experiment_items(2)] == [item.question.text for item in items[:2]]
    assert engine.experiment_items(1, seed=1)[0].about != items[0].about
    seen: list[tuple[int, int]] = []
    kept: dict[int, Any] = {}
    report = engine.latent_experiment(
        items, sae.id, ablated=0, on_progress=lambda *done: seen.append(done), on_item=kept.__setitem__
    )
    assert seen[-1] == (len(kept),) * 2
    assert report.sae == sae
    assert 1 <= report.right <= report.asked == 4
    assert report.agreement["influence"].n == 0
    assert {masked.em.n for masked in report.masked} == {report.right}
    assert {swap.left.n for swap in report.swaps} in ({report.pairs}, set())
    assert report.pairs <= report.right
    first = {number: json.loads(json.dumps(value)) for number, value in kept.items() if number < len(kept) // 2}
    assert engine.latent_experiment(items, sae.id, ablated=0, done=first) == report
    wrong = [dataclasses.replace(item, answers=("no such answer",)) for item in items]
    with pytest.raises(RequestError, match="None of 4"):
        engine.latent_experiment(wrong, sae.name)
    with pytest.raises(UnknownName, match="There is no SAE"):
        engine.latent_experiment(items, "nobody")


def test_a_latents_name() -> None:
    assert saes.parse_latent("sae.my.own.12") == ("my.own", 12)
    for name in ("sae.12", "text.1.2", "sae.x.", "sae.x.y", "sae.x.12345678"):
        with pytest.raises(UnknownName):
            saes.parse_latent(name)


def test_modalities_are_the_contracts(found: Found) -> None:
    assert all(len(latent.by_modality) == len(MODALITIES) for latent in found.latents)
