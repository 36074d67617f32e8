"""What the FakeEngine does with concepts: drawn from hashes, with the shapes and laws of the real results.

1. A probe's evidence shares follow the memberships of the library's concept that `says` names (of others: of a hash of
   it), with some noise of the probe's own; they depend on the probe alone, so that resuming changes nothing.
2. A neuron's effect is its membership times the probe's strength; a pair in one layer stands in for itself by a tenth.
3. A concept's set takes seven of ten of its answers, the baseline's half, all others none.
"""

import time
from collections.abc import Collection, Sequence
from itertools import combinations

import numpy as np

from engine.concepts.evidence import pack
from engine.concepts.fuzzy import evidence_share
from engine.concepts.joining import joined
from engine.concepts.probes import OnBatch, Probe, ProbeEvidence, ProbeResult, Refused, find_form
from engine.concepts.results import (
    Candidate,
    Collaboration,
    ConceptValidation,
    collaboration_runs,
    criteria,
    mean_interval,
    proportion,
)
from engine.contract import Cancelled, Concept, Floats, IsCancelled, Library, OnProgress, RequestError, never
from engine.fake_world import D_MLP, KINDS, N_LAYERS, memberships_of, noise, unknown

BATCH = 4
SIDE = 24
"""Pixels on a side of a drawn probe's picture."""


def shares_of(probe: Probe) -> Floats:
    """(N_LAYERS, D_MLP) evidence shares. Raises RequestError as the real engine for what cannot be put to it."""
    if probe.picture is not None and min(probe.picture.shape[:2]) < 2:
        raise RequestError("The picture is too small; the model needs at least 2 pixels on each side.")
    if find_form(probe.answer, probe.says) is None:
        raise RequestError(f"The expected answer {probe.answer!r} does not contain {probe.says!r}.")
    seen = b"" if probe.picture is None else probe.picture.tobytes()
    drawn = noise("share", seen, probe.question, probe.answer, probe.says).normal(0, 0.1, (N_LAYERS, D_MLP))
    return evidence_share(np.asarray(memberships_of(probe.says.casefold()) + drawn, np.float32))


