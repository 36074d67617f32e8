"""Fuzzy memberships of an SAE's latents in concepts, by the machinery of neurons (METHODS.md §2.1–2.3).

1. A probe's target S is the part of the expected answer that says the concept (of a contrast, the difference of its
   sides). The model reads prompt + answer, the SAE standing at its site with its error kept, and one backward pass
   gives e_{n,c} = H_{n,c} · ∂S/∂H_{n,c}. A latent's score is s(c) = Σ_n e_{n,c} over the positions where the SAE
   stands, as a neuron's is Σ_p activation × gradient; sides subtract.
2. Evidence share ŝ(c) = max(s, 0) / Σ_c' max(s, 0); the evidence of a concept is its mean over probes, kept as
   `engine.concepts.evidence.Evidence` of shape (1, n_latents), and membership follows from it as a neuron's does.
3. Probes share batches as neurons' do: one forward pass, and a backward pass that ends at the SAE's site.

The library of the shipped SAE: `python -m engine.sae.memberships build` (probes, map and contrast as the library of
neurons: `engine.concepts.build`). Does it hold? `python -m engine.sae.memberships validate`.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from engine.attribution.gradient import gradients_of, require_gradient
from engine.builtin import probes as world_probes
from engine.concepts.batching import BATCH, Row, side_values, stack
from engine.concepts.build import PROBES, concepts_from, world_concept_probes
from engine.concepts.building import WINDOW, batches, rows_of
from engine.concepts.evidence import Evidence, Shares, from_bytes, pack, to_bytes
from engine.concepts.fuzzy import Memberships, evidence_share
from engine.concepts.library import PHI, load, save
from engine.concepts.membership import prepare_one
from engine.concepts.probes import Probe
from engine.contract import Cancelled, IsCancelled, Library, OnProgress, RequestError, never
from engine.features import Seen, forward
from engine.hooks import Call, replace_site, require_finite
from engine.loading import BUILTIN, Loaded, quiet
from engine.loading import load as load_model
from engine.sae import loading
from engine.sae.contract import DEFAULT, LATENT_QUANTILE
from engine.sae.influence import standing_from
from engine.sae.sae import Sae

FOLDER = "concepts"
"""Where the library of an SAE's latents lies in the SAE's folder."""


def latent_scores(loaded: Loaded, sae: Sae, rows: Sequence[Row], firsts: Sequence[int]) -> torch.Tensor:
    """(rows, n_latents): Σ over positions of H · ∂S/∂H for each side of a probe, in one forward and one backward pass;
    in row k the SAE stands from position `firsts[k]` on. Raises NonFinite; RequestError where the model has no
    gradients."""
    require_gradient(loaded)
    pad = loaded.processor.tokenizer.pad_token_id
    size, begin = max(row.size for row in rows), min(row.length for row in rows) - 1
    leaves: list[torch.Tensor] = []

    def leaf(values: torch.Tensor, _call: Call) -> torch.Tensor:
        Z = values.detach().to(sae.W_enc.device).float()
        with torch.no_grad():
            H = sae.encode(Z)
            for k, first in enumerate(firsts):
                H[k, :first] = 0
        leaves.append(H.requires_grad_(True))
        made = sae.decode(leaves[-1])
        kept = Z + (made - made.detach())
        return kept.to(values.device, values.dtype)

    place = sae.info
    with torch.enable_grad(), replace_site(loaded.anatomy, place.layer, place.site, leaf):
        inputs = stack([row.inputs for row in rows], 0 if pad is None else int(pad))
        logits = forward(loaded, inputs, size - begin)
        value = side_values(logits, rows, begin)
        require_finite(value.detach(), "a probe's target value with the SAE in place")
        (slope,) = gradients_of(value.sum(), logits, leaves)
    totals = (leaves[0].detach() * slope.float()).sum(1)
    require_finite(totals, "the latents' scores of a probe")
    return totals


def latent_evidence(
    loaded: Loaded,
    sae: Sae,
    probes: Sequence[Probe],
    on_progress: OnProgress | None = None,
    cancelled: IsCancelled = never,
    batch: int = BATCH,
) -> Evidence:
    """Evidence shares of `probes` over the latents (1, n_latents), in their order; those that the model cannot take are
    left out. `probes` is read once, a window at a time. Raises Cancelled between batches."""
    shares: dict[int, Shares] = {}
    done = 0
    for start in range(0, len(probes), WINDOW):
        rows: dict[int, list[Row]] = {}
        firsts: dict[int, int] = {}
        kept: dict[str, Seen] = {}
        for k in range(start, min(start + WINDOW, len(probes))):
            if cancelled():
                raise Cancelled("Stopped between two probes.")
            try:
                ready = prepare_one(loaded, probes[k], kept)
            except RequestError:
                done += 1
                continue
            rows[k], firsts[k] = rows_of(loaded, ready), standing_from(loaded, ready.prompt, DEFAULT)
        for group in batches(loaded, rows, batch):
            if cancelled():
                raise Cancelled("Stopped between two batches of probes.")
            sides = [(k, row) for k in group for row in rows[k]]
            totals = latent_scores(loaded, sae, [row for _, row in sides], [firsts[k] for k, _ in sides]).cpu().numpy()
            for k in group:
                mine = [n for n, (of, _) in enumerate(sides) if of == k]
                score = sum(sides[n][1].part.sign * totals[n] for n in mine)
                shares[k] = pack(evidence_share(np.asarray(score, np.float32))[None])
            done += len(group)
            if on_progress is not None:
                on_progress(done, len(probes))
    return Evidence((1, sae.info.n_latents)).add(shares[k] for k in sorted(shares))


def shipped(folder: Path, sae: Sae, model_revision: str) -> Library:
    """The library of latents that lies beside an SAE in `folder`, memberships (1, n_latents); an empty one where there
    is none. Raises ModelRefused where it was made for other weights."""
    return load(folder / FOLDER, f"{model_revision} {sae.info.id}", (1, sae.info.n_latents))


def _evidence(loaded: Loaded, sae: Sae, work: Path, name: str, n: int) -> Evidence:
    """Evidence of a concept's `n` build probes, from `work` where it is already there for these weights."""
    path = work / loaded.revision / sae.info.id / f"{n}-{name.replace(' ', '_')}.npz"
    if path.is_file():
        return from_bytes(path.read_bytes())
    own = latent_evidence(loaded, sae, world_concept_probes(name, n, "build"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".tmp").write_bytes(to_bytes(own))
    path.with_suffix(".tmp").rename(path)
    return own


def build(loaded: Loaded, folder: Path, n: int, work: Path, quantile: float = LATENT_QUANTILE) -> int:
    """Write the library of the latents of the SAE in `folder` beside it; the number of concepts. The same weights give
    the same file."""
    sae = loading.read(str(folder)).to(loaded.device)
    found: dict[str, Memberships] = {}
    names, began = world_probes.concept_names(), time.monotonic()
    for k, concept in enumerate(names):
        found[concept.name] = _evidence(loaded, sae, work, concept.name, n).mean()
        print(f"{k + 1}/{len(names)} {concept.name} {time.monotonic() - began:.0f} s", flush=True)
    recipe = {
        "model_revision": f"{loaded.revision} {sae.info.id}",
        "method": "latents' gradient scores, error kept, summed over the positions where the SAE stands; evidence "
        "shares; specific among concepts of one kind",
        "map": PHI,
        "quantile": quantile,
        "mode": "specific",
        "probes": n,
        "split": "build",
        "command": f"python -m engine.sae.memberships build --probes {n} --quantile {quantile:g}",
    }
    save(folder / FOLDER, concepts_from(found, n, PHI, quantile), recipe)
    return len(found)


def main() -> None:
    """The command line."""
    from engine.sae.calls import SHIPPED
    from engine.sae.membership_checks import report

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("build", help="make the library of the shipped SAE's latents")
    making.add_argument("--probes", type=int, default=PROBES, help="probes a concept")
    making.add_argument("--quantile", type=float, default=LATENT_QUANTILE, help="of the membership map")
    making.add_argument("--work", type=Path, default=Path("var/latents"), help="where evidence is kept")
    checking = commands.add_parser("validate", help="turn concepts' latents off on held-out probes")
    checking.add_argument("--concepts", type=int, default=20, help="how many, spread over all kinds")
    checking.add_argument("--probes", type=int, default=20, help="held-out probes a concept")
    checking.add_argument("--split", choices=("dev", "test"), default="test", help="whose probes")
    checking.add_argument("--alpha", type=float, default=0.5, help="of the α-cut that is turned off")
    checking.add_argument("--json", action="store_true", help="figures as JSON")
    for one in (making, checking):
        one.add_argument("--sae", type=Path, default=SHIPPED / "world-residual-2", help="the SAE's folder")
        one.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    quiet()
    torch.set_num_threads(given.threads)
    loaded = load_model(BUILTIN)
    if given.command == "build":
        number = build(loaded, given.sae, given.probes, given.work, given.quantile)
        print(f"{number} concepts written to {given.sae / FOLDER}")
    else:
        print(report(loaded, given.sae, given.concepts, given.probes, given.alpha, given.split, as_json=given.json))


if __name__ == "__main__":
    main()
