"""Lens: what a neuron's write vector says in tokens (after nostalgebraist's logit lens, 2020, and Geva et al. 2022).

1. u = v_{l,i}, through the weight γ' of the layer's post-norm where there is one, and through the final norm's γ:
   u = v ⊙ γ' ⊙ γ; a LayerNorm takes the mean away first.
2. A token's value is ⟨u, W_U[t]⟩ × (the model's logit scale), less the mean over all tokens, for a constant added to
   all logits changes no probability.
3. Both norms' scales ρ are left out: they depend on the position, and only lengthen or shorten all values together. So
   is what later layers make of the write. Values compare within a neuron.
4. Neurons alike: the cosine of v ⊙ γ' with that of every other neuron.
"""

from collections.abc import Iterator

import numpy as np
import torch

from engine.anatomy import norm_map
from engine.contract import Cancelled, IsCancelled, OnProgress, UnknownName, never
from engine.loading import Loaded
from engine.neurons_contract import Lens, LensToken, Promotions
from engine.pieces import alone
from engine.weights import weight

CHUNK = 2**26
"""Values (neurons × tokens) that are held at once."""


def require_neuron(loaded: Loaded, layer: int, index: int) -> None:
    """Raises UnknownName."""
    n_layers, d_mlp = loaded.anatomy.n_layers, loaded.anatomy.d_mlp
    if not (0 <= layer < n_layers and 0 <= index < d_mlp):
        raise UnknownName(
            f"There is no neuron text.{layer}.{index}: layers go from 0 to {n_layers - 1}, indices to {d_mlp - 1}."
        )


def _through(norm: torch.nn.Module, vectors: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`vectors` (…, d_model) through the norm's weight, its scale left out."""
    signs = torch.ones(1, vectors.shape[-1], dtype=dtype, device=vectors.device)
    signs[:, 1::2] = -1  # its scale is 1
    gain, centred = norm_map(norm, signs)
    if centred:
        vectors = vectors - vectors.mean(-1, keepdim=True)
    return vectors * gain[0].to(vectors.device)


@torch.no_grad()
def written(loaded: Loaded, layer: int) -> torch.Tensor:
    """(d_mlp, d_model) float32: what each neuron adds to the stream per unit of activation, a post-norm's scale left
    out."""
    vectors = loaded.anatomy.write_vectors(layer)
    norm = loaded.anatomy.mlp_norms[layer]
    return vectors.float() if norm is None else _through(norm, vectors.float(), vectors.dtype)


@torch.no_grad()
def values_of(loaded: Loaded, vectors: torch.Tensor, unembedding: torch.Tensor) -> torch.Tensor:
    """(neurons, d_vocab): how far each of `written` vectors moves every token's logit. `unembedding` float32."""
    vectors = vectors.to(unembedding.device)
    final = _through(loaded.anatomy.final_norm, vectors, loaded.model.dtype)
    values = final @ unembedding.T * loaded.anatomy.logit_scale
    return values - values.mean(-1, keepdim=True)


def _unembedding(loaded: Loaded) -> torch.Tensor:
    return weight(loaded.anatomy.unembedding).detach().float()


def _tokens(loaded: Loaded, values: torch.Tensor, top: int) -> tuple[LensToken, ...]:
    """The `top` of largest value, ties by id."""
    order = np.argsort(-values.cpu().numpy(), kind="stable")[:top].tolist()
    return tuple(LensToken(alone(loaded.processor.tokenizer, k), k, float(values[k])) for k in order)


@torch.no_grad()
def lens(loaded: Loaded, layer: int, index: int, top: int = 12, alike: int = 10) -> Lens:
    """See `engine.neurons_contract.Lens`."""
    require_neuron(loaded, layer, index)
    own = written(loaded, layer)[index]
    values = values_of(loaded, own[None], _unembedding(loaded))[0, : len(loaded.processor.tokenizer)]
    notes = []
    if loaded.anatomy.mlp_norms[layer] is not None:
        notes.append("A norm stands behind this layer’s MLP; the write vector is taken through its weight.")
    if loaded.anatomy.soft_cap is not None:
        notes.append("This model bounds its logits; the lens is about the logits before that.")
    return Lens(
        _tokens(loaded, values, top),
        tuple(LensToken(token.text, token.id, -token.value) for token in _tokens(loaded, -values, top)),
        _alike(loaded, layer, index, own, alike),
        tuple(notes),
    )


def _alike(loaded: Loaded, layer: int, index: int, own: torch.Tensor, top: int) -> tuple[tuple[str, float], ...]:
    d_mlp = loaded.anatomy.d_mlp
    cosines = np.zeros((loaded.anatomy.n_layers, d_mlp), np.float32)
    for other in range(len(cosines)):
        vectors = written(loaded, other)
        mine = own.to(vectors.device)
        cosines[other] = torch.nn.functional.cosine_similarity(vectors, mine[None], dim=-1).cpu().numpy()
    cosines[layer, index] = -2
    nearest = np.argsort(-cosines.ravel(), kind="stable")[: min(top, cosines.size - 1)].tolist()
    return tuple((f"text.{flat // d_mlp}.{flat % d_mlp}", float(cosines.ravel()[flat])) for flat in nearest)


def _layers(
    loaded: Loaded, top: int, on_progress: OnProgress | None, cancelled: IsCancelled
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(ids, values), each (d_mlp, top), of every layer in turn."""
    unembedding, known = _unembedding(loaded), len(loaded.processor.tokenizer)
    rows = max(1, CHUNK // len(unembedding))
    for layer in range(loaded.anatomy.n_layers):
        if cancelled():
            raise Cancelled("Stopped between two layers.")
        groups = torch.split(written(loaded, layer), rows)
        parts = [values_of(loaded, vectors, unembedding)[:, :known].topk(top) for vectors in groups]
        yield torch.cat([part.indices.cpu() for part in parts]), torch.cat([part.values.cpu() for part in parts])
        if on_progress is not None:
            on_progress(layer + 1, loaded.anatomy.n_layers)


def promotions(
    loaded: Loaded, top: int = 5, on_progress: OnProgress | None = None, cancelled: IsCancelled = never
) -> Promotions:
    """See `engine.neurons_contract.NeuronEngine.promotions`."""
    with torch.no_grad():
        found = list(_layers(loaded, top, on_progress, cancelled))
    ids = torch.stack([layer for layer, _ in found]).numpy().astype(np.int64)
    values = torch.stack([layer for _, layer in found]).numpy().astype(np.float32)
    tokenizer = loaded.processor.tokenizer
    return Promotions(ids, values, {int(k): alone(tokenizer, int(k)) for k in np.unique(ids)})
