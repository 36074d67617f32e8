"""What an engine can do with concepts in latents: `engine.sae.contract.SaeEngine` has these calls. Torch-free."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from engine.concepts.evidence import Evidence
from engine.concepts.probes import Probe
from engine.measures import OnProgress

if TYPE_CHECKING:
    from engine.contract import Library

LATENT_QUANTILE = 0.99
"""The quantile of the membership map for latents. Higher than that for neurons, for an SAE's evidence is sparser;
chosen on the `dev` split of 0.98, 0.99, 0.995, 0.998 and 0.999: there a concept's latents take most from it that
another's do not (`python -m engine.sae.memberships build --quantile Q`, then `validate --split dev --probes 8`)."""


def _never() -> bool:
    return False


class LatentConceptEngine(Protocol):
    """Fuzzy sets of latents, made as those of neurons are: memberships are (1, n_latents)."""

    def latent_evidence(
        self,
        sae: str,
        probes: Sequence[Probe],
        on_progress: OnProgress | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> Evidence:
        """Evidence shares (1, n_latents) of a concept's probes, in their order, over the latents of the SAE named or
        identified by `sae`; probes that the model cannot take are left out. Memberships follow by
        `Evidence.memberships`. `on_progress` counts probes. Raises UnknownName, RequestError (no gradients; the SAE
        does not fit), Cancelled."""
        ...

    def latent_library(self, sae: str) -> "Library":
        """The concepts whose memberships (1, n_latents) ship with this SAE; a library without concepts where none do.
        Its recipe names map, quantile and mode. Raises UnknownName, RequestError."""
        ...
