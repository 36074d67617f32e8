"""The validation of the built-in library as a command: `python -m engine.concepts.validation`.

1. Evidence of all concepts of the kinds asked for, from `--work` or built there (`engine.concepts.build`): memberships,
   contrast and split halves follow from it; of each concept the baseline's evidence too.
2. Each concept is validated on its own held-out probes and on those of others of its kind; its figures are kept in
   `--work` as JSON, by model revision, so a stopped run goes on where it was.
3. With `--into-library`, what `--work` holds of this model is written among the figures of the library's concepts
   instead; memberships, and so the library's revision, stay as they are.
4. The summary: means over concepts with bootstrap intervals over concepts; those whose name takes several tokens apart.
"""

import argparse
import dataclasses
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.builtin import probes as world_probes
from engine.concepts.build import PROBES, concept_evidence, concepts_from, world_concept_probes
from engine.concepts.evidence import Evidence, contrast_of
from engine.concepts.fuzzy import Memberships
from engine.concepts.library import BUILTIN_LIBRARY, PHI, QUANTILE
from engine.concepts.probes import Probe
from engine.concepts.results import Candidate, figures_of, mean_interval
from engine.concepts.validation import ALPHA, baseline_evidence, validate
from engine.loading import Loaded, load, quiet

COLUMNS = ("plain", "own", "random", "baseline", "other", "others_plain", "others_own")


def candidate(
    loaded: Loaded, name: str, found: dict[str, Evidence], memberships: dict[str, Memberships], n: int,
    split: world_probes.Split, baseline: Memberships,
) -> Candidate:  # fmt: skip
    """One of the world's concepts among `found` = the evidence of all concepts of its kind."""
    rng = random.Random(f"validation {split} {name}")
    rest = [other for other in found if other != name]
    means = {other: found[other].mean() for other in rest}
    contrast = contrast_of(list(means.values()))
    assert contrast is not None
    whole = (contrast * len(rest) + found[name].mean()) / (len(rest) + 1)
    others: list[Probe] = []
    for k in range(n):
        others += world_concept_probes(rng.choice(rest), 1, split, 1000 + k)
    return Candidate(
        name=name,
        kind=world_probes.concept(name).kind,
        memberships=memberships[name],
        evidence=found[name],
        contrast=contrast,
        baseline=baseline,
        another=memberships[rng.choice(rest)],
        probes=world_concept_probes(name, n, split),
        others=others,
        between=[np.maximum(means[other] - whole, np.float32(0)) for other in rest],
    )


def baseline_of(loaded: Loaded, work: Path, name: str, n: int) -> Memberships:
    """The single-token baseline's evidence of a concept, from `work` or made there."""
    path = work / loaded.revision / f"{n}-{name.replace(' ', '_')}.pan.npy"
    if not path.is_file():
        with path.with_suffix(".tmp").open("wb") as file:
            np.save(file, baseline_evidence(loaded, world_concept_probes(name, n, "build")))
        path.with_suffix(".tmp").rename(path)
    return np.asarray(np.load(path, allow_pickle=False), np.float32)


def specific_baselines(loaded: Loaded, work: Path, names: Sequence[str], n: int) -> dict[str, Memberships]:
    """Each concept's baseline evidence less the mean of the others', as our own memberships are made."""
    found = {name: baseline_of(loaded, work, name, n) for name in names}
    total = np.sum(list(found.values()), axis=0, dtype=np.float64)
    rest = max(len(names) - 1, 1)
    return {name: np.asarray(np.maximum(own - (total - own) / rest, 0), np.float32) for name, own in found.items()}


