"""How well an SAE reads some positions, and what to beware of; the check of one that is being attached.

The check's sample is a person's own questions, or SAMPLE pictures of the little world with their questions: pictures
that any model can be shown. Image positions count once a picture, text positions of every question (`activations`).
"""

from collections.abc import Sequence

import torch

from engine.contract import Question, RequestError
from engine.loading import Loaded
from engine.sae import activations
from engine.sae.activations import Asked
from engine.sae.contract import SaeFit
from engine.sae.sae import Sae, fit_of

SAMPLE = 4
"""Pictures of the little world, of those that no training has seen."""
LOW_EXPLAINED, FALLS_SHORT, L0_FACTOR = 0.5, 0.1, 2.0
"""What a warning is given for: explained variance below the first at all or by the second below the card's; L0 further
off the card's than this factor."""


def fit_and_warn(sae: Sae, Z: torch.Tensor, revision: str) -> SaeFit:
    """Z (pos, d_model) of the model of this revision."""
    explained, l0, active = fit_of(sae, Z)
    info, warnings = sae.info, []
    promised, usual = info.card.get("explained_variance"), info.card.get("l0")
    if explained < LOW_EXPLAINED:
        warnings.append(
            f"It explains only {explained * 100:.0f} % of the variance here: most of what the layer says is not in it."
            if explained > 0
            else "It explains nothing of the variance here: the positions' mean is nearer to them than what it makes."
        )
    elif isinstance(promised, int | float) and explained < promised - FALLS_SHORT:
        warnings.append(
            f"It explains {explained * 100:.0f} % of the variance here; its card says {promised * 100:.0f} %."
        )
    if not bool(active.any()):
        warnings.append("No latent is active here.")
    elif isinstance(usual, int | float) and usual > 0 and not 1 / L0_FACTOR <= l0 / usual <= L0_FACTOR:
        warnings.append(f"{l0:.0f} latents are active at a position here; its card says {usual:.0f}.")
    if info.model_revision and info.model_revision != revision:
        warnings.append(f"It was trained on the weights {info.model_revision}; these are {revision}.")
    return SaeFit(explained, l0, 1 - float(active.float().mean()), tuple(warnings), len(Z))


def check(loaded: Loaded, sae: Sae, questions: Sequence[Question] = ()) -> SaeFit:
    """See `engine.sae.contract.SaeEngine.check_sae`."""
    asked = [Asked(one.picture, ((one.text, ""),)) for one in questions]
    asked = asked or activations.world("held out", 0, SAMPLE)
    found, refused = [], ""
    for one in asked:
        try:
            found.append(activations.values(loaded, [one], sae.info.layer, sae.info.site))
        except RequestError as error:
            refused = str(error)
    if not found:
        raise RequestError(f"The SAE could not be tried on this model: {refused}")
    Z = torch.cat(found).to(sae.W_enc.device)
    return fit_and_warn(sae, Z, loaded.revision)
