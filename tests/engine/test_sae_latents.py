"""Single latents against oracles: a survey of all of them against plain passes, the pictures of one against sorting,
and latents that read a neuron against the cosines of their columns."""

import numpy as np
import pytest
import torch

from engine.contract import Cancelled, Floats, Question, RequestError, UnknownName
from engine.hooks import count_hooks
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.neurons_contract import BINS, EDGES, TOP
from engine.prompts import build_prompt
from engine.sae.sae import Sae
from tests.engine import tiny
from tests.engine.test_sae_influence import CASES, N, place, random_sae, sigma, standing
from tests.engine.test_survey import asked


def activations(loaded: Loaded, sae: Sae, question: Question) -> tuple[Floats, tuple[str, ...]]:
    """(pos, N) by a plain pass and a hook of the test's own, and the modality of each position."""
    prompt = build_prompt(loaded, question)
    caught: list[torch.Tensor] = []

    def hook(_module: object, _args: object, result: object) -> None:
        caught.append((result[0] if isinstance(result, tuple) else result)[0].detach())  # type: ignore[index]

    handle = place(loaded.model, sae.info).register_forward_hook(hook)
    try:
        with torch.no_grad():
            loaded.model(**tiny.inputs(prompt, []), use_cache=False)
    finally:
        handle.remove()
    return sigma(sae, caught[0]).numpy(), prompt.modality


@pytest.mark.parametrize(("layer", "site", "architecture"), CASES)
def test_a_survey_of_latents_adds_up(engine: LocalEngine, layer: int, site: str, architecture: str) -> None:
    loaded, questions = engine.loaded, asked(9)
    sae = random_sae(loaded, layer, site, architecture)
    tokenizer = loaded.processor.tokenizer
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_encoder.values()}
    with standing(engine, sae):
        steps: list[tuple[int, int]] = []
        found = engine.latent_survey(sae.info.id, questions, lambda done, total: steps.append((done, total)))
    assert steps[-1] == (9, 9)
    assert found.neurons.shape == (N,)
    seen: list[list[tuple[int, list[int], Floats]]] = [[], []]
    for case, question in enumerate(questions):
        values, kinds = activations(loaded, sae, question)
        ids = build_prompt(loaded, question).ids
        for sort in range(2):
            at = [p for p, kind in enumerate(kinds) if (kind == "image") == (sort == 0)]
            at = [p for p in at if sort == 0 or int(ids[p]) not in special]
            if at:
                seen[sort].append((case, at, values[at]))
    for sort in range(2):
        whole = np.concatenate([values for _, _, values in seen[sort]]).astype(np.float64)
        assert found.positions[sort] == len(whole)
        assert np.allclose(found.neurons["mean"][:, sort], whole.mean(0), atol=1e-4)
        assert np.allclose(found.neurons["deviation"][:, sort], whole.std(0), atol=1e-4)
        assert np.abs(found.neurons["positive"][:, sort] - (whole > 0).mean(0)).max() <= 1.5 / len(whole)
        assert (found.neurons["bins"][:, sort].sum(1) == len(whole)).all()
        clear = np.abs(whole[:, :, None] - EDGES).min((0, 2)) > 1e-4
        for k in np.flatnonzero(clear):
            counts = np.bincount(np.searchsorted(EDGES, whole[:, k]), minlength=BINS)
            assert found.neurons["bins"][k, sort].tolist() == counts.tolist()
        for k in range(N):
            best = sorted(((-float(v[:, k].max()), case, at) for case, at, v in seen[sort] if v[:, k].max() > 0))[:TOP]
            told = found.neurons[k]
            assert (told["case"][sort] >= 0).sum() == len(best)
            assert np.allclose(told["value"][sort][: len(best)], [-value for value, *_ in best], atol=1e-4)
    assert count_hooks(loaded.model) == 0


def test_a_survey_is_stopped_and_refuses_what_is_not_there(engine: LocalEngine) -> None:
    sae = random_sae(engine.loaded, 1, "residual", "topk")
    with standing(engine, sae):
        with pytest.raises(Cancelled):
            engine.latent_survey(sae.info.name, asked(3), cancelled=lambda: True)
        with pytest.raises(RequestError, match="no question to survey"):
            engine.latent_survey(sae.info.name, [])
        with pytest.raises(UnknownName, match="There is no SAE"):
            engine.latent_survey("nobody", asked(1))


def test_the_pictures_of_a_latent_are_the_first_by_peak(engine: LocalEngine) -> None:
    loaded, questions = engine.loaded, asked(9)
    sae = random_sae(loaded, 1, "residual", "jumprelu")
    with standing(engine, sae):
        found = engine.seen_latents(sae.info.name, [*range(N), 3], questions, top=4)
    peaks = np.stack([activations(loaded, sae, question)[0][1:].max(0) for question in questions])
    assert [(one.case, one.peak) for one in found[-1]] == [(one.case, one.peak) for one in found[3]]
    for k in range(N):
        order = [int(case) for case in np.argsort(-peaks[:, k], kind="stable") if peaks[case, k] > 0][:4]
        assert [one.peak for one in found[k]] == pytest.approx(peaks[order, k].tolist(), abs=1e-4)
        assert len({one.case for one in found[k]}) == len(order)
        assert all(one.index == k for one in found[k])


@pytest.mark.parametrize(("layer", "site", "architecture"), CASES)
def test_latents_that_read_a_neuron(engine: LocalEngine, layer: int, site: str, architecture: str) -> None:
    anatomy = engine.loaded.anatomy
    sae = random_sae(engine.loaded, layer, site, architecture)
    with standing(engine, sae):
        for neuron_layer in range(anatomy.n_layers):
            found = engine.neuron_readers(sae.info.name, neuron_layer, 5, top=3)
            reads = {"residual": neuron_layer <= layer, "mlp": neuron_layer == layer, "attention": False}[site]
            if not reads:
                assert found == ()
                continue
            vector = anatomy.write_vectors(neuron_layer)[5].double()
            cosines = torch.nn.functional.cosine_similarity(sae.W_enc.double().T, vector[None], dim=1)
            order = cosines.argsort(descending=True)[:3]
            assert [index for index, _ in found] == order.tolist()
            assert [cosine for _, cosine in found] == pytest.approx(cosines[order].tolist(), abs=1e-5)
            name = f"text.{neuron_layer}.5"
            assert dict(engine.latent_lens(sae.info.name, found[0][0]).written_by).get(name, found[0][1]) == (
                pytest.approx(found[0][1], abs=1e-5)
            ), "the same cosine from the other side"
        with pytest.raises(UnknownName):
            engine.neuron_readers(sae.info.name, anatomy.n_layers, 0)
