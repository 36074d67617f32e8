"""Single latents: what they write and read, and pictures that they answer to.

1. *Promoted*: the latent's decoder row through the final norm's weight (its scale left out) and the unembedding, less
   the mean over tokens, as a neuron's lens (`engine.lens`); of an SAE after the last layer that is all it does, of an
   earlier one what it does directly.
2. *Written by*: neurons whose write vectors its encoder column reads, by cosine. At the residual those of this and all
   earlier layers; at an MLP those of its layer; at an attention none, for its input has passed the value map.
3. *Alike*: cosine of decoder rows.
4. *Readers* of a neuron: latents whose encoder columns read its write vector, by cosine: 2. from the other side.
5. *Survey*: what every latent does over many prompts, with the totals that a survey of neurons keeps
   (`engine.survey`). The model is run as far as the SAE's site.
"""

from collections.abc import Sequence

import numpy as np
import torch

from engine.attribution.result import PatchMap
from engine.concepts.batching import stack
from engine.contract import Cancelled, IsCancelled, OnProgress, Question, RequestError, never
from engine.features import embed
from engine.hooks import require_finite
from engine.lens import require_neuron, values_of, written
from engine.loading import Loaded
from engine.neurons_contract import Survey
from engine.pieces import alone
from engine.prompts import build_prompt
from engine.running import FeatureCache
from engine.sae.activations import at_site, first_position
from engine.sae.contract import LatentLens, SeenLatent
from engine.sae.influence import require_latent
from engine.sae.sae import Sae
from engine.survey import Case, surveyed
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
    layers = layers_read(sae)
    read = [_cosines(written(loaded, layer), sae.W_enc[:, index]) for layer in layers]
    by = []
    if read:
        d_mlp = len(read[0])
        by = [(f"text.{layers[k // d_mlp]}.{k % d_mlp}", value) for k, value in _first(torch.cat(read), alike)]
    near = _cosines(sae.W_dec, row)
    near[index] = -2
    return LatentLens(promoted, suppressed, tuple(by), tuple(_first(near, min(alike, len(near) - 1))))


def layers_read(sae: Sae) -> range:
    """Layers whose neurons write to what the SAE reads."""
    place = sae.info
    return {"residual": range(place.layer + 1), "mlp": range(place.layer, place.layer + 1)}.get(place.site, range(0))


@torch.no_grad()
def neuron_readers(loaded: Loaded, sae: Sae, layer: int, index: int, top: int = 5) -> tuple[tuple[int, float], ...]:
    """See `engine.sae.contract.SaeEngine.neuron_readers`."""
    require_neuron(loaded, layer, index)
    if layer not in layers_read(sae):
        return ()
    return tuple(_first(_cosines(sae.W_enc.T, written(loaded, layer)[index]), top))


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
        peaks = H.max(0)
        for k, (peak, at) in enumerate(zip(peaks.values.tolist(), peaks.indices.tolist(), strict=True)):
            if peak > (found[k][-1].peak if len(found[k]) >= top else 0.0):
                heat = patches.averaged(H[patches.at, k]) if patches else None
                best = SeenLatent(indices[k], case, question.text, peak, at, prompt.grid, heat)
                found[k] = sorted([*found[k], best], key=lambda one: (-one.peak, one.case))[:top]
        if on_progress is not None:
            on_progress(case + 1, len(questions))
    return tuple(map(tuple, found))


def latent_survey(
    loaded: Loaded,
    sae: Sae,
    questions: Sequence[Question],
    on_progress: OnProgress | None = None,
    cancelled: IsCancelled = never,
) -> Survey:
    """See `engine.sae.contract.SaeEngine.latent_survey`."""

    def read(batch: Sequence[Case]) -> Sequence[torch.Tensor]:
        inputs = stack([case.inputs for case in batch], 0)
        values = at_site(loaded, inputs, sae.info.layer, sae.info.site)
        require_finite(values, f"the {sae.info.site} of layer {sae.info.layer}")
        return [sae.encode(values.to(sae.W_enc.device))]

    found = surveyed(loaded, (1, sae.info.n_latents), read, questions, on_progress, cancelled)
    found.neurons["case"][found.neurons["value"] <= 0] = -1
    return found
