"""Memberships of latents: shares against plain autograd, laws, and what ships."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from engine.concepts.membership import Probe, prepare_one
from engine.contract import Cancelled, RequestError, UnknownName, saes
from engine.hooks import count_hooks
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.sae import membership_checks, memberships
from engine.sae.sae import Sae, make
from tests.engine import tiny

N = 40
PROBES = [
    Probe(tiny.picture(1), "what is this?", "a dog", "dog"),
    Probe(tiny.picture(2), "what colour is the big thing on the left?", "red", "red"),
    Probe(tiny.picture(3), "what is this?", "a cat", "cat", against="dog"),
]


def random_sae(loaded: Loaded, layer: int, site: str, architecture: str) -> Sae:
    d, g = loaded.anatomy.d_model, torch.Generator().manual_seed(layer)
    W = torch.nn.functional.normalize(torch.randn(N, d, generator=g), dim=1)
    W[7] = 0
    tensors = {"W_enc": torch.randn(d, N, generator=g), "W_dec": W, "b_enc": torch.zeros(N), "b_dec": torch.zeros(d)}
    k = 6 if architecture == "topk" else None
    return make(saes.SaeInfo("", f"{architecture}-{layer}", layer, site, architecture, 0, 0, k, "", ""), tensors)


@contextmanager
def standing(engine: LocalEngine, sae: Sae) -> Iterator[None]:
    before, engine._standing = engine._standing, {sae.info.name: sae}
    try:
        yield
    finally:
        engine._standing = before


def plain_scores(loaded: Loaded, sae: Sae, probe: Probe) -> np.ndarray:
    """Σ_n H · ∂S/∂H by a forward hook of the test's own, each side of the target alone, in double."""
    ready = prepare_one(loaded, probe)
    total = np.zeros(N)
    for part in ready.parts:
        assert part.target.end is not None
        leaves: list[torch.Tensor] = []

        def hook(_module: Any, _args: Any, result: Any, leaves: list[torch.Tensor] = leaves) -> Any:
            given = result[0] if isinstance(result, tuple) else result
            Z = given.detach()
            x = (Z[0].double() @ sae.W_enc.double() + sae.b_enc.double()).clamp(min=0)
            if sae.info.k is not None:
                x[x < x.topk(sae.info.k, -1).values[:, -1:]] = 0
            x[0] = 0  # a reserved token stands first
            leaf = x.float().requires_grad_(True)
            leaves.append(leaf)
            made = leaf @ sae.W_dec
            new = Z + (made - made.detach())[None]
            return (new, *result[1:]) if isinstance(result, tuple) else new

        layer = tiny.decoder_of(loaded.model).layers[sae.info.layer]
        place = {"residual": layer, "mlp": layer.mlp, "attention": layer.self_attn}[sae.info.site]
        handle = place.register_forward_hook(hook)
        try:
            logits = loaded.model(**tiny.inputs(ready.prompt, part.ids), use_cache=False).logits[0]
        finally:
            handle.remove()
        value = tiny.span_logprob(logits, ready.prompt, part.ids, part.target.start, part.target.end)
        (slope,) = torch.autograd.grad(value, leaves)
        total += part.sign * (leaves[0].double() * slope.double()).sum(0).detach().numpy()
    return total


@pytest.mark.parametrize(("layer", "site", "architecture"), [(1, "residual", "topk"), (0, "mlp", "standard")])
def test_shares_are_what_plain_autograd_gives(cropping: Loaded, layer: int, site: str, architecture: str) -> None:
    sae, engine = random_sae(cropping, layer, site, architecture), LocalEngine(cropping)
    with standing(engine, sae):
        found = engine.latent_evidence(sae.info.name, PROBES)
    assert found.shape == (1, N)
    assert found.n_probes == len(PROBES)
    for probe, row in zip(PROBES, found.rows, strict=True):
        positive = plain_scores(cropping, sae, probe).clip(min=0)
        assert positive.sum() > 0
        np.testing.assert_allclose(row.dense()[0], positive / positive.sum(), atol=2e-5)
        assert row.kept == pytest.approx(1, abs=1e-6)
    assert count_hooks(cropping.model) == 0


def test_a_latent_that_writes_nothing_belongs_to_nothing(cropping: Loaded) -> None:
    sae, engine = random_sae(cropping, 1, "residual", "standard"), LocalEngine(cropping)
    with standing(engine, sae):
        found = engine.latent_evidence(sae.info.id, PROBES)
    assert not sae.W_dec[7].any()
    mu = found.memberships("linear", 0.5)
    assert mu[0, 7] == 0
    assert ((mu > 0) & (mu < 1)).any()
    assert mu.max() == 1


