"""Latents of a sparse autoencoder (METHODS.md §4): what the jobs about them ask of the engine, and what they keep.

`latents` (quick; of a run, see longjobs.LATENTS): how much its answer depends on each latent. `latentablation` (of a
run, see longjobs.EXACT): what it loses without each of the first of them. Single latents are looked up by
`latentsurveys`. All name the SAE by its id, which hashes its weights.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.arrays import pack
from app.jobs import Job
from engine.contract import Engine, IsCancelled, OnProgress, Question, RequestError, saes

TOP = 50
"""Latents that are kept with their parts and heat maps: as many by influence, and by mean activation."""
FIELDS: dict[str, dict[str, Any]] = {
    "of": {"answer": "answer", "next": "next"},
    "quantity": {"logprob": "logprob", "probability": "probability"},
    "keep_error": {"kept": True, "dropped": False},
    "bos": {"out": False, "in": True},
    "positive": {"entry": "entry", "mean": "mean"},
}
"""Of each part of a variant: what its form field says → what it means; the default first."""

SIZES = (1, 5, 10)
"""How many of a run's first latents are swapped."""
VALUES = {"peak": "peak", "mean_activation": "mean activation"}
"""What latents that are swapped in are set to: what is stored of it in a ranking, and what that is called."""


def field_of(part: str) -> str:
    """The name of a part's form field; a run's address has a `quantity` of its own."""
    return f"latents-{part.replace('_', '-')}"


def settings_of(given: Mapping[str, str]) -> saes.Settings:
    """The variant that form fields ask for. Raises RequestError."""
    parts = {}
    for part, known in FIELDS.items():
        said = given.get(field_of(part)) or next(iter(known))
        if said not in known:
            raise RequestError(f"“{said[:40]}” is no choice of {field_of(part)}. Choose one of {', '.join(known)}.")
        parts[part] = known[said]
    return saes.Settings(**parts)


def params_of(sae: saes.SaeInfo, settings: saes.Settings) -> dict[str, Any]:
    """What a ranking of latents depends on beside its run and target."""
    return {"sae": sae.id, "name": sae.name, "settings": dataclasses.asdict(settings)}


def rank(
    engine: Engine, params: Mapping[str, Any], of: Job, question: Question, cancelled: IsCancelled
) -> tuple[dict[str, Any], bytes | None]:
    """(result, arrays). `points` (3, active): index, influence and mean activation of every active latent; `heats` and
    `activations` (latents, rows, cols) of those that are listed."""
    settings = saes.Settings(**params["settings"])
    found = engine.latent_influence(
        question, of.original_ids, params["sae"], settings, of.steering, TOP, cancelled=cancelled
    )
    active = np.flatnonzero(found.active)
    points = np.stack([active, found.influence[active], found.mean_activation[active]])
    sae = dataclasses.asdict(found.sae)
    result = {
        "sae": {name: sae[name] for name in sae if name not in ("card", "fits")},
        "settings": params["settings"],
        "value": finite(found.value),
        "fit": {
            "explained_variance": finite(found.fit.explained_variance),
            "l0": finite(found.fit.l0),
            "dead_share": finite(found.fit.dead_share),
            "warnings": list(found.fit.warnings),
        },
        "grid": [found.grid.rows, found.grid.cols, list(found.grid.box)] if found.grid else None,
        "active": len(active),
        "latents": [
            {
                "index": int(one.index),
                "influence": float(one.influence),
                "mean_activation": float(one.mean_activation),
                "by_modality": [float(part) for part in one.by_modality],
                "peak": float(one.peak),
                "at": int(one.at),
            }
            for one in found.latents
        ],
    }
    heats = [one.heat for one in found.latents if one.heat is not None]
    activations = [one.activation for one in found.latents if one.activation is not None]
    kept = {
        "points": points.astype(np.float32),
        "heat": found.heat,
        "heats": np.stack(heats).astype(np.float32) if heats else None,
        "activations": np.stack(activations).astype(np.float32) if activations else None,
    }
    return result, pack(kept)


def finite(value: float) -> float | None:
    """JSON has no word for what is not finite."""
    return float(value) if math.isfinite(value) else None


def image_share(parts: Sequence[float]) -> float:
    """The image's part of Σ |modality|; 0 if all are zero."""
    whole = sum(map(abs, parts))
    return abs(parts[0]) / whole if whole else 0.0


def look_params(revision: str, sae: Mapping[str, Any], index: int, survey: str) -> dict[str, Any]:
    """What is looked up of a latent, and in which survey (its file, or ''). `sae`: its id and name, at least."""
    return {"model_revision": revision, "sae": sae["id"], "name": sae["name"], "index": index, "survey": survey}


def ablate(
    engine: Engine, params: Mapping[str, Any], of: Job, question: Question, on_progress: OnProgress,
    cancelled: IsCancelled,
) -> tuple[dict[str, Any], bytes | None]:  # fmt: skip
    """`lost` of each of `latents`: what the answer's quantity loses when it alone is zeroed."""
    settings = saes.Settings(**params["settings"])
    lost = engine.latent_ablation(
        question, of.original_ids, params["sae"], params["latents"], settings, of.steering, on_progress, cancelled
    )
    return {"latents": params["latents"], "lost": [finite(value) for value in lost.tolist()]}, None
