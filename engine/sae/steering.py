"""Turning latents of attached SAEs up and down (METHODS.md §3, §4).

1. At an SAE's site, at a position where it stands (see `engine.sae.influence`: not at a reserved first one) and the
   steering acts, H = σ(Z W_enc + b_enc) is read and H' made of it: `scale` multiplies by the value, `add` adds it (also
   to a latent that is not active), `set` replaces by it. Turns of one latent act one after the other.
2. The site gives Z + (H' − H) W_dec: computed in float32, brought to the model's dtype. What the SAE does not explain
   stays. Where H' = H nothing is added, and the values stay bit-equal.
3. H' is *not clamped* at 0: what is added is linear in the value, so turning a latent down below nothing pushes the
   stream away from its decoder row as far as the same value the other way pushes it there, and a sweep through 0 shows
   both sides. A latent that is set to 0 is gone, as in `engine.sae.influence.ablation`.
4. Neurons of the same and earlier layers are edited before; SAEs at one site read the same Z, and their writes add up.
5. The *control* deals the same edits to as many other latents of the same SAE, drawn with the seed among those that are
   active in this prompt (at a position where the SAE stands), the rest among all others where these are too few: an
   inactive latent is none that a factor does anything to.

Differentiable: H depends on Z.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.contract import EngineError, RequestError, Steering
from engine.interventions import Edits, LatentEdit, LayerEdit, Places, then
from engine.sae.sae import Sae
from engine.turns import check_latent

if TYPE_CHECKING:  # hooks register what is made here
    from engine.hooks import Call

Active = Callable[[Sae], torch.Tensor]
"""(n_latents,) bool: which latents of an SAE are active in a prompt."""


def compile_latents(
    steering: Steering, sae_of: Callable[[str], Sae], first: int, active: Active
) -> tuple[LatentEdit, ...]:
    """A steering's turns of latents as tensors, an edit for each SAE. `sae_of(name)` raises what an unknown SAE, or one
    that does not fit, is refused with; `first` = the first position where SAEs stand; `active` is asked under `control`
    alone. Latents that end as they were (`scale` 1) are left out."""
    found: dict[str, Sae] = {}
    edits: dict[str, dict[int, tuple[float, float]]] = {}
    for turn in steering.latents:
        sae = sae_of(turn.sae)
        check_latent(turn, sae.info.n_latents)
        found[sae.info.id] = sae
        mine = edits.setdefault(sae.info.id, {})
        mine[turn.index] = then(mine.get(turn.index, (1.0, 0.0)), turn.operation, turn.value)
    made = []
    for key, sae in found.items():
        mine = edits[key]
        if steering.control is not None:
            mine = _dealt(mine, sae, active(sae), steering.control)
        turned = sorted((c, edit) for c, edit in mine.items() if edit != (1.0, 0.0))
        if turned:
            device = sae.W_enc.device
            index = torch.tensor([c for c, _ in turned], device=device)
            scale, shift = (torch.tensor([edit[k] for _, edit in turned], device=device) for k in (0, 1))
            made.append(LatentEdit(sae, LayerEdit(index, scale, shift), first))
    return tuple(made)


def _dealt(
    chosen: dict[int, tuple[float, float]], sae: Sae, active: torch.Tensor, seed: int
) -> dict[int, tuple[float, float]]:
    """The control: see the module's text."""
    if 2 * len(chosen) > sae.info.n_latents:
        raise RequestError(
            f"“{sae.info.name}” has {sae.info.n_latents} latents of which {len(chosen)} are turned: too many for a "
            "random control set."
        )
    rng = np.random.default_rng(seed)
    drawn = [c for c in rng.permutation(sae.info.n_latents).tolist() if c not in chosen]
    drawn.sort(key=lambda c: not bool(active[c]))  # stable: the order of the draw within both
    return dict(zip(drawn, chosen.values(), strict=False))


def changes(rows: Sequence[Edits]) -> dict[tuple[int, str], "Callable[[torch.Tensor, Call], torch.Tensor]"]:
    """{(layer, site): what `hooks.replace_site` is to do there} for the latents' edits of a batch's rows."""
    by_site: dict[tuple[int, str], dict[str, list[tuple[int, LatentEdit]]]] = {}
    for k, row in enumerate(rows):
        for edit in row.latents:
            info = edit.sae.info
            by_site.setdefault((info.layer, info.site), {}).setdefault(info.id, []).append((k, edit))
    places = Places(rows)
    return {place: _change([_Turned(mine) for mine in saes.values()], places) for place, saes in by_site.items()}


def _change(turned: Sequence["_Turned"], places: Places) -> "Callable[[torch.Tensor, Call], torch.Tensor]":
    def change(values: torch.Tensor, call: "Call") -> torch.Tensor:
        if call.rows != len(places.masks):
            raise EngineError(f"The steering has {len(places.masks)} rows but the batch has {call.rows}.")
        acts = places.at(call.start, call.length)
        made = values
        for one in turned:
            made = one.write(values, made, acts, call.start)
        return made

    return change


class _Turned:
    """One SAE's edits of a batch: every latent that any row turns, and each row's own gain and shift of it, so that
    H' − H = H · gain + shift."""

    def __init__(self, rows: Sequence[tuple[int, LatentEdit]]) -> None:
        whole = rows[0][1].sae
        self.index = torch.unique(torch.cat([edit.edit.index for _, edit in rows]))
        self.sae, self.k = whole, whole.info.k
        shape = (len(rows), len(self.index))
        self.gain, self.shift = whole.W_enc.new_zeros(shape), whole.W_enc.new_zeros(shape)
        self.first = {k: edit.first for k, edit in rows}
        self.of = {k: place for place, (k, _) in enumerate(rows)}
        for place, (_, edit) in enumerate(rows):
            at = torch.searchsorted(self.index, edit.edit.index)
            self.gain[place, at] = edit.edit.scale - 1
            self.shift[place, at] = edit.edit.shift
        self.decoder = whole.W_dec[self.index]
        threshold = None if whole.threshold is None else whole.threshold[self.index]
        columns, bias = whole.W_enc[:, self.index], whole.b_enc[self.index]
        self.few = Sae(whole.info, columns, self.decoder, bias, whole.b_dec, threshold)

    def read(self, Z: torch.Tensor) -> torch.Tensor:
        """(…, k): H of the turned latents alone; TopK must see the others beside them."""
        return self.few.encode(Z) if self.k is None else self.sae.encode(Z)[..., self.index]

    def write(self, values: torch.Tensor, made: torch.Tensor, acts: torch.Tensor, start: int) -> torch.Tensor:
        """`made` (rows, pos, d_model) and what the edits of `values` add to it where `acts` (rows, pos)."""
        mine = torch.zeros_like(acts)
        for k, first in self.first.items():
            mine[k, max(first - start, 0) :] = acts[k, max(first - start, 0) :]
        if not bool(mine.any()):
            return made
        row, at = mine.nonzero(as_tuple=True)
        own = torch.tensor([self.of[k] for k in row.tolist()], device=self.gain.device)
        row, at = row.to(values.device), at.to(values.device)
        H = self.read(values[row, at].to(self.gain.device))
        more = H * self.gain[own] + self.shift[own]
        written = (more @ self.decoder).to(values.device)
        before = made[row, at]
        turned = (more != 0).any(-1, keepdim=True).to(values.device)
        after = torch.where(turned, (before.float() + written).to(before.dtype), before)
        return made.index_put((row, at), after)
