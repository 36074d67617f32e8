"""Concepts in the latents of the FakeEngine: a share follows the concept that a probe says, with some noise of its own,
and the shipped library holds the concepts of the fake world's first kind."""

from collections.abc import Sequence

import numpy as np

from engine.concepts.evidence import Evidence, pack
from engine.concepts.fuzzy import evidence_share
from engine.concepts.probes import Probe, find_form
from engine.contract import Concept, Floats, IsCancelled, Library, OnProgress, never
from engine.fake_world import OBJECTS, noise
from engine.sae.contract import SaeInfo

MEMBERS = 6
DRAWN = "drawn from a hash"
"""Where the SAE comes from that ships with the fake model."""
RECIPE = {"map": "linear", "quantile": 0.99, "mode": "specific", "probes": 8, "command": DRAWN}


def members_of(sae: SaeInfo, concept: str) -> Floats:
    """(1, n_latents): MEMBERS latents, from 1 down to 0.1."""
    mu = np.zeros(sae.n_latents, np.float32)
    drawn = noise("latent members", sae.id, concept).permutation(sae.n_latents)[:MEMBERS]
    mu[drawn] = np.linspace(1, 0.1, MEMBERS, dtype=np.float32)
    return mu[None]


class FakeMemberships:
    """`engine.sae.membership_contract.LatentConceptEngine` without a model."""

    def _pause(self, cancelled: IsCancelled) -> None:
        raise AssertionError("an engine says how long it takes")

    def _sae(self, name: str) -> SaeInfo:
        raise AssertionError("an engine says which SAEs it has")

    def latent_evidence(
        self,
        sae: str,
        probes: Sequence[Probe],
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> Evidence:
        info, shares = self._sae(sae), []
        for k in range(len(probes)):
            probe = probes[k]
            self._pause(cancelled)
            if find_form(probe.answer, probe.says) is not None:
                drawn = noise("latent share", info.id, probe.question, probe.answer, probe.says)
                scores = members_of(info, probe.says.casefold()) + drawn.normal(0, 0.05, (1, info.n_latents))
                shares.append(pack(evidence_share(np.asarray(scores, np.float32))))
            if on_progress is not None:
                on_progress(k + 1, len(probes))
        return Evidence((1, info.n_latents)).add(shares)

    def latent_library(self, sae: str) -> Library:
        info = self._sae(sae)
        if info.source != DRAWN:
            return Library("none", ())
        concepts = tuple(Concept(name, "object", 8, members_of(info, name)) for name in OBJECTS)
        return Library(f"latents-of-{info.id}", concepts, dict(RECIPE))
