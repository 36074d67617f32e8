"""`engine.sae.membership_contract.LatentConceptEngine` over one loaded model."""

from collections.abc import Sequence
from pathlib import Path

from engine.concepts.evidence import Evidence
from engine.concepts.library import EMPTY
from engine.concepts.probes import Probe
from engine.contract import IsCancelled, Library, OnProgress, never
from engine.loading import Loaded
from engine.sae import memberships
from engine.sae.sae import Sae


class LatentConceptCalls:
    """Mixed into an engine that owns a model and its SAEs."""

    @property
    def loaded(self) -> Loaded:
        """The model."""
        raise AssertionError("an engine says which model it owns")

    def _enter(self, method: str = "direct") -> None:
        """Refuse a method that does not exist, and another thread."""
        raise AssertionError("an engine says who may call it")

    def _sae(self, name: str) -> Sae:
        raise AssertionError("an engine says which SAEs it has")

    def _shipped_with(self, sae: Sae) -> Path | None:
        """The folder of an SAE that ships with the model; None of others."""
        raise AssertionError("an engine says what ships with it")

    def latent_evidence(
        self,
        sae: str,
        probes: Sequence[Probe],
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> Evidence:
        self._enter("gradient")
        return memberships.latent_evidence(self.loaded, self._sae(sae), probes, on_progress, cancelled)

    def latent_library(self, sae: str) -> Library:
        self._enter()
        found = self._sae(sae)
        folder = self._shipped_with(found)
        return EMPTY if folder is None else memberships.shipped(folder, found, self.loaded.revision)
