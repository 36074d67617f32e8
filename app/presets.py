"""The use cases of presets: a steering is given a name, applied to any run, renamed, deleted, exported and imported.

A file of presets is JSON: {"presets": [{"name": …, "steering": {"concepts": [[name, λ], …], "neurons":
[[layer, index, operation, value], …], "latents": [[SAE's id, its name, index, operation, value], …], "positions": …,
"layers": [first, last]}}, …]}, or one such entry alone.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app import formats, queries, records, runs, steerings
from app.services import Services
from app.tables import Preset, Run
from engine.contract import RequestError

NAME_LENGTH = 80
MAX_PRESETS = 200
"""Presets that one model may have."""
MAX_FILE = 2**20
MAX_TURNS = 1000
MAX_TOLD = 20
"""What is wrong with a file is told up to so many sentences."""


class NoSuchPreset(Exception):
    """There is no preset of this id."""


class BadFile(RequestError):
    """A file of presets that is refused as a whole. `reasons`: why, a sentence each."""

    def __init__(self, message: str, reasons: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.reasons = tuple(reasons)


def find(session: Session, preset_id: str) -> Preset:
    row = session.get(Preset, preset_id)
    if row is None:
        raise NoSuchPreset(f"There is no preset “{preset_id[:40]}”. It may have been deleted.")
    return row


def save(services: Services, run_id: str, name: str, steering: Mapping[str, Any]) -> Preset:
    """Keep a steering of this run's model. Raises RequestError for an empty one, one that the model does not know, and
    a name that is empty, too long or taken."""
    with services.database.write() as session:
        run = session.get(Run, run_id)
        if run is None:
            raise runs.NoSuchRun(f"There is no run “{run_id[:40]}”.")
        if not run.model:
            raise RequestError("This run has no answer to steer yet. Wait for the answer, then save a steering.")
        if steerings.empty(steering):
            raise RequestError(
                "Nothing is turned, so there is nothing to save. Turn a concept, a neuron or a latent first."
            )
        kept = steerings.in_model(steering, run.model)
        runs.verify(services, session, run, kept)
        _room(session, run.model_revision, 1)
        row = _row(run.model_revision, _free(session, run.model_revision, name), kept)
        session.add(row)
    return row


def apply(services: Services, preset_id: str, run_id: str, panel: str) -> tuple[str, str]:
    """Steer a run by a preset, of whichever model: (the original run, the steered one). Raises RequestError with all
    that the run's model does not have, and then nothing is done."""
    with services.database.read() as session:
        row, run = find(session, preset_id), queries.run(session, run_id)
        if run is None:
            raise runs.NoSuchRun(f"There is no run “{run_id[:40]}”.")
        if run.model:
            facts = queries.concept_facts(session, run.model_revision)
            told = steerings.lacking(row.steering, facts, run.model, runs.attached(services))
            if told:
                raise RequestError(
                    f"The preset “{row.name}” cannot be applied to this run. {' '.join(told[:MAX_TOLD])}"
                )
        steering = dict(row.steering)
    return runs.steer(services, run_id, steering, panel)


def rename(services: Services, preset_id: str, name: str) -> None:
    with services.database.write() as session:
        row = find(session, preset_id)
        row.name = _free(session, row.model_revision, name, but=row.id)


def remove(services: Services, preset_id: str) -> None:
    with services.database.write() as session:
        session.delete(find(session, preset_id))


def as_json(rows: Iterable[Preset]) -> dict[str, Any]:
    """A file of presets, as `take` reads it."""
    return {
        "presets": [{"name": row.name, "model_revision": row.model_revision, "steering": row.steering} for row in rows]
    }


def take(services: Services, data: bytes) -> tuple[int, int]:
    """Import a file for the loaded model: (presets added, presets that were there already). All of them or none: raises
    BadFile with everything that stands in the way."""
    runs.check_model(services)
    info = services.worker.info
    if info is None:
        raise RequestError("The model is still loading. Import the presets when it is there.")
    model = records.model_to_json(info)
    entries, reasons = _entries(data)
    with services.database.write() as session:
        known = queries.concept_facts(session, info.revision)
        taken = {row.name.casefold(): row.steering for row in queries.presets(session, info.revision)}
        added: dict[str, dict[str, Any]] = {}
        for name, steering in entries:
            kept = steerings.in_model(steering, model)
            reasons += [f"{name}: {reason}" for reason in steerings.lacking(kept, known, model, services.worker.saes)]
            if name.casefold() not in taken:
                taken[name.casefold()] = added[name] = kept
            elif taken[name.casefold()] != kept:
                reasons.append(f"{name}: there is another preset of this name. Rename one of them.")
        if reasons:
            raise BadFile("Nothing was imported: this file does not fit the loaded model.", reasons)
        _room(session, info.revision, len(added))
        session.add_all(_row(info.revision, name, kept) for name, kept in added.items())
    return len(added), len(entries) - len(added)


