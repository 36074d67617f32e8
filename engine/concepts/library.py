"""A library of concepts on disk, and as one matrix for scoring.

One `.npz` file (no pickle) beside a JSON recipe. Memberships are stored as whole 255ths (uint8), which loses at most
1/510 of a membership and keeps a library of hundreds of concepts small in git; evidence below 1/510 of the top is out.
"""

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.concepts.fuzzy import Memberships
from engine.contract import Concept, Library, ModelRefused

BUILTIN_LIBRARY = Path(__file__).parent.parent / "builtin" / "concepts"
STEPS = 255
PHI, QUANTILE = "linear", 0.98
"""The membership map φ and its quantile where a library does not say otherwise; chosen on the `dev` split with
`engine.concepts.suppression` (docs/measurements.md)."""
EMPTY = Library("none", ())


@dataclasses.dataclass(frozen=True)
class MembershipMatrix:
    """`values` (concepts, n_layers · d_mlp) float32; row k is concept `names[k]`. `phi` and `quantile` are the map
    that made the memberships."""

    names: tuple[str, ...]
    values: torch.Tensor
    phi: str = PHI
    quantile: float = QUANTILE

    @functools.cached_property
    def cardinalities(self) -> torch.Tensor:
        """(concepts,) Σ μ of each."""
        return self.values.sum(-1)


def matrix(library: Library, device: torch.device | str) -> MembershipMatrix:
    """All memberships of a library as one matrix on `device`."""
    names = tuple(concept.name for concept in library.concepts)
    if not names:
        return MembershipMatrix((), torch.zeros(0, 0))
    phi, quantile = library.recipe.get("map", PHI), library.recipe.get("quantile", QUANTILE)
    stacked = np.stack([concept.memberships.ravel() for concept in library.concepts])
    return MembershipMatrix(names, torch.from_numpy(stacked).to(device), phi, quantile)


def quantise(memberships: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """Memberships as whole 255ths, the form in which they are stored and used."""
    return np.asarray(np.rint(np.clip(memberships, 0, 1) * STEPS), dtype=np.uint8)


def dequantise(steps: npt.NDArray[np.uint8]) -> Memberships:
    """Memberships in [0, 1] from whole 255ths."""
    return np.asarray(steps, dtype=np.float32) / np.float32(STEPS)


def save(folder: Path, concepts: list[Concept], recipe: dict[str, Any]) -> None:
    """Write `memberships.npz` and `library.json` (names, kinds, figures, recipe)."""
    folder.mkdir(parents=True, exist_ok=True)
    stacked = np.stack([quantise(concept.memberships) for concept in concepts])
    np.savez_compressed(folder / "memberships.npz", memberships=stacked)
    about = {
        "recipe": recipe,
        "concepts": [{"name": c.name, "kind": c.kind, "probes": c.probes, "figures": c.figures} for c in concepts],
    }
    (folder / "library.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", "utf-8")


def load(folder: Path, model_revision: str, shape: tuple[int, int]) -> Library:
    """The library in `folder` if it was built for this model; EMPTY where there is none.

    Raises ModelRefused when it belongs to other weights: memberships of one model mean nothing in another."""
    if not (folder / "library.json").is_file():
        return EMPTY
    about = json.loads((folder / "library.json").read_text("utf-8"))
    built_for = about["recipe"].get("model_revision")
    if built_for != model_revision:
        raise ModelRefused(
            f"The concept library was built for model revision {built_for}, not {model_revision}. "
            f"Rebuild it: {about['recipe'].get('command', 'python -m engine.concepts.build')}"
        )
    with np.load(folder / "memberships.npz", allow_pickle=False) as stored:
        stacked = stored["memberships"]
    if stacked.shape[1:] != shape:
        raise ModelRefused(f"The concept library is for {stacked.shape[1:]} neurons, the model has {shape}.")
    values = dequantise(stacked)
    concepts = tuple(
        Concept(c["name"], c["kind"], c["probes"], values[k], dict(c["figures"]))
        for k, c in enumerate(about["concepts"])
    )
    digest = hashlib.sha256(json.dumps([c.name for c in concepts]).encode() + stacked.tobytes()).hexdigest()[:16]
    return Library(digest, concepts, about["recipe"])