def test_the_same_probes_give_the_same_evidence_in_whatever_batches(cropping: Loaded) -> None:
    sae = random_sae(cropping, 1, "residual", "topk")
    told: list[tuple[int, int]] = []
    one = memberships.latent_evidence(cropping, sae, PROBES, lambda done, total: told.append((done, total)))
    again = memberships.latent_evidence(cropping, sae, PROBES)
    alone = memberships.latent_evidence(cropping, sae, PROBES, batch=1)
    assert told[-1] == (3, 3)
    assert [row.to_bytes() for row in one.rows] == [row.to_bytes() for row in again.rows]
    for row, other in zip(one.rows, alone.rows, strict=True):
        np.testing.assert_allclose(row.dense(), other.dense(), atol=1e-5)


def test_probes_that_cannot_be_taken_are_left_out_and_a_stop_is_heard(cropping: Loaded) -> None:
    sae, engine = random_sae(cropping, 1, "residual", "topk"), LocalEngine(cropping)
    bad = Probe(tiny.picture(1), "what is this?", "a dog", "giraffe")
    with standing(engine, sae):
        assert engine.latent_evidence(sae.info.name, [bad, PROBES[0]]).n_probes == 1
        assert engine.latent_evidence(sae.info.name, [bad]).n_probes == 0
        with pytest.raises(Cancelled):
            engine.latent_evidence(sae.info.name, PROBES, cancelled=lambda: True)
        with pytest.raises(UnknownName):
            engine.latent_evidence("another", PROBES)
        assert engine.latent_library(sae.info.name).concepts == ()
    assert count_hooks(cropping.model) == 0


def test_what_ships_follows_from_the_probes(builtin: Loaded) -> None:
    """The evidence of one concept, computed anew, gives the shipped memberships' order: its strongest latents."""
    engine = LocalEngine(builtin)
    sae = engine.saes()[0]
    known = engine.latent_library(sae.id)
    assert len(known.concepts) == len(engine.world_concepts())
    assert known.recipe["model_revision"] == f"{engine.info().revision} {sae.id}"
    kinds = dict(engine.world_concepts())
    shapes = {c.name: c for c in known.concepts if c.kind == "shape"}
    n = known.recipe["probes"]
    evidence = {name: engine.latent_evidence(sae.id, engine.world_probes(name, n)).mean() for name in shapes}
    for name, concept in shapes.items():
        assert kinds[name] == "shape"
        others = np.mean([mean for other, mean in evidence.items() if other != name], axis=0)
        specific = np.maximum(evidence[name] - others, 0)[0]
        assert concept.memberships.shape == (1, sae.n_latents)
        bound = np.quantile(specific, known.recipe["quantile"])
        assert np.abs(concept.memberships[0] - np.minimum(specific / bound, 1)).max() < 0.02


def test_zeroing_an_own_set_is_measured_beside_others(builtin: Loaded) -> None:
    engine = LocalEngine(builtin)
    known = [c for c in engine.latent_library(engine.saes()[0].id).concepts if c.kind == "colour"][:2]
    sae = engine._sae(engine.saes()[0].id)
    found = membership_checks.check(builtin, sae, known[0], known[1], 3, 0.5)
    assert found.size == int((known[0].memberships >= 0.5).sum())
    assert len(found.right) == 3
    assert all(len(row) == len(membership_checks.ARMS) for row in found.right)
    logprobs = np.array(found.logprobs)
    assert (np.abs(logprobs[:, 1:] - logprobs[:, :1]) > 0).all()
    told = membership_checks.summary([found])
    assert told["accuracy"]["nothing"].n == 3
    assert "random active" in membership_checks.table([found], 0.5)
    with pytest.raises(RequestError, match="Lower α"):
        membership_checks.check(builtin, sae, known[0], known[1], 3, 1.5)


def test_concepts_are_spread_over_all_kinds(builtin: Loaded) -> None:
    engine = LocalEngine(builtin)
    known = engine.latent_library(engine.saes()[0].id).concepts
    chosen: Sequence[Any] = membership_checks.spread(known, 20)
    assert len({c.name for c in chosen}) == 20
    assert {c.kind for c in chosen} == {c.kind for c in known}