def summary(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over concepts, with bootstrap intervals over concepts; the share that passes."""
    figures: dict[str, Any] = {"concepts": len(entries)}
    for column in COLUMNS:
        figures[column] = str(mean_interval([entry[column]["value"] for entry in entries]))
    for column in ("split_half", "split_half_correlation", "between", "shuffled"):
        figures[column] = str(mean_interval([entry[column] for entry in entries]))
    for name in ("concept", "attention", "chance"):
        pointed = [entry["pointing"][name]["value"] for entry in entries if entry["pointing"]]
        figures[f"pointing, {name}"] = str(mean_interval(pointed))
    gaps = [entry["baseline"]["value"] - entry["own"]["value"] for entry in entries]
    figures["baseline − own"] = str(mean_interval(gaps))
    figures["passes"] = str(mean_interval([float(entry["passes"]) for entry in entries]))
    return figures


def figures_path(work: Path, revision: str, name: str, arguments: argparse.Namespace) -> Path:
    """Where a concept's figures are kept."""
    tag = f"{arguments.split}-{arguments.alpha:g}-{arguments.probes}-{arguments.build_probes}"
    return work / revision / f"{tag}-{name.replace(' ', '_')}.json"


def into_library(work: Path, folder: Path, arguments: argparse.Namespace) -> list[str]:
    """Write the figures that `work` holds into the library in `folder`; the names of concepts that have none there."""
    path = folder / "library.json"
    about = json.loads(path.read_text("utf-8"))
    missing = []
    for concept in about["concepts"]:
        kept = figures_path(work, about["recipe"]["model_revision"], concept["name"], arguments)
        if kept.is_file():
            concept["figures"] |= figures_of(json.loads(kept.read_text("utf-8")))
        else:
            missing.append(concept["name"])
    path.with_suffix(".tmp").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", "utf-8")
    path.with_suffix(".tmp").rename(path)
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description="Validate the built-in library on held-out probes.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="concepts (default: all of the kinds)")
    parser.add_argument("--kind", action="append", help="only this kind; may be given again")
    parser.add_argument("--probes", type=int, default=20, help="held-out probes a concept, and as many of others")
    parser.add_argument("--build-probes", type=int, default=PROBES, help="probes a concept was built from")
    parser.add_argument("--alpha", type=float, default=ALPHA)
    parser.add_argument("--split", choices=("dev", "test"), default="test")
    parser.add_argument("--work", type=Path, default=Path("var/concepts"), help="where evidence and figures are kept")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write all figures here")
    parser.add_argument("--into-library", action="store_true", help="measure nothing: write what --work holds there")
    parser.add_argument("--library", type=Path, default=BUILTIN_LIBRARY, help="folder of that library")
    arguments = parser.parse_args()
    if arguments.into_library:
        missing = into_library(arguments.work, arguments.library, arguments)
        print(f"figures written to {arguments.library}; without figures: {', '.join(missing) or 'none'}")
        return
    quiet()
    torch.set_num_threads(arguments.threads)
    loaded = load()
    every = world_probes.concept_names()
    wanted = set(arguments.names) or {c.name for c in every if not arguments.kind or c.kind in arguments.kind}
    kinds = sorted({world_probes.concept(name).kind for name in wanted})
    entries: list[dict[str, Any]] = []
    for kind in kinds:
        names = [concept.name for concept in every if concept.kind == kind]
        found = {name: concept_evidence(loaded, arguments.work, name, arguments.build_probes) for name in names}
        means = {name: evidence.mean() for name, evidence in found.items()}
        made = concepts_from(means, arguments.build_probes, PHI, QUANTILE)
        memberships = {concept.name: concept.memberships for concept in made}
        baselines = specific_baselines(loaded, arguments.work, names, arguments.build_probes)
        for name in names:
            if name not in wanted:
                continue
            path = figures_path(arguments.work, loaded.revision, name, arguments)
            if not path.is_file():
                began = time.monotonic()
                of = candidate(loaded, name, found, memberships, arguments.probes, arguments.split, baselines[name])
                result = validate(loaded, of, arguments.alpha)
                entry = {**dataclasses.asdict(result), "passes": result.passes, "reason": result.reason}
                entry["seconds"] = time.monotonic() - began
                path.with_suffix(".tmp").write_text(json.dumps(entry, indent=1, ensure_ascii=False) + "\n", "utf-8")
                path.with_suffix(".tmp").rename(path)
            entry = json.loads(path.read_text("utf-8"))
            entries.append(entry)
            words = "  ".join(f"{column} {entry[column]['value']:.2f}" for column in COLUMNS)
            print(f"{name}: {words}  {entry['reason']}", flush=True)
    groups: dict[str, list[dict[str, Any]]] = {
        "all": entries,
        "one token": [entry for entry in entries if entry["tokens"] == 1],
        "several tokens": [entry for entry in entries if entry["tokens"] > 1],
        **{kind: [entry for entry in entries if entry["kind"] == kind] for kind in kinds},
    }
    report = {name: summary(group) for name, group in groups.items() if group}
    print(f"{arguments.split} split, {arguments.probes} probes each, α = {arguments.alpha:g}, model {loaded.revision}")
    for group, figures in report.items():
        print(f"  {group}")
        for figure, words in figures.items():
            print(f"    {figure:24s} {words}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"summary": report, "concepts": entries}, indent=1) + "\n", "utf-8")
