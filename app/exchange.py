"""A person's own concepts as a file, to be carried to another computer with the same model: a zip of `concepts.json`
and the probes' pictures as PNG, without pickle. Evidence travels with its probes, so nothing is built again.

What is read is somebody else's file: it is checked field by field, pictures through the limits of any upload, and a
picture must be the one that its name, the hash of its pixels, says."""

import base64
import binascii
import datetime as dt
import json
import secrets
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import own, pictures
from app.pictures import HASH, Store
from app.tables import OwnConcept, ProbeRow, now
from app.uploads import Limits, normalise
from engine.contract import ModelInfo, RequestError, concepts

FORMAT, VERSION = "sfumato concepts", 1
LISTING = "concepts.json"
MAX_LISTING = 512 * 2**20
MAX_CONCEPTS, MAX_PROBES, MAX_TEXT = 1000, 500, 2000
FIELDS = ("name", "kind", "forms", "contrast", "map", "quantile", "mode", "expression", "family")
PROBE_FIELDS = ("source", "question", "answer", "says", "against", "box", "logprob", "correct", "refused")


def write(session: Session, info: ModelInfo, store: Store, names: Sequence[str], path: Path) -> int:
    """Write these own concepts (none named: all) to `path`, which appears when it is whole; how many they are."""
    rows = [row for row in own.rows(session, info.revision) if not names or row.name in names]
    missing = set(names) - {row.name for row in rows}
    if missing:
        raise RequestError(f"You have no concept “{min(missing)}” of this model. The library's own need no export.")
    if not rows:
        raise RequestError("You have no concepts of your own of this model. The library's own need no export.")
    told, hashes = [], set()
    for row in rows:
        chosen = select(ProbeRow).where(ProbeRow.concept_id == row.id, ProbeRow.question != "").order_by(ProbeRow.id)
        probes = [_probe_as_json(probe) for probe in session.scalars(chosen)]
        hashes |= {probe["picture"] for probe in probes if probe["picture"]}
        told.append({field: getattr(row, field) for field in FIELDS} | {"probes": probes})
    about = {"name": info.name, "revision": info.revision, "n_layers": info.n_layers, "d_mlp": info.d_mlp}
    listing = {"format": FORMAT, "version": VERSION, "model": about, "concepts": told}
    beside = path.with_name(f".{path.name}.part")
    with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(LISTING, json.dumps(listing, ensure_ascii=False, allow_nan=False, indent=1))
        for name in sorted(hashes):
            archive.write(store.path(name), f"pictures/{name}.png", zipfile.ZIP_STORED)
    beside.replace(path)
    return len(rows)


def _probe_as_json(row: ProbeRow) -> dict[str, Any]:
    shares = base64.b64encode(row.shares).decode() if row.shares is not None else None
    return {field: getattr(row, field) for field in PROBE_FIELDS} | {"picture": row.picture_hash, "shares": shares}


def read(
    session: Session, info: ModelInfo, store: Store, limits: Limits, path: Path, free: Callable[[str], None]
) -> list[str]:
    """Take in all concepts of a file, or none; their names. `free` raises for a name that cannot be used."""
    listing = _listing(path, info)
    began = now()
    with zipfile.ZipFile(path) as archive:
        held = set(archive.namelist())
    source = concepts.imports.Pictures(path)
    try:
        names = []
        for k, entry in enumerate(listing):
            row = _concept(entry, info, began + dt.timedelta(microseconds=k))
            free(row.name)
            session.add(row)
            session.flush()
            for probe in _list(entry, "probes", MAX_PROBES):
                found = _probe(probe, row, info)
                if found.picture_hash is not None:
                    _keep(session, store, limits, source, held, found.picture_hash)
                session.add(found)
            names.append(row.name)
        return names
    finally:
        source.close()


def _listing(path: Path, info: ModelInfo) -> list[Any]:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(LISTING) as member:
            data = member.read(MAX_LISTING + 1)
        told = json.loads(data) if len(data) <= MAX_LISTING else None
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (zipfile.BadZipFile, KeyError, ValueError, RecursionError, RuntimeError) as error:
        raise RequestError(f"{path.name} is no file of concepts: `sfumato concepts export` writes one.") from error
    if not isinstance(told, dict) or told.get("format") != FORMAT or told.get("version") != VERSION:
        raise RequestError(f"{path.name} is no file of concepts of version {VERSION}.")
    model = told.get("model")
    revision = model.get("revision") if isinstance(model, dict) else None
    if revision != info.revision:
        name = str(model.get("name")) if isinstance(model, dict) else "another"
        raise RequestError(
            f"These concepts were made with the model {name[:80]} (revision {str(revision)[:16]}), and the one that is "
            f"loaded is {info.name} (revision {info.revision[:16]}): their neurons mean nothing in it. Load that model."
        )
    return _list(told, "concepts", MAX_CONCEPTS)


