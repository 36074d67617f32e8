"""Long jobs about single neurons: a survey of all of them, and what a person wants to know of one.

`survey`: scenes of the little world and the questions of finished runs, run through the model. What it holds of every
neuron is an array in a file of the data folder, named by its content, of which a page reads one neuron's record; the
row holds the questions. A newer survey of the same model takes the older one's place.
`neuron` (quick): the lens of one neuron, and its activations on the pictures of the survey that it answers to most.
`promotions`: the lens of all neurons, for the search. `fires` (quick): the neurons inside a box of one picture.
"""

import dataclasses
import hashlib
import io
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.arrays import pack
from app.conceptjobs import Done, Room
from app.pictures import HASH, Store, remember
from app.tables import JobRow, Run
from app.uploads import Normalised, pixel_hash
from engine.contract import IsCancelled, OnProgress, Question, neurons

SCENES = 200
RUNS = 500
"""Questions of finished runs that a survey takes at most, the newest."""
RECORD = neurons.RECORD
Case = tuple[str | None, str, str]
"""(hash of the picture or None, question, id of the run or '')."""


def folder(store: Store) -> Path:
    """Where surveys lie: beside the pictures."""
    return store.folder.parent / "surveys"


def record(path: Path, place: int) -> npt.NDArray[Any] | None:
    """One neuron's record of a survey's file; None where the file is gone, or of another version."""
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        return None
    return stored[place] if stored.dtype == RECORD and place < len(stored) else None


def path_of(store: Store, name: str) -> Path:
    """Raises FileNotFoundError for what is no survey's name."""
    if not HASH.fullmatch(name):
        raise FileNotFoundError(name)
    return folder(store) / f"{name}.npy"


def keep(store: Store, array: npt.NDArray[Any]) -> str:
    """Write a survey's array; its name."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    name = hashlib.sha256(buffer.getbuffer()).hexdigest()
    path = path_of(store, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{secrets.token_hex(6)}")
    beside.write_bytes(buffer.getbuffer())
    beside.replace(path)
    return name


def asked(session: Session, model_revision: str, limit: int = RUNS) -> list[Case]:
    """The questions of finished plain runs with this model, newest first, each picture and question once."""
    mine = select(Run.picture_hash, Run.question, Run.id).where(
        Run.model_revision == model_revision, Run.state == "done", Run.parent_id.is_(None)
    )
    found: dict[tuple[str | None, str], str] = {}
    for picture, question, run_id in session.execute(mine.order_by(Run.created.desc(), Run.id.desc()).limit(limit)):
        found.setdefault((picture, question), run_id)
    return [(picture, question, run_id) for (picture, question), run_id in found.items()]


@dataclasses.dataclass(frozen=True)
class Opened(Sequence[Question]):
    """Cases as questions; each picture is opened when it is asked for."""

    cases: Sequence[Case]
    store: Store

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, index: Any) -> Any:
        picture, question, _ = self.cases[index]
        return Question(self.store.load(picture) if picture else None, question, 1)


def drawn(room: Room, n: int) -> list[Case]:
    """Scenes of the little world, their pictures in the store."""
    cases: list[Case] = []
    for question in room.engine.scenes(n):
        assert question.picture is not None
        picture = Normalised(question.picture, pixel_hash(question.picture), ())
        room.store.put(picture)
        with room.database.write() as session:
            remember(session, picture)
        cases.append((picture.hash, question.text, ""))
    return cases


def survey(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """`params`: model_revision, scenes (how many), runs (how many there were when it was asked for)."""

    def ask(questions: Opened) -> neurons.Survey:
        return room.engine.survey(questions, on_progress, cancelled)

    found = surveyed(room, params, ("survey", "neuron"), {"model_revision": params["model_revision"]}, ask)
    return {**found, "shape": [room.info.n_layers, room.info.d_mlp]}, None


def surveyed(
    room: Room,
    params: dict[str, Any],
    kinds: tuple[str, str],
    of: dict[str, Any],
    ask: Callable[[Opened], neurons.Survey],
) -> dict[str, Any]:
    """The result of a survey by `ask`, kept in place of what there was. `kinds` = that of surveys, and of what is
    looked up in one; `of` = parameters that all surveys of the same thing share."""
    scenes = drawn(room, params["scenes"])
    with room.database.read() as session:
        cases = [*scenes, *asked(session, params["model_revision"])]
    found = ask(Opened(cases, room.store))
    name = keep(room.store, found.neurons)
    _replace(room, kinds, of, name)
    return {
        "file": name,
        "cases": [list(case) for case in cases],
        "tokens": [[list(token) for token in tokens] for tokens in found.tokens],
        "positions": list(found.positions),
        "scenes": len(scenes),
        "refused": len(found.refused),
    }


def _replace(room: Room, kinds: tuple[str, str], of: dict[str, Any], name: str) -> None:
    """Forget older surveys of the same thing, and what was looked up in them."""
    gone = []
    with room.database.write() as session:
        old = select(JobRow).where(JobRow.kind.in_(kinds), JobRow.state == "done")
        for row in session.scalars(old):
            file = row.result["file"] if row.kind == kinds[0] and row.result else row.params.get("survey", "")
            if of.items() <= row.params.items() and file != name:
                gone += [file] if row.kind == kinds[0] else []
                session.delete(row)
    for other in gone:
        path_of(room.store, other).unlink(missing_ok=True)


def neuron(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """`params`: model_revision, layer, index, survey (the file's name, or '')."""
    layer, index = params["layer"], params["index"]
    lens = dataclasses.asdict(room.engine.lens(layer, index))
    cases = strongest(room, "survey", params["survey"], layer * room.info.d_mlp + index) if params["survey"] else []
    questions = Opened(cases, room.store)
    maps = room.engine.activation_maps(layer, index, questions)
    grids = [None if one is None else room.engine.grid(question) for one, question in zip(maps, questions, strict=True)]
    stored = [None if grid is None else [grid.rows, grid.cols, list(grid.box)] for grid in grids]
    return {**lens, "grids": stored}, pack({f"map{k}": one for k, one in enumerate(maps)})


def strongest(room: Room, kind: str, name: str, place: int) -> list[Case]:
    """The cases of a survey of this kind whose pictures a neuron (or latent) answers to most, in its record's order."""
    with room.database.read() as session:
        rows = session.scalars(select(JobRow).where(JobRow.kind == kind, JobRow.state == "done"))
        result = next((row.result for row in rows if row.result and row.result["file"] == name), None)
    found = record(path_of(room.store, name), place)
    if result is None or found is None:
        return []
    picked = [result["cases"][case] for case in found["case"][0].tolist() if case >= 0]
    return [(picture, question, run_id) for picture, question, run_id in picked]


def promotions(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """`params`: model_revision."""
    found = room.engine.promotions(on_progress=on_progress, cancelled=cancelled)
    texts = {str(token): text for token, text in found.texts.items()}
    return {"texts": texts}, pack({"ids": found.ids.astype(np.float32), "values": found.values})


def fires(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """`params`: model_revision, picture (its hash), question, box (left, top, right, bottom in pixels)."""
    left, top, right, bottom = params["box"]
    question = Question(room.store.load(params["picture"]), params["question"], 1)
    found = room.engine.fires(question, (left, top, right, bottom))
    grid = found.grid
    return {
        "cells": found.cells,
        "grid": [grid.rows, grid.cols, list(grid.box)],
        "neurons": [[one.neuron, one.inside, one.outside] for one in found.neurons],
    }, pack({"maps": np.stack([one.activation for one in found.neurons])})


RUNNERS = {"survey": survey, "neuron": neuron, "promotions": promotions, "fires": fires}
