"""Sets of questions from people's files: VQAv2's, GQA's, POPE's and SQuAD's shapes, or a table, with a zip or folder of
pictures.

A set lies in the data folder under the hash of all that it consists of, so that an evaluation can be repeated however
the files that it came from have changed; the same files are the same set. A folder of pictures is packed into a zip.
"""

import contextlib
import csv
import dataclasses
import hashlib
import json
import re
import secrets
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.tables import QuestionSet
from engine.contract import RequestError, concepts, evaluation

BUILTIN = "builtin"
PICTURES = "pictures.zip"
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
MOST_BYTES, MOST_PICTURES = 4 * 2**30, 50_000
"""Of a folder of pictures that is packed."""
MOST_KINDS = 200
"""Kinds of question of a set: each has its own choice, row and card."""
REPORTED = 100
"""Lines of a file that are reported as bad; of those after them, the number."""
HALF = re.compile("[\0\ud800-\udfff]")
_DATE = (1980, 1, 1, 0, 0, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Brought:
    """What a person chose: `questions` and VQAv2's `annotations` as (name, bytes), `pictures` as the bytes of a zip or
    the path of a zip or folder (b'' = none)."""

    questions: tuple[str, bytes]
    annotations: tuple[str, bytes] | None = None
    pictures: bytes | Path = b""

    @property
    def files(self) -> dict[str, bytes]:
        """Bytes by name, in the order that formats have; in the data folder they lie by their number."""
        name, data = self.questions
        made = {_shown(name) or "questions": data}
        if self.annotations is not None:
            beside = _shown(self.annotations[0])
            made[beside if beside and beside not in made else "annotations"] = self.annotations[1]
        return made


def _shown(name: str) -> str:
    """A file's name as it can be stored and shown: without folders, control characters and halves of characters."""
    return "".join(letter for letter in PurePath(name).name if letter.isprintable())[:200]


def format_of(brought: Brought) -> str:
    """One of evaluation.FORMATS, by the files' endings and first lines. Raises RequestError."""
    name, data = brought.questions
    ending = PurePath(name.casefold()).suffix
    if brought.annotations is not None:
        return "vqa"
    head = data.lstrip(b"\xef\xbb\xbf \r\n\t")
    if ending in (".csv", ".tsv") or not head.startswith((b"{", b"[")):
        return "table"
    if ending == ".json":
        whole = _parsed(data)
        if isinstance(whole, dict) and "questions" in whole:
            raise RequestError(f"{name} holds VQAv2's questions. Give its annotations too: they hold the answers.")
        if evaluation.is_squad(whole):
            return "squad"
        if isinstance(whole, dict) and any(isinstance(entry, dict) for entry in whole.values()):
            return "gqa"
    if head.startswith(b"["):
        raise RequestError(f"{name or 'The file'} is one list. Write one JSON object a line, and name it .jsonl.")
    first = _parsed(head.split(b"\n", 1)[0])
    return "pope" if isinstance(first, dict) and {"text", "label"} <= set(first) else "table"


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def keep(folder: Path, brought: Brought) -> str:
    """Write the files into `folder` unless they are there; the set's hash. Raises RequestError for what is no zip and
    no folder of pictures, or too large."""
    if not brought.questions[1].strip():
        raise RequestError(f"{brought.questions[0] or 'The file'} is empty. Choose a file of questions.")
    beside = folder / f".{secrets.token_hex(6)}"
    beside.mkdir(parents=True)
    try:
        parts = []
        for number, (name, data) in enumerate(brought.files.items()):
            (beside / str(number)).write_bytes(data)
            parts.append((name, hashlib.sha256(data).hexdigest()))
        if brought.pictures:
            _bring(brought.pictures, beside / PICTURES)
            parts.append((PICTURES, _sha256(beside / PICTURES)))
        place = folder / _hash(parts)
        try:
            beside.replace(place)
        except OSError:  # it is there already, though perhaps not whole
            for path in beside.iterdir():
                path.replace(place / path.name)
        return place.name
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _hash(parts: Iterable[Sequence[str]]) -> str:
    """A set's, of its files' (name, SHA-256)."""
    return hashlib.sha256("".join(f"{name} {sha}\n" for name, sha in parts).encode()).hexdigest()


def pictured(row: QuestionSet) -> bool:
    """Whether a set has pictures: then its hash is not that of its files alone."""
    return _hash(row.files) != row.hash


def entry_word(row: QuestionSet) -> str:
    """What a number of this set's files counts: lines of the file, or entries of its JSON."""
    return "entry" if row.format in ("vqa", "gqa") else "line"


def forget(folder: Path, set_hash: str) -> None:
    """Remove the files of a set that turned out to be of no use."""
    shutil.rmtree(folder / set_hash, ignore_errors=True)


def _bring(pictures: bytes | Path, target: Path) -> None:
    if isinstance(pictures, bytes):
        target.write_bytes(pictures)
    elif pictures.is_dir():
        _pack(pictures, target)
    else:
        try:
            shutil.copyfile(pictures, target)
        except OSError as error:
            raise RequestError(f"{pictures} cannot be read: {error.strerror}.") from error
    concepts.imports.Pictures(target).close()


def _pack(source: Path, target: Path) -> None:
    """The folder's pictures as a zip that is the same whenever they are."""
    found = sorted(path for path in source.rglob("*") if path.suffix.casefold() in ENDINGS and path.is_file())
    size = sum(path.stat().st_size for path in found)
    if len(found) > MOST_PICTURES or size > MOST_BYTES:
        raise RequestError(
            f"{source} holds {len(found)} pictures, {size / 2**30:.1f} GiB; at most {MOST_PICTURES} and "
            f"{MOST_BYTES >> 30} GiB are copied. Give a folder of the pictures that the questions name."
        )
    with zipfile.ZipFile(target, "w") as archive:
        for path in found:
            archive.writestr(zipfile.ZipInfo(path.relative_to(source).as_posix(), _DATE), path.read_bytes())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def opened(folder: Path, row: QuestionSet, settings: evaluation.Settings) -> Iterator[evaluation.ItemSet]:
    """The set's questions under these settings; their pictures can be read inside the block. Raises RequestError."""
    place = folder / row.hash
    try:
        files = {name: (place / str(number)).read_bytes() for number, (name, _) in enumerate(row.files)}
    except OSError as error:
        raise _gone(row) from error
    same = all(hashlib.sha256(files[name]).hexdigest() == sha for name, sha in row.files)
    seen = (place / PICTURES).is_file()
    if not same or (not seen and pictured(row)):
        raise _gone(row)
    pictures = concepts.imports.Pictures(place / PICTURES) if seen else None
    try:
        try:
            found = evaluation.file_items(settings, row.format, files, pictures)
        except (TypeError, ValueError, csv.Error) as error:
            raise RequestError(
                f"{row.name} cannot be read as {evaluation.FORMATS[row.format].words}: {_plain(error)}."
            ) from error
        yield dataclasses.replace(found, **_storable(found))
    finally:
        if pictures is not None:
            pictures.close()


def _gone(row: QuestionSet) -> RequestError:
    return RequestError(
        f"The files of the set “{row.name}” are gone from the data folder, or are no longer what they were. Bring them "
        "again; the same files are the same set."
    )


def _plain(text: object) -> str:
    """A text as it can be stored and shown."""
    return str(text).encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _storable(found: evaluation.ItemSet) -> dict[str, tuple[Any, ...]]:
    """The items whose texts can be stored and put to a model; the others are bad lines."""
    kept, bad = [], [evaluation.BadLine(entry.line, _plain(entry.reason)) for entry in found.bad]
    for item in found.items:
        if HALF.search("".join((item.kind, item.question, *item.answers))):
            reason = "It holds a zero byte or half of a character, which cannot be stored."
            bad.append(evaluation.BadLine(int(item.id), reason))
        else:
            kept.append(item)
    return {"items": tuple(kept), "bad": tuple(sorted(bad, key=lambda entry: entry.line))}


def described(folder: Path, set_hash: str, brought: Brought) -> QuestionSet:
    """A new row for a set that is kept. Raises RequestError where the files as a whole cannot be used, or no line of
    them can."""
    most, form = evaluation.contract.MAX_ITEMS, format_of(brought)
    every = evaluation.Settings(limit=most, dev=most, build=most)
    every = evaluation.file_settings(form, brought.files, every)
    files = [list(pair) for pair in every.source]
    row = QuestionSet(hash=set_hash, name=every.set, format=form, metric=every.metric, files=files)
    with opened(folder, row, every) as found:
        row.questions, row.left_out = len(found.items), len(found.bad)
        row.kinds = _counts(item.kind for item in found.items)
        row.conditions = _counts(item.condition for item in found.items)
        row.bad = [[entry.line, entry.reason] for entry in found.bad[:REPORTED]]
    if len(row.kinds) > MOST_KINDS:
        raise RequestError(
            f"{row.name} has {len(row.kinds):,} kinds of question; at most {MOST_KINDS} are told apart. Group them, or "
            "leave the kind out."
        )
    if not row.questions:
        why = f" Line {row.bad[0][0]}: {row.bad[0][1]}" if row.bad else ""
        raise RequestError(f"No line of {row.name} can be asked.{why}")
    return row


def _counts(names: Iterator[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def settings_of(row: QuestionSet, settings: evaluation.Settings) -> evaluation.Settings:
    """The settings with what the set decides: its name, metric and files."""
    source = tuple((name, sha) for name, sha in row.files)
    return dataclasses.replace(settings, set=row.name, metric=row.metric, source=source)


def remember(session: Session, row: QuestionSet) -> None:
    if session.get(QuestionSet, row.hash) is None:
        session.add(row)
        session.flush()


def listed(session: Session) -> list[QuestionSet]:
    """Newest first."""
    return list(session.scalars(select(QuestionSet).order_by(QuestionSet.created.desc(), QuestionSet.hash)))


def names(session: Session) -> Mapping[str, str]:
    """Set → its name."""
    return {row.hash: row.name for row in session.execute(select(QuestionSet.hash, QuestionSet.name))}