def _entries(data: bytes) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """(name, canonical steering) of each entry that can be read, and why others cannot. Raises BadFile for a file that
    is none of presets."""
    if len(data) > MAX_FILE:
        raise BadFile(f"The file is larger than {MAX_FILE / 2**20:.0f} MB. Split it.")
    try:
        value = json.loads(data)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text: it cannot be stored or shown
    except (ValueError, RecursionError):
        raise BadFile("The file is not JSON. Choose one that was exported here.") from None
    listed = value.get("presets", [value]) if isinstance(value, dict) else value
    if not isinstance(listed, list) or not listed:
        raise BadFile("The file holds no presets. Choose one that was exported here.")
    if len(listed) > MAX_PRESETS:
        raise BadFile(f"The file holds {len(listed)} presets; at most {MAX_PRESETS} are taken. Split it.")
    entries, reasons = [], []
    for place, entry in enumerate(listed, start=1):
        try:
            name = _name(str(entry["name"]))
        except (TypeError, KeyError):
            reasons.append(f"Preset {place} has no name.")
            continue
        except RequestError as error:
            reasons.append(f"Preset {place}: {error}")
            continue
        try:
            entries.append((name, _steering(entry.get("steering"))))
        except RequestError as error:
            reasons.append(f"{name}: {error}")
    return entries, reasons


def _steering(value: Any) -> dict[str, Any]:
    """A steering of a file in canonical form: it goes the way of a form, which says what is wrong with a value."""
    fields: list[tuple[str, str]] = []
    try:
        concepts, neurons, latents = (value.get(kind, []) for kind in ("concepts", "neurons", "latents"))
        if len(concepts) + len(neurons) + len(latents) > MAX_TURNS:
            raise RequestError(f"A preset turns at most {MAX_TURNS} concepts, neurons and latents.")
        fields += [(f"{steerings.CONCEPT_FIELD}{name}", str(lam)) for name, lam in concepts]
        for layer, index, operation, amount in neurons:
            name = f"text.{layer}.{index}"
            fields += [(f"{steerings.NEURON_FIELD}{name}", str(amount))]
            fields += [(f"{steerings.OPERATION_FIELD}{name}", str(operation))]
        for sae, called, index, operation, amount in latents:
            name = f"sae.{called}.{index}"
            fields += [(f"{steerings.LATENT_FIELD}{name}", str(amount)), (f"{steerings.SAE_FIELD}{name}", str(sae))]
            fields += [(f"{steerings.OPERATION_FIELD}{name}", str(operation))]
        fields.append(("positions", str(value.get("positions") or "all")))
        fields += [("layers", str(end)) for end in value.get("layers") or ()]
    except (AttributeError, TypeError, ValueError):
        raise RequestError("its steering cannot be read. It is written as an export writes it.") from None
    steering = steerings.from_form(fields)
    if steerings.empty(steering):
        raise RequestError("it turns nothing.")
    return steering


def _row(model_revision: str, name: str, steering: dict[str, Any]) -> Preset:
    return Preset(id=runs.new_id(), model_revision=model_revision, name=name, steering=steering)


def _room(session: Session, model_revision: str, more: int) -> None:
    count = session.scalar(select(func.count()).select_from(Preset).filter_by(model_revision=model_revision)) or 0
    if count + more > MAX_PRESETS:
        raise RequestError(f"There are {count} presets; at most {MAX_PRESETS} are kept. Delete some first.")


def _name(text: str) -> str:
    name = formats.name_of(text)
    if not name:
        raise RequestError("The name is empty. Type what the preset should be called.")
    if len(name) > NAME_LENGTH:
        raise RequestError(f"The name has {len(name)} characters; at most {NAME_LENGTH} are taken. Shorten it.")
    return name


def _free(session: Session, model_revision: str, text: str, but: str = "") -> str:
    """The name, which no other preset of this model has (large and small letters are the same)."""
    name = _name(text)
    others = [row.name.casefold() for row in queries.presets(session, model_revision) if row.id != but]
    if name.casefold() in others:
        raise RequestError(f"There is a preset “{name}” already. Choose another name, or delete that one first.")
    return name
