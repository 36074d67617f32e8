"""GradSAE: which latents of an SAE an answer depends on, by one forward and one backward pass (METHODS.md §4).

1. The model reads prompt + answer, teacher-forced. At the SAE's site H = σ(Z W_enc + b_enc) is made a leaf, and what
   goes on is Z itself, as H W_dec + b_dec + (Z − Ẑ) with the last term held fixed (*error kept*: the answer's
   probability is the model's own, to the bit), or Ẑ = H W_dec + b_dec alone (*error dropped*).
2. Y = the whole answer, or its first token alone; S = its log-probability, or its probability.
3. One backward pass, which ends at the site, gives ∂S/∂H, and with it every latent's at every position at once:
   e_{n,c} = H_{n,c} · ∂S/∂H_{n,c}, to first order what S loses when that entry is zeroed. Where H is 0, e is 0.
4. Influence of latent c: the mean over positions n of max(e_{n,c}, 0) (the paper's), or max of the mean and 0.

Where an SAE *stands*: at all positions but the first one, where its token is reserved (a beginning of sequence): that
is an attention sink many times as long as the others, on which SAEs are not trained; what they make of it says nothing
and can break the answer. `Settings.bos` puts it in. Other reserved tokens stay in: a chat's last role mark is what
predicts the answer.

Default: the whole answer's log-probability, error kept, first position out, positive part of each entry. ∂p = p ∂log p:
a probability ranks the same latents in the same order and only shrinks with the answer's length. With the error kept it
is the model's own answer that is explained, not that of the model with an SAE in it. The positive part of each entry is
the paper's: a latent that helps at one place and harms at another has not done nothing.

The yardstick, `ablation`: S − S(that latent zeroed at every position where the SAE stands), run for each latent.

Source: *Beyond Input Activations: Identifying Influential Latents by Gradient Sparse Autoencoders*, EMNLP 2025. Its
baseline is the mean activation. Heat maps and modality sums of e are ours.
Cost: one forward pass and a backward pass through the layers after the site.
"""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch

from engine.attribution.gradient import gradients_of, require_gradient
from engine.attribution.result import PatchMap
from engine.contract import MODALITIES, BadTarget, Cancelled, IsCancelled, OnProgress, UnknownName, never
from engine.features import Seen, embed, forward
from engine.hooks import Call, intervene, replace_site, require_finite
from engine.interventions import NO_EDITS, Edits
from engine.loading import Loaded
from engine.prompts import Prompt
from engine.running import with_answer
from engine.sae.activations import first_position
from engine.sae.contract import Influence, LatentScore, SaeFit, Settings, check_settings, listed
from engine.sae.fit import fit_and_warn
from engine.sae.sae import Sae
from engine.targets import token_logprobs

BATCH = 16

