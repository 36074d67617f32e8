"""Build the built-in library: `python -m engine.concepts.build` (METHODS.md §2).

1. Every object, category, colour, shape, count and relation of the built-in world is a concept; its probes come from
   the world's `build` split.
2. Evidence of each concept, then what is *specific* to it among the concepts of its kind, then membership.
3. The library is written beside the built-in model with its recipe and the model's revision, for which alone it holds.

The same command on the same weights gives the same file. Progress is printed and evidence kept in `--work`, so a
stopped build goes on where it was.
"""

import argparse
import time
from pathlib import Path

import torch

from engine.builtin import probes as world_probes
from engine.concepts import evidence as evidences
from engine.concepts.building import probe_evidence
from engine.concepts.evidence import Evidence
from engine.concepts.fuzzy import Memberships, cardinality
from engine.concepts.library import BUILTIN_LIBRARY, PHI, QUANTILE, dequantise, quantise, save
from engine.concepts.membership import Probe, memberships, specific
from engine.contract import Concept
from engine.loading import BUILTIN, Loaded, load, quiet

PROBES = 24


def world_concept_probes(name: str, n: int, split: world_probes.Split, seed: int = 0) -> list[Probe]:
    """`n` probes of a concept of the built-in world."""
    return [
        Probe(probe.picture, probe.question, probe.answer, probe.span_text, probe.box, probe.against)
        for probe in world_probes.probes(name, n, seed, split)
    ]


def concept_evidence(loaded: Loaded, work: Path, name: str, n: int) -> Evidence:
    """Evidence of one concept's `n` build probes, from `work` where it is already there for these weights."""
    path = work / loaded.revision / f"{n}-{name.replace(' ', '_')}.npz"
    if path.is_file():
        return evidences.from_bytes(path.read_bytes())
    found = probe_evidence(loaded, world_concept_probes(name, n, "build"))
    own = Evidence((loaded.anatomy.n_layers, loaded.anatomy.d_mlp)).add(entry.shares for entry in found.results)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".tmp").write_bytes(evidences.to_bytes(own))
    path.with_suffix(".tmp").rename(path)
    return own


def all_evidence(loaded: Loaded, work: Path, n: int) -> dict[str, Memberships]:
    """Evidence (n_layers, d_mlp) of every concept, from `work` where it is already there for these weights."""
    found = {}
    names = world_probes.concept_names()
    began = time.monotonic()
    for k, concept in enumerate(names):
        found[concept.name] = concept_evidence(loaded, work, concept.name, n).mean()
        print(f"{k + 1}/{len(names)} {concept.name} {time.monotonic() - began:.0f} s", flush=True)
    return found


def concepts_from(found: dict[str, Memberships], probes: int, phi: str, quantile: float) -> list[Concept]:
    """Concepts of all the world's names from their evidence; `specific` among the concepts of one kind."""
    kinds = {concept.name: concept.kind for concept in world_probes.concept_names()}
    result = []
    for name, own in found.items():
        others = [found[other] for other in found if other != name and kinds[other] == kinds[name]]
        values = dequantise(quantise(memberships(specific(own, others), phi, quantile)))
        figures = {"cardinality": round(cardinality(values), 2), "support": float((values > 0).sum())}
        result.append(Concept(name, kinds[name], probes, values, figures))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the built-in model's concept library.")
    parser.add_argument("--probes", type=int, default=PROBES, help="probes a concept")
    parser.add_argument("--quantile", type=float, default=QUANTILE, help="of the membership map")
    parser.add_argument("--work", type=Path, default=Path("var/concepts"), help="where evidence is kept")
    parser.add_argument("--out", type=Path, default=BUILTIN_LIBRARY)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    quiet()
    torch.set_num_threads(arguments.threads)
    loaded = load(BUILTIN)
    found = all_evidence(loaded, arguments.work, arguments.probes)
    recipe = {
        "model_revision": loaded.revision,
        "method": "gradient, summed over all positions; evidence shares; specific among concepts of one kind",
        "map": PHI,
        "quantile": arguments.quantile,
        "probes": arguments.probes,
        "split": "build",
        "command": "python -m engine.concepts.build",
    }
    save(arguments.out, concepts_from(found, arguments.probes, PHI, arguments.quantile), recipe)
    print(f"{len(found)} concepts for model {loaded.revision} written to {arguments.out}")


if __name__ == "__main__":
    main()
