"""Does turning a concept down take its answers away, and does its heat map point at the thing? On held-out probes.

*Suppression* (METHODS.md §2): with λ = −1 on a concept (its at most 300 members of highest membership), how many
answers on its held-out probes are exactly right? Against (i) a random set of as many neurons of the same layers with
the same multipliers, another one for each picture, and (ii) another concept of the same kind.

*Pointing game*: on pictures of two things, does the hottest patch lie on the thing asked about? `inside` = its centre
is in the thing's box; `overlaps` = the patch shares a pixel with the box. For the heat map of the answer's own concept,
of the evidence (what a run's page opens with), of all neurons together, of the last layer's mean attention from the
position that predicts the answer; `chance` = the share of all patches for which it is so.

    python -m engine.concepts.suppression [--split dev|test] [--pictures 100]
"""

import argparse
import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import torch

from engine.attribution.gradient import gradient
from engine.attribution.result import build
from engine.builtin import probes as world_probes
from engine.concepts.build import world_concept_probes
from engine.concepts.library import MembershipMatrix
from engine.concepts.membership import Ready, prepare, says_it
from engine.concepts.pointing import last_layer_attention, on_thing
from engine.concepts.results import wilson
from engine.contract import ConceptTurn, Library, Steering
from engine.hooks import intervene
from engine.interventions import compile_steering
from engine.loading import Loaded
from engine.local import load_engine
from engine.running import embed, with_answer


@dataclasses.dataclass
class Tally:
    """Hits out of n, printed with its interval."""

    hits: int = 0
    n: int = 0

    def add(self, hit: bool) -> None:
        self.hits += hit
        self.n += 1

    def __str__(self) -> str:
        low, high = wilson(self.hits, self.n)
        return f"{self.hits / max(self.n, 1):.3f} [{low:.3f}, {high:.3f}] (n = {self.n})"

    def figures(self) -> dict[str, float]:
        low, high = wilson(self.hits, self.n)
        return {"value": self.hits / max(self.n, 1), "low": low, "high": high, "n": float(self.n)}


def suppression(loaded: Loaded, library: Library, chosen: list[tuple[str, str, Ready]]) -> dict[str, Tally]:
    """Accuracy under nothing, own, other, random; `chosen` = (concept, another concept of its kind, probe)."""
    tallies = {key: Tally() for key in ("plain", "own", "other", "random")}
    anatomy = loaded.anatomy
    for k, (own, other, ready) in enumerate(chosen):
        steering = Steering((ConceptTurn(own, -1.0),))
        rows = {
            "plain": Steering(),
            "own": steering,
            "other": Steering((ConceptTurn(other, -1.0),)),
            "random": dataclasses.replace(steering, control=k),
        }
        for key, row in rows.items():
            edits = compile_steering(row, library, ready.prompt.modality, anatomy.n_layers, anatomy.d_mlp)
            with intervene(anatomy, [edits]):
                tallies[key].add(says_it(loaded, ready))
    return tallies


def pointing(loaded: Loaded, matrix: MembershipMatrix, chosen: list[tuple[str, str, Ready]]) -> dict[str, Tally]:
    """The pointing game over probes with a box; `chance` counts patches instead of pictures."""
    tallies: dict[str, Tally] = {}

    def count(name: str, ready: Ready, row: int, column: int) -> None:
        for criterion, hit in zip(("inside", "overlaps"), on_thing(ready, row, column), strict=True):
            tallies.setdefault(f"{name}, {criterion}", Tally()).add(hit)

    for own, _other, ready in chosen:
        grid = ready.prompt.grid
        assert grid is not None
        embeddings = embed(loaded, with_answer(ready.prompt, ready.answer_ids), ready.features)
        scored = gradient(loaded, embeddings, ready.answer_ids, ready.target)
        modality = (*ready.prompt.modality, *["answer"] * len(ready.answer_ids))
        result = build("gradient", ready.target, scored, modality, grid, matrix, 1)
        maps = {
            "the answer's concept": next(entry.heat for entry in result.concepts if entry.concept == own),
            "evidence": result.evidence_heat,
            "all neurons": result.heat,
            "last-layer attention": last_layer_attention(loaded, ready),
        }
        for name, heat in maps.items():
            assert heat is not None
            count(name, ready, *divmod(int(np.argmax(heat)), grid.cols))
        for row in range(grid.rows):
            for column in range(grid.cols):
                count("chance", ready, row, column)
    return tallies


def two_thing_probes(loaded: Loaded, n: int, split: world_probes.Split, seed: int) -> list[tuple[str, str, Ready]]:
    """`n` held-out probes, one an object drawn at random, in pictures of two things and asked by side."""
    rng = random.Random(f"validation {split} {seed}")
    objects = [concept.name for concept in world_probes.concept_names() if concept.kind == "object"]
    chosen: list[tuple[str, str, Ready]] = []
    while len(chosen) < n:
        own, other = rng.sample(objects, 2)
        for probe in world_concept_probes(own, 6, split, rng.randrange(1 << 30)):
            if any(word in probe.question for word in (" left", " right", " top", " bottom")) and probe.box:
                chosen.append((own, other, prepare(loaded, [probe])[0]))
                break
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description="Validate the built-in library on held-out pictures.")
    parser.add_argument("--split", choices=("dev", "test"), default="test")
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    engine = load_engine()
    chosen = two_thing_probes(engine.loaded, arguments.pictures, arguments.split, arguments.seed)
    report = {
        "suppression": suppression(engine.loaded, engine.library(), chosen),
        "pointing": pointing(engine.loaded, engine._matrix, chosen),
    }
    for name, tallies in report.items():
        print(f"{name} ({arguments.split} split, {arguments.pictures} pictures, model {engine.loaded.revision})")
        for key, tally in tallies.items():
            print(f"  {key:32s} {tally}")
    if arguments.json:
        figures = {name: {key: tally.figures() for key, tally in tallies.items()} for name, tallies in report.items()}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
