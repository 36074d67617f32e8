"""Long jobs about concepts and neurons, kind by kind: what each asks of the engine, and what it keeps."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sqlalchemy import select

from app import library, own
from app.database import Database
from app.pictures import Store, remember
from app.tables import OwnConcept, ProbeRow
from app.uploads import Normalised, pixel_hash
from engine.contract import Engine, IsCancelled, ModelInfo, OnProgress, RequestError, concepts

Done = tuple[dict[str, Any], bytes | None]
Probe = concepts.probes.Probe


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """What a job works with."""

    engine: Engine
    info: ModelInfo
    database: Database
    store: Store


def probe_of(row: ProbeRow, store: Store) -> Probe:
    """A row's probe, with its picture."""
    picture = store.load(row.picture_hash) if row.picture_hash else None
    left, top, right, bottom = row.box or (0.0, 0.0, 0.0, 0.0)
    box = (left, top, right, bottom) if row.box else None
    return Probe(picture, row.question, row.answer, row.says, box, row.against)


@dataclasses.dataclass(frozen=True)
class Opened(Sequence[Probe]):
    """Rows' probes; each picture is opened when its probe is asked for."""

    rows: Sequence[ProbeRow]
    store: Store

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return probe_of(self.rows[index], self.store)


def build(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """Evidence of the concept's probes that have none yet; each batch is stored as it comes, so that whatever stops the
    job loses one batch. Probes that are added meanwhile are built too. `params`: concept (its id); with `world`, a
    concept of the built-in world, its first `n` probes come first. What is built then joins the library, also when the
    job is cancelled."""
    draw(room, params)
    built, refused, seconds = 0, 0, None
    try:
        rows = _rows(room, params["concept"])
        while any(row.waiting for row in rows):
            already = [k for k, row in enumerate(rows) if not row.waiting]

            def told(done: int, total: int, less: int = len(already) - built - refused) -> None:
                on_progress(done - less, total - less)

            result = room.engine.probe_evidence(
                Opened(rows, room.store), already, _keeping(room, rows), told, cancelled
            )
            built, refused = built + len(result.results), refused + len(result.refused)
            seconds = result.seconds_per_probe if result.results else seconds
            rows = _rows(room, params["concept"])
    finally:
        adopt(room, params, on_progress, cancelled)
    return {"probes": built, "refused": refused, "seconds_per_probe": seconds}, None


def _rows(room: Room, concept_id: str) -> list[ProbeRow]:
    """The concept's probes, in their order; lines of files that could not be taken are none."""
    with room.database.read() as session:
        if session.get(OwnConcept, concept_id) is None:
            raise RequestError("This concept is not there any more.")
        chosen = select(ProbeRow).where(ProbeRow.concept_id == concept_id, ProbeRow.question != "")
        return list(session.scalars(chosen.order_by(ProbeRow.id)))


def _keeping(room: Room, rows: Sequence[ProbeRow]) -> concepts.probes.OnBatch:
    """Stores what came of a batch, in rows that are still there."""

    def on_batch(
        found: Sequence[concepts.probes.ProbeResult], refused: Sequence[concepts.probes.Refused], _: float
    ) -> None:
        with room.database.write() as session:
            for result in found:
                row = session.get(ProbeRow, rows[result.index].id)
                if row is not None:
                    row.shares, row.logprob, row.correct = result.shares.to_bytes(), result.logprob, result.right
            for entry in refused:
                row = session.get(ProbeRow, rows[entry.index].id)
                if row is not None:
                    row.refused = entry.reason

    return on_batch


def draw(room: Room, params: dict[str, Any]) -> None:
    """The first `n` probes of the built-in world's concept `world` become rows of the own concept. Once: a job that
    goes on finds them there."""
    name, n = params.get("world", ""), params.get("n", 0)
    source = f"built-in world: {name}, {n} probes"
    if not name:
        return
    drawn = room.engine.world_probes(name, n)
    if not drawn:
        raise RequestError(f"The built-in world has no concept “{name}”, or this model knows another world.")
    pixels = [np.ascontiguousarray(probe.picture, np.uint8) for probe in drawn]
    normal = [Normalised(picture, pixel_hash(picture), ()) for picture in pixels]
    for picture in normal:
        room.store.put(picture)
    with room.database.write() as session:
        mine = select(ProbeRow).where(ProbeRow.concept_id == params["concept"])
        there = list(session.scalars(mine))
        if session.get(OwnConcept, params["concept"]) is None or any(row.source == source for row in there):
            return
        known = {(row.picture_hash, row.question, row.answer) for row in there}
        for probe, picture in zip(drawn, normal, strict=True):
            if (picture.hash, probe.question, probe.answer) in known:
                continue
            remember(session, picture)
            row = ProbeRow(
                concept_id=params["concept"], source=source, picture_hash=picture.hash, question=probe.question,
                answer=probe.answer, says=probe.says, box=list(probe.box) if probe.box else None,
                against=probe.against,
            )  # fmt: skip
            session.add(row)


def adopt(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """The own concepts as their rows say now join the library, and those that are gone leave it. Nothing of `params` is
    read: what has changed is named there, so that each change is a job of its own."""
    with room.database.write() as session:
        lost = own.adopt(session, room.info, room.engine)
        library.copy(session, room.info.revision, room.engine.library())
    return {"lost": lost}, None


def follow(room: Room) -> None:
    """Another process, such as `sfumato concepts build`, may have changed the own concepts: take them up."""
    with room.database.read() as session:
        copied = library.revision(session, room.info.revision)
    if copied not in ("", room.engine.library().revision):
        adopt(room, {}, lambda done, total: None, lambda: False)


RUNNERS: dict[str, Callable[[Room, dict[str, Any], OnProgress, IsCancelled], Done]] = {
    "build": build, "adopt": adopt,
}  # fmt: skip