def _concept(entry: Any, info: ModelInfo, created: dt.datetime) -> OwnConcept:
    if not isinstance(entry, dict):
        raise RequestError("The file is damaged: a concept in it is no object.")
    name, expression = _text(entry, "name", 80), _text(entry, "expression")
    forms = [_string(form, "forms", 200) for form in _list(entry, "forms", concepts.probes.MAX_FORMS)]
    contrast = [_string(other, "contrast", 80) for other in _list(entry, "contrast", MAX_CONCEPTS)]
    concepts.probes.check_plan(concepts.probes.ConceptPlan(name, "own", tuple(forms)))
    phi, mode, quantile = _text(entry, "map", 24), _text(entry, "mode", 24), _number(entry.get("quantile"))
    concepts.evidence.check_map(phi, quantile if quantile is not None else 0.0, mode)
    family = _text(entry, "family", 24)
    concepts.algebra.family_of(family)
    if expression:
        concepts.algebra.parse(expression)
    return OwnConcept(
        id=secrets.token_hex(5), model_revision=info.revision, name=name, kind=_text(entry, "kind", 40), forms=forms,
        contrast=contrast, map=phi, quantile=quantile, mode=mode, expression=expression, family=family, created=created,
    )  # fmt: skip


def _probe(entry: Any, concept: OwnConcept, info: ModelInfo) -> ProbeRow:
    if not isinstance(entry, dict):
        raise RequestError(f"The file is damaged: a probe of “{concept.name}” is no object.")
    picture = entry.get("picture")
    if picture is not None and (not isinstance(picture, str) or not HASH.fullmatch(picture)):
        raise RequestError(f"The file is damaged: a probe of “{concept.name}” names a picture that cannot be.")
    against, correct, box = entry.get("against"), entry.get("correct"), entry.get("box")
    sides = [_number(side) for side in box] if isinstance(box, list) and len(box) == 4 else None
    if box is not None and (sides is None or None in sides):
        raise RequestError(f"The file is damaged: a probe of “{concept.name}” has a box of other than 4 numbers.")
    return ProbeRow(
        concept_id=concept.id, source=_text(entry, "source", 200), picture_hash=picture,
        question=_text(entry, "question"), answer=_text(entry, "answer"), says=_text(entry, "says"),
        against=None if against is None else _string(against, "against"), box=sides,
        shares=_shares(entry.get("shares"), concept.name, info), logprob=_number(entry.get("logprob")),
        correct=correct if isinstance(correct, bool) else None, refused=_text(entry, "refused"),
    )  # fmt: skip


def _shares(spelled: Any, name: str, info: ModelInfo) -> bytes | None:
    """Evidence of a probe, if it is such: neurons of this model, in order, with shares that sum to at most 1."""
    if spelled is None:
        return None
    try:
        found = concepts.evidence.Shares.from_bytes(base64.b64decode(_string(spelled, "shares", 2**26), validate=True))
    except binascii.Error as error:
        raise RequestError(f"The file is damaged: evidence of “{name}” is not base64.") from error
    good = found.shape == (info.n_layers, info.d_mlp) and bool(np.isfinite(found.value).all())
    good = good and bool((np.diff(found.index.astype(np.int64)) > 0).all() and (found.value >= 0).all())
    inside = not len(found.index) or int(found.index[-1]) < info.n_layers * info.d_mlp
    if not good or not inside or found.kept > 1.001:
        raise RequestError(f"The file is damaged: evidence of “{name}” is none of this model's neurons.")
    return found.to_bytes()


def _keep(
    session: Session, store: Store, limits: Limits, source: concepts.imports.Pictures, held: set[str], name: str
) -> None:
    """Store a picture of the file, unless it is there."""
    if f"pictures/{name}.png" not in held:
        raise RequestError(f"The file is damaged: the picture {name[:12]}… is missing.")
    picture = normalise(source.open(f"pictures/{name}.png"), limits)
    if picture.hash != name:
        raise RequestError(f"The file is damaged: the picture {name[:12]}… is another one than its name says.")
    store.put(picture)
    pictures.remember(session, picture)


def _list(entry: dict[str, Any], key: str, most: int) -> list[Any]:
    value = entry.get(key)
    if not isinstance(value, list) or len(value) > most:
        raise RequestError(f"The file is damaged: “{key}” should be a list of at most {most}.")
    return value


def _text(entry: dict[str, Any], key: str, most: int = MAX_TEXT) -> str:
    return _string(entry.get(key), key, most)


def _string(value: Any, key: str, most: int = MAX_TEXT) -> str:
    if not isinstance(value, str) or len(value) > most or "\0" in value:
        raise RequestError(f"The file is damaged: “{key}” should be a text of at most {most} characters.")
    return value


def _number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if np.isfinite(value) else None
