"""A sparse autoencoder as tensors, in float32.

    H = σ(Z W_enc + b_enc),   Ẑ = H W_dec + b_dec        Z (…, d_model), H (…, n_latents)

σ by architecture:

- `standard`: ReLU.
- `topk`: ReLU of the k largest of each position; the others are exactly zero (Gao et al. 2024).
- `jumprelu`: x where x > θ and x > 0, else exactly zero; θ = a threshold for each latent (Rajamanoharan et al. 2024).

Whatever else a format does before or after (subtracting b_dec from Z, say) is folded into these four on loading.
"""

import dataclasses
import hashlib

import torch

from engine.contract import NonFinite, RequestError
from engine.sae.contract import ARCHITECTURES, SITES, SaeInfo


@dataclasses.dataclass(frozen=True)
class Sae:
    """`W_enc` (d_model, n_latents), `W_dec` (n_latents, d_model), `b_enc` (n_latents,), `b_dec` (d_model,); `threshold`
    (n_latents,) of JumpReLU, None of the others. `info` says the rest."""

    info: SaeInfo
    W_enc: torch.Tensor
    W_dec: torch.Tensor
    b_enc: torch.Tensor
    b_dec: torch.Tensor
    threshold: torch.Tensor | None = None

    def before(self, Z: torch.Tensor) -> torch.Tensor:
        """(…, n_latents): what σ is given."""
        return Z.float() @ self.W_enc + self.b_enc

    def encode(self, Z: torch.Tensor) -> torch.Tensor:
        """H (…, n_latents) of Z (…, d_model); nothing below zero, and exact zeros where a latent is not active."""
        given = self.before(Z)
        if self.threshold is not None:
            return given.where((given > self.threshold) & (given > 0), 0.0)
        if self.info.k is not None and self.info.k < given.shape[-1]:
            kept = given.topk(self.info.k, dim=-1)
            return torch.zeros_like(given).scatter(-1, kept.indices, kept.values.relu())
        return given.relu()

    def decode(self, H: torch.Tensor) -> torch.Tensor:
        """Ẑ (…, d_model) of H (…, n_latents)."""
        return H @ self.W_dec + self.b_dec

    def to(self, device: torch.device | str) -> "Sae":
        threshold = None if self.threshold is None else self.threshold.to(device)
        W_enc, W_dec, b_enc, b_dec = (t.to(device) for t in (self.W_enc, self.W_dec, self.b_enc, self.b_dec))
        return Sae(self.info, W_enc, W_dec, b_enc, b_dec, threshold)


def make(info: SaeInfo, tensors: dict[str, torch.Tensor]) -> Sae:
    """An SAE of `tensors` (W_enc, W_dec, b_enc, b_dec, threshold), its id set to their hash; `info`'s widths are taken
    from them. Raises RequestError for what does not go together, NonFinite for a NaN or infinity."""
    wanted = {"W_enc", "W_dec", "b_enc", "b_dec"} | ({"threshold"} if info.architecture == "jumprelu" else set())
    if info.architecture not in ARCHITECTURES:
        raise RequestError(
            f"“{info.name}” is a {info.architecture!r} SAE. Those that can be used: {', '.join(ARCHITECTURES)}."
        )
    if info.site not in SITES:
        raise RequestError(f"“{info.name}” stands at {info.site!r}. Sites that can be used: {', '.join(SITES)}.")
    if set(tensors) != wanted:
        missing, more = sorted(wanted - set(tensors)), sorted(set(tensors) - wanted)
        words = f"lacks {', '.join(missing)}" if missing else f"also holds {', '.join(more)}, whose use is not known"
        raise RequestError(f"“{info.name}”, a {info.architecture} SAE, {words}. Choose other files.")
    if tensors["W_enc"].ndim != 2:
        raise RequestError(f"W_enc of “{info.name}” has {tensors['W_enc'].ndim} axes; it must have 2.")
    d_model, n_latents = tensors["W_enc"].shape
    shapes = {"W_enc": (d_model, n_latents), "W_dec": (n_latents, d_model), "b_dec": (d_model,)}
    for name in sorted(wanted):
        tensor, shape = tensors[name], shapes.get(name, (n_latents,))
        if tuple(tensor.shape) != shape:
            raise RequestError(
                f"{name} of “{info.name}” is {tuple(tensor.shape)}; beside its W_enc it must be {shape}."
            )
        if not bool(torch.isfinite(tensor).all()):
            raise NonFinite(f"{name} of “{info.name}” holds a NaN or an infinity. Load another copy of it.")
    if (info.architecture == "topk") != (info.k is not None):
        raise RequestError(
            f"“{info.name}” is {info.architecture}, and its k is {info.k}. A topk SAE needs a k, others none."
        )
    if info.k is not None and not 1 <= info.k <= n_latents:
        raise RequestError(f"k of “{info.name}” is {info.k}; it must lie between 1 and its {n_latents} latents.")
    ready = {name: tensor.detach().float().contiguous() for name, tensor in tensors.items()}
    digest = hashlib.sha256(f"{info.layer} {info.site} {info.architecture} {info.k}".encode())
    for name in sorted(ready):
        digest.update(ready[name].cpu().numpy().tobytes())
    info = dataclasses.replace(info, id=digest.hexdigest()[:16], d_model=int(d_model), n_latents=int(n_latents))
    return Sae(info, **ready)


@torch.no_grad()
def fit_of(sae: Sae, Z: torch.Tensor) -> tuple[float, float, torch.Tensor]:
    """Explained variance and L0 over positions Z (pos, d_model), and which latents are active at one of them
    (n_latents,) bool. The variance is that around the positions' mean; 1 where there is none."""
    Z = Z.float()
    H = sae.encode(Z)
    lost = float((Z - sae.decode(H)).double().pow(2).sum())
    whole = float((Z - Z.mean(0)).double().pow(2).sum())
    active = H > 0
    return 1 - lost / whole if whole else 1.0, float(active.sum(-1).double().mean()), active.any(0)