Change = Callable[[torch.Tensor, Call], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Case:
    """A question and its answer, ready to be explained. `ids` = Y's; `first` = how many positions at the beginning the
    SAE does not stand at."""

    loaded: Loaded
    sae: Sae
    settings: Settings
    prompt: Prompt
    features: Seen | None
    ids: tuple[int, ...]
    first: int
    edits: Edits = NO_EDITS

    @classmethod
    def of(
        cls,
        loaded: Loaded,
        sae: Sae,
        settings: Settings,
        prompt: Prompt,
        features: Seen | None,
        ids: Sequence[int],
        edits: Edits = NO_EDITS,
    ) -> "Case":
        """Raises UnknownName for a setting that does not exist, BadTarget for an empty answer."""
        check_settings(settings)
        if not ids:
            raise BadTarget(
                "The answer is empty: there is nothing that a latent could influence. Ask another question."
            )
        own = tuple(ids) if settings.of == "answer" else (ids[0],)
        return cls(loaded, sae, settings, prompt, features, own, standing_from(loaded, prompt, settings), edits)

    @property
    def modality(self) -> tuple[str, ...]:
        return (*self.prompt.modality, *["answer"] * len(self.ids))

    def run(self, change: Change, rows: int = 1) -> torch.Tensor:
        """(rows, tokens, d_vocab) logits at the positions that predict Y, with `change` at the SAE's site."""
        inputs = embed(self.loaded, with_answer(self.prompt, self.ids), self.features)
        with ExitStack() as inside:
            inside.enter_context(intervene(self.loaded.anatomy, [self.edits] * rows))
            place = self.sae.info
            inside.enter_context(replace_site(self.loaded.anatomy, place.layer, place.site, change))
            given = inputs.repeat(rows) if rows > 1 else inputs
            return forward(self.loaded, given, len(self.ids) + 1)[:, :-1]

    def value(self, logits: torch.Tensor) -> torch.Tensor:
        """S of one row's logits (tokens, d_vocab)."""
        total = token_logprobs(logits, self.ids).sum()
        return total if self.settings.quantity == "logprob" else total.exp()


def standing_from(loaded: Loaded, prompt: Prompt, settings: Settings) -> int:
    """The first position at which the SAE stands."""
    return 0 if settings.bos else first_position(loaded, prompt)


def standing(sae: Sae, settings: Settings, first: int, zeroed: Sequence[torch.Tensor] = ()) -> Change:
    """The SAE in place, for `replace_site`: error kept or dropped, and in row k the latents `zeroed[k]` (indices) zero
    at every position from `first` on. Without an error to drop nor a latent to zero the values stay bit-equal."""

    def change(values: torch.Tensor, call: Call) -> torch.Tensor:
        skip = min(max(first - call.start, 0), call.length)
        if skip == call.length:
            return values
        rows = []
        for k in range(call.rows):
            gone = zeroed[k] if zeroed else torch.empty(0, dtype=torch.long)
            if settings.keep_error and not len(gone):
                rows.append(values[k, skip:])
                continue
            Z = values[k, skip:].to(sae.W_enc.device).float()
            H = sae.encode(Z)
            if settings.keep_error:
                made = Z - H[:, gone] @ sae.W_dec[gone]
            else:
                made = sae.decode(H.index_fill(1, gone.to(H.device), 0.0))
            rows.append(made.to(values.device, values.dtype))
        return torch.cat([values[:, :skip], torch.stack(rows)], 1)

    return change


def influence(case: Case, spread: torch.Tensor | None, top: int = 50, cancelled: IsCancelled = never) -> Influence:
    """See `engine.sae.contract.Influence`. `spread`: see `PatchMap`."""
    require_gradient(case.loaded)
    if cancelled():
        raise Cancelled("Stopped before the influence was computed.")
    sae, settings, first = case.sae, case.settings, case.first
    leaves: list[torch.Tensor] = []
    seen: list[torch.Tensor] = []

    def leaf(values: torch.Tensor, _call: Call) -> torch.Tensor:
        values = values.detach()
        Z = values[0, first:].to(sae.W_enc.device).float()
        with torch.no_grad():
            H = sae.encode(Z)
        leaves.append(H.requires_grad_(True))
        seen.append(Z)
        made = sae.decode(leaves[-1])
        if settings.keep_error:
            made = Z + (made - made.detach())
        return torch.cat([values[:, :first], made[None].to(values.device, values.dtype)], 1)

    with torch.enable_grad():
        logits = case.run(leaf)
        value = case.value(logits[0])
        require_finite(value.detach(), "the answer's probability with the SAE in place")
        H = leaves[0]
        (slope,) = gradients_of(value, logits, [H])
    H = H.detach()
    entries = H * slope.float()
    require_finite(entries, "the latents' influence")
    per_latent = entries.clamp(min=0).mean(0) if settings.positive == "entry" else entries.mean(0).clamp(min=0)
    fit = fit_and_warn(sae, seen[0], case.loaded.revision)
    return _result(case, H, entries, per_latent, fit, float(value.detach()), spread, top)


def _result(
    case: Case,
    H: torch.Tensor,
    entries: torch.Tensor,
    per_latent: torch.Tensor,
    fit: SaeFit,
    value: float,
    spread: torch.Tensor | None,
    top: int,
) -> Influence:
    kinds = case.modality[case.first :]
    mean = H.mean(0)
    scores, means = per_latent.cpu().numpy(), mean.cpu().numpy()
    chosen = listed(scores, means, top)
    parts = torch.stack([entries[[k for k, kind in enumerate(kinds) if kind == name]].sum(0) for name in MODALITIES])
    patches = PatchMap.of(case.prompt.grid, case.modality, spread)
    heats = seen = whole = None
    if patches is not None:
        at = [p - case.first for p in patches.at]
        heats = patches.dealt(entries[at][:, chosen].T)
        seen = patches.averaged(H[at][:, chosen].T)
        whole = patches.dealt(entries[at].clamp(min=0).sum(-1))
    peaks = H.max(0)
    latents = tuple(
        LatentScore(
            index=c,
            influence=float(scores[c]),
            mean_activation=float(means[c]),
            by_modality=(float(parts[0, c]), float(parts[1, c]), float(parts[2, c]), float(parts[3, c])),
            peak=float(peaks.values[c]),
            at=int(peaks.indices[c]) + case.first,
            heat=None if heats is None else heats[k],
            activation=None if seen is None else seen[k],
        )
        for k, c in enumerate(chosen)
    )
    return Influence(
        sae=case.sae.info,
        settings=case.settings,
        value=value,
        fit=fit,
        influence=scores,
        mean_activation=means,
        active=(H > 0).any(0).cpu().numpy(),
        latents=latents,
        grid=case.prompt.grid,
        heat=whole,
        last_active=int((H[len(case.prompt.modality) - 1 - case.first] > 0).sum()),
    )


@torch.no_grad()
def ablation(
    case: Case,
    latents: Sequence[int],
    batch: int = BATCH,
    on_progress: OnProgress | None = None,
    cancelled: IsCancelled = never,
) -> torch.Tensor:
    """(latents,): S − S(each alone zeroed wherever the SAE stands), exact; 0 for those that are nowhere active."""
    sae, first = case.sae, case.first
    for c in latents:
        require_latent(sae, c)
    states: list[torch.Tensor] = []

    def base(values: torch.Tensor, call: Call) -> torch.Tensor:
        states.append(sae.encode(values[0, first:].to(sae.W_enc.device)))
        return standing(sae, case.settings, first)(values, call)

    whole = float(case.value(case.run(base)[0]))
    active = (states[0] > 0).any(0)
    wanted = [c for c in dict.fromkeys(latents) if bool(active[c])]
    lost: dict[int, float] = {}
    for start in range(0, len(wanted), batch):
        if cancelled():
            raise Cancelled("Stopped between two batches of ablated latents.")
        some = torch.tensor(wanted[start : start + batch], device=sae.W_enc.device)

        def without(values: torch.Tensor, call: Call, some: torch.Tensor = some) -> torch.Tensor:
            kept = standing(sae, case.settings, first)(values, call)
            writes = states[0][:, some].T[:, :, None] * sae.W_dec[some][:, None]
            made = kept[:, first:].to(writes.device).float() - writes
            return torch.cat([values[:, :first], made.to(values.device, values.dtype)], 1)

        logits = case.run(without, len(some))
        require_finite(logits, "the logits of an ablated run")
        for k, c in enumerate(some.tolist()):
            lost[c] = whole - float(case.value(logits[k]))
        if on_progress is not None:
            on_progress(min(start + batch, len(wanted)), len(wanted))
    return torch.tensor([lost.get(c, 0.0) for c in latents])


def require_latent(sae: Sae, index: int) -> None:
    """Raises UnknownName."""
    if not 0 <= index < sae.info.n_latents:
        raise UnknownName(
            f"There is no latent sae.{sae.info.name}.{index}: its latents go from 0 to {sae.info.n_latents - 1}."
        )
