"""Single latents: what they write and read, and pictures that they answer to.

1. *Promoted*: the latent's decoder row through the final norm's weight (its scale left out) and the unembedding, less
   the mean over tokens, as a neuron's lens (`engine.lens`); of an SAE after the last layer that is all it does, of an
   earlier one what it does directly.
2. *Written by*: neurons whose write vectors its encoder column reads, by cosine. At the residual those of this and all
   earlier layers; at an MLP those of its layer; at an attention none, for its input has passed the value map.
3. *Alike*: cosine of decoder rows.
"""

from collections.abc import Sequence

import numpy as np
import torch

from engine.attribution.result import PatchMap
from engine.contract import Cancelled, IsCancelled, OnProgress, Question, RequestError, never
from engine.features import embed
from engine.lens import values_of, written
from engine.loading import Loaded
from engine.pieces import alone
from engine.prompts import build_prompt
from engine.running import FeatureCache
from engine.sae.activations import at_site, first_position
from engine.sae.contract import LatentLens, SeenLatent
from engine.sae.influence import require_latent
from engine.sae.sae import Sae
from engine.weights import weight


def _first(values: torch.Tensor, top: int) -> list[tuple[int, float]]:
    """(index, value) of the `top` largest, ties by index."""
    order = np.argsort(-values.cpu().numpy(), kind="stable")[:top].tolist()
    return [(int(k), float(values[k])) for k in order]


@torch.no_grad()
def latent_lens(loaded: Loaded, sae: Sae, index: int, top: int = 12, alike: int = 10) -> LatentLens:
    """See `engine.sae.contract.LatentLens`."""
    require_latent(sae, index)
    tokenizer = loaded.processor.tokenizer
    row = sae.W_dec[index]
    values = values_of(loaded, row[None], weight(loaded.anatomy.unembedding).detach().float())[0, : len(tokenizer)]
    promoted = tuple((alone(tokenizer, k), k, value) for k, value in _first(values, top))
    suppressed = tuple((alone(tokenizer, k), k, -value) for k, value in _first(-values, top))
    place = sae.info
    layers = {"residual": range(place.layer + 1), "mlp": range(place.layer, place.layer + 1)}.get(place.site, range(0))
    read = [_cosines(written(loaded, layer), sae.W_enc[:, index]) for layer in layers]
    by = []
    if read:
        d_mlp = len(read[0])
        by = [(f"text.{layers[k // d_mlp]}.{k % d_mlp}", value) for k, value in _first(torch.cat(read), alike)]
    near = _cosines(sae.W_dec, row)
    near[index] = -2
    return LatentLens(promoted, suppressed, tuple(by), tuple(_first(near, min(alike, len(near) - 1))))


def _cosines(vectors: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
    """(vectors,) on the CPU."""
    return torch.nn.functional.cosine_similarity(vectors.float(), one.to(vectors.device).float()[None], dim=-1).cpu()


@torch.no_grad()
def seen_latents(
    loaded: Loaded,
    sae: Sae,
    indices: Sequence[int],
    questions: Sequence[Question],
    top: int = 8,
    on_progress: OnProgress | None = None,
    cancelled: IsCancelled = never,
) -> tuple[tuple[SeenLatent, ...], ...]:
    """For each of `indices` the questions of largest activation, largest first; see `engine.sae.contract.SeenLatent`.
    Questions that the model cannot be asked are passed over."""
    for index in indices:
        require_latent(sae, index)
    found: list[list[SeenLatent]] = [[] for _ in indices]
    features = FeatureCache()
    for case, question in enumerate(questions):
        if cancelled():
            raise Cancelled("Stopped between two questions.")
        try:
            prompt = build_prompt(loaded, question)
            seen = features.get(loaded, prompt)
            values = at_site(loaded, embed(loaded, prompt.ids, seen), sae.info.layer, sae.info.site)[0]
        except RequestError:
            continue
        first = first_position(loaded, prompt)
        H = sae.encode(values.to(sae.W_enc.device))[:, list(indices)].cpu()
        H[:first] = 0
        spread = seen.spread if seen is not None and seen.spread is not None else prompt.spread
        patches = PatchMap.of(prompt.grid, prompt.modality, spread)
        for k, index in enumerate(indices):
            peak = float(H[:, k].max())
            if peak > 0:
                heat = patches.averaged(H[patches.at, k]) if patches else None
                best = SeenLatent(index, case, question.text, peak, int(H[:, k].argmax()), prompt.grid, heat)
                found[k] = sorted([*found[k], best], key=lambda one: (-one.peak, one.case))[:top]
        if on_progress is not None:
            on_progress(case + 1, len(questions))
    return tuple(map(tuple, found))