class FakeConcepts:
    """`engine.concepts.contract.ConceptEngine` without a model."""

    def _ship(self, known: Library) -> None:
        self._shipped = known
        self._know(known)

    def _know(self, known: Library) -> None:
        self._known = known
        self._by_name = {concept.name: concept for concept in known.concepts}

    def adopt(self, own: Sequence[Concept]) -> None:
        self._know(joined(self._shipped, own, (N_LAYERS, D_MLP)))

    def _pause(self, cancelled: IsCancelled) -> None:
        """Take the engine's delay; raises Cancelled."""
        if cancelled():
            raise Cancelled("Stopped on request.")

    def probe_evidence(
        self,
        probes: Sequence[Probe],
        done: Collection[int] = (),
        on_batch: OnBatch | None = None,
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> ProbeEvidence:
        results: list[ProbeResult] = []
        refusals: list[Refused] = []
        began, missing = time.perf_counter(), [k for k in range(len(probes)) if k not in done]
        for start in range(0, len(missing), BATCH):
            since = time.perf_counter()
            self._pause(cancelled)
            found: list[ProbeResult] = []
            refused: list[Refused] = []
            for k in missing[start : start + BATCH]:
                try:
                    shares = pack(shares_of(probes[k]))
                except RequestError as error:
                    refused.append(Refused(k, str(error)))
                    continue
                luck = float(noise("luck", probes[k].question, probes[k].answer, k).uniform())
                found.append(ProbeResult(k, shares, -2 * luck, luck < 0.9))
            results += found
            refusals += refused
            if on_batch is not None:
                on_batch(found, refused, time.perf_counter() - since)
            if on_progress is not None:
                on_progress(len(probes) - len(missing) + min(start + BATCH, len(missing)), len(probes))
        took = (time.perf_counter() - began) / max(len(results), 1)
        return ProbeEvidence(tuple(results), tuple(refusals), took)

    def world_concepts(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, kind) for kind, names in KINDS.items() for name in names)

    def world_probes(self, name: str, n: int, split: str = "build") -> tuple[Probe, ...]:
        known = dict(self.world_concepts())
        if name not in known:
            raise unknown("concept", name, known)
        if split not in ("build", "dev", "test"):
            raise unknown("split", split, ("build", "dev", "test"))
        drawn = [noise("world", split, name, k).integers(0, 256, (SIDE, SIDE, 3), np.uint8) for k in range(n)]
        return tuple(Probe(picture, "What is this?", name, name, (2.0, 2.0, 20.0, 20.0)) for picture in drawn)

    def baseline_evidence(self, probes: Sequence[Probe], cancelled: IsCancelled = never) -> Floats:
        self._pause(cancelled)
        first = [noise("first token", probe.says.split()[0]).exponential(size=(N_LAYERS, D_MLP)) for probe in probes]
        return evidence_share(np.asarray(np.mean(first or [np.zeros((N_LAYERS, D_MLP))], axis=0), np.float32))

    def collaboration(
        self,
        memberships: Floats,
        probes: Sequence[Probe],
        alpha: float = 0.5,
        top: int = 12,
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> Collaboration:
        flat = memberships.ravel()
        chosen = [int(n) for n in np.argsort(-flat, kind="stable") if flat[n] >= alpha and flat[n] > 0]
        if len(chosen) < 2 or not probes:
            raise RequestError(f"The α-cut at {alpha:g} has {len(chosen)} neurons; collaboration takes 2. Lower α.")
        first = chosen[:top]
        runs = collaboration_runs(len(chosen), len(first), len(probes))
        inner = np.zeros((len(first), len(first)), np.float32)
        for i, j in combinations(range(len(first)), 2):
            if first[i] // D_MLP == first[j] // D_MLP:
                inner[i, j] = inner[j, i] = -0.1 * min(flat[first[i]], flat[first[j]])
        strengths = []
        for k, probe in enumerate(probes):
            self._pause(cancelled)
            strengths.append(float(noise("strength", probe.question, probe.answer, k).uniform(0.1, 0.3)))
            if on_progress is not None:
                on_progress(runs * (k + 1) // len(probes), runs)
        strength = np.array(strengths)
        apart = strength * float(flat[chosen].sum())
        joint = apart + strength * float(np.triu(inner).sum())
        return Collaboration(
            alpha,
            tuple(f"text.{n // D_MLP}.{n % D_MLP}" for n in chosen),
            len(probes),
            mean_interval(joint),
            mean_interval(apart),
            mean_interval(joint - apart),
            tuple(f"text.{n // D_MLP}.{n % D_MLP}" for n in first),
            np.asarray(strength.mean() * flat[first], np.float32),
            np.asarray(strength.mean() * inner, np.float32),
            np.asarray(strength.std() * np.abs(inner), np.float32),
        )

    def validate_concept(
        self,
        candidate: Candidate,
        alpha: float = 0.5,
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> ConceptValidation:
        size = int((candidate.memberships >= alpha).sum())
        if not size or not candidate.probes or not candidate.others:
            raise RequestError(f"Validation of {candidate.name!r} takes held-out probes and an α-cut with neurons.")
        n = len(candidate.probes) + len(candidate.others)
        for done in range(1, n + 1):
            self._pause(cancelled)
            if on_progress is not None:
                on_progress(done, n)
        luck = noise("validation", candidate.name).uniform(size=len(candidate.probes))
        kept = np.ones((len(luck), 5))
        kept[:, 1], kept[:, 3] = luck > 0.7, luck > 0.5
        theirs = np.ones((len(candidate.others), 2))
        pointing = {"concept": proportion((luck < 0.9).tolist()), "attention": proportion((luck < 0.8).tolist())}
        pointing["chance"] = mean_interval([0.1] * len(luck))
        plain, own, random, baseline, other = (proportion(kept[:, k].tolist()) for k in range(5))
        others = proportion(theirs[:, 0].tolist())
        return ConceptValidation(
            candidate.name, candidate.kind, len(candidate.probes[0].says.split()), size, alpha,
            plain, own, random, baseline, other, others, others, 0.7, 0.8, 0.1, 0.6, pointing,
            criteria(kept, theirs, 0.7, 0.6, 0.1, pointing),
            tuple(tuple(row) for row in kept.astype(bool).tolist()),
            tuple(tuple(row) for row in theirs.astype(bool).tolist()),
        )  # fmt: skip
