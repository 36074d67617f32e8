"""Evidence of many probes: batched, resumable, cancelled between batches (METHODS.md §2.1–2.2).

1. Probes are taken in windows of WINDOW, in their order: each is tokenised and its picture seen; a probe that this
   model cannot take is refused with the reason and the others go on.
2. A window's rows are sorted by length and cut into batches (`engine.concepts.batching`). Which probes share a batch
   follows from the list alone, so that a build that was stopped and goes on computes the same numbers: a batch of which
   anything is missing is run whole.
3. Each probe's scores become evidence shares; after each batch they are handed over.
"""

import time
from collections.abc import Collection, Sequence

import numpy as np

from engine.concepts.batching import BATCH, Row, rows_at_once, score_rows
from engine.concepts.evidence import pack
from engine.concepts.fuzzy import evidence_share
from engine.concepts.membership import Ready, prepare_one
from engine.concepts.probes import OnBatch, Probe, ProbeEvidence, ProbeResult, Refused
from engine.contract import Cancelled, IsCancelled, OnProgress, RequestError, never
from engine.features import Seen
from engine.loading import Loaded
from engine.running import embed, end_tokens, with_answer

WINDOW = 64


def rows_of(loaded: Loaded, ready: Ready) -> list[Row]:
    """A probe's sides, ready to be run."""
    return [
        Row(embed(loaded, with_answer(ready.prompt, part.ids), ready.features), part, ready.prompt.length)
        for part in ready.parts
    ]


def batches(loaded: Loaded, ready: dict[int, list[Row]], batch: int) -> list[list[int]]:
    """Probes by index, in batches of one sort and nearly one length; the sides of a probe stay together."""
    order = sorted(ready, key=lambda k: (str(ready[k][0].sort), max(row.size for row in ready[k]), k))
    made: list[list[int]] = []
    for k in order:
        rows = [row for index in (made[-1] if made else []) for row in ready[index]]
        room = rows_at_once(loaded, max(row.size for row in ready[k]), batch)
        if rows and rows[0].sort == ready[k][0].sort and len(rows) + len(ready[k]) <= max(room, len(ready[k])):
            made[-1].append(k)
        else:
            made.append([k])
    return made


def _results(loaded: Loaded, batch: list[int], ready: dict[int, list[Row]]) -> list[ProbeResult]:
    rows = [row for k in batch for row in ready[k]]
    scores = iter(score_rows(loaded, rows))
    ends = end_tokens(loaded)
    results = []
    for k in batch:
        sides = [(row.part, next(scores)) for row in ready[k]]
        totals = sum(part.sign * side.totals for part, side in sides)
        share = evidence_share(np.asarray(totals.cpu().numpy(), np.float32))  # type: ignore[union-attr]
        own, side = sides[0]
        right = side.preferred[:-1] == own.ids and side.preferred[-1] in ends
        results.append(ProbeResult(k, pack(share), side.value, right))
    return results


def probe_evidence(
    loaded: Loaded,
    probes: Sequence[Probe],
    done: Collection[int] = (),
    on_batch: OnBatch | None = None,
    on_progress: OnProgress | None = None,
    cancelled: IsCancelled = never,
    batch: int = BATCH,
) -> ProbeEvidence:
    """Evidence shares of `probes` but those whose indices are `done`. `probes` is read once, in order, a window at a
    time: a sequence that opens pictures as it is asked for them keeps memory small. `on_batch` and `on_progress(done,
    all)` are called after each batch. Raises Cancelled between batches; whatever was handed over by then stays good."""
    results: list[ProbeResult] = []
    refusals: list[Refused] = []
    began, finished = time.perf_counter(), len(set(done))
    for start in range(0, len(probes), WINDOW):
        window = range(start, min(start + WINDOW, len(probes)))
        if all(k in done for k in window):
            continue
        since = time.perf_counter()
        ready: dict[int, list[Row]] = {}
        refused: list[Refused] = []
        kept: dict[str, Seen] = {}
        for k in window:
            if cancelled():
                raise Cancelled("Stopped between two probes.")
            try:
                ready[k] = rows_of(loaded, prepare_one(loaded, probes[k], kept))
            except RequestError as error:
                refused += [] if k in done else [Refused(k, str(error))]
        for group in batches(loaded, ready, batch) or [[]]:
            if cancelled():
                raise Cancelled("Stopped between two batches of probes.")
            missing = [k for k in group if k not in done]
            found = [entry for entry in _results(loaded, group, ready) if entry.index not in done] if missing else []
            results += found
            refusals += refused
            finished += len(found) + len(refused)
            if on_batch is not None and (found or refused):
                on_batch(found, refused, time.perf_counter() - since)
            if on_progress is not None and (found or refused):
                on_progress(finished, len(probes))
            since, refused = time.perf_counter(), []
    took = (time.perf_counter() - began) / max(len(results), 1)
    return ProbeEvidence(tuple(sorted(results, key=lambda entry: entry.index)), tuple(refusals), took)
