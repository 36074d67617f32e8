"""What building a concept costs: `python -m engine.concepts.bench [--probes 50] [--rounds 3]`.

In every round, in shuffled order: all of a concept's probes through `probe_evidence` (tokenised, pictures processed and
seen, batched, shares packed), and the same probes' forward and backward passes alone, one after the other, with
everything ready: pixels, ids, targets. Medians of wall time and of CPU time; the ratio is of one run.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.attribution.gradient import gradient
from engine.concepts.build import world_concept_probes
from engine.concepts.building import probe_evidence
from engine.concepts.membership import prepare
from engine.loading import load, quiet
from engine.running import embed, picture_features, with_answer

RATIO, SECONDS = 1.3, 60.0
"""The goals."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the building of one concept.")
    parser.add_argument("--concept", default="traffic light")
    parser.add_argument("--probes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    quiet()
    torch.set_num_threads(arguments.threads)
    loaded = load()
    probes = world_concept_probes(arguments.concept, arguments.probes, "build")
    ready = prepare(loaded, probes)

    def alone() -> None:
        for entry in ready:
            seen = picture_features(loaded, entry.prompt.pixels)
            gradient(
                loaded, embed(loaded, with_answer(entry.prompt, entry.answer_ids), seen), entry.answer_ids, entry.target
            )

    calls: dict[str, Callable[[], Any]] = {"building": lambda: probe_evidence(loaded, probes), "passes alone": alone}
    wall: dict[str, list[float]] = {name: [] for name in calls}
    busy: dict[str, list[float]] = {name: [] for name in calls}
    rng, order = random.Random(0), list(calls)
    for _ in range(arguments.rounds):
        rng.shuffle(order)
        for name in order:
            began, worked = time.perf_counter(), time.process_time()
            calls[name]()
            wall[name].append(time.perf_counter() - began)
            busy[name].append(time.process_time() - worked)
    report = {
        "seconds": {name: statistics.median(values) for name, values in wall.items()},
        "cpu_seconds": {name: statistics.median(values) for name, values in busy.items()},
    }
    ratios = {key: values["building"] / values["passes alone"] for key, values in report.items()}
    print(f"one concept of {arguments.probes} probes, {arguments.threads} threads, medians of {arguments.rounds}")
    for name in calls:
        print(f"  {name:14s} {report['seconds'][name]:7.2f} s  {report['cpu_seconds'][name]:7.2f} CPU s")
    print(f"  building / passes alone {ratios['seconds']:.2f}× (goal ≤ {RATIO}×), CPU {ratios['cpu_seconds']:.2f}×")
    print(f"  goal for the whole concept: ≤ {SECONDS:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps({**report, "ratio": ratios}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
