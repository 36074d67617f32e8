"""Probes from a person's files: CSV, JSONL, VQAv2-shaped and COCO-caption-shaped, with a folder or zip of pictures.
Torch-free.

1. Every line becomes an `ImportedProbe` or a `BadLine` with its number and the reason; good lines are kept whatever the
   bad ones are. Nothing is decoded: a record carries the picture's name, and `Pictures` gives its bytes when asked.
2. A picture's name stays inside its folder or zip: absolute paths, `..`, links that lead out, and members of a zip that
   are too large or too well compressed are refused.
3. `says` is the part of the answer that expresses the concept; without one, the first surface form found in it.
"""

import csv
import dataclasses
import io
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from engine.concepts.probes import find_form, said_in
from engine.errors import RequestError

MAX_LINES = 100_000
MAX_MEMBERS = 200_000
MAX_PICTURE = 50 * 2**20
MAX_RATIO = 200
MAX_TEXT = 2000
CAPTION_QUESTION = "describe the picture."
COLUMNS = ("picture", "question", "answer", "says", "box", "concept")
"""What a line may hold; `image` is read as `picture`."""
Box = tuple[float, float, float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class ImportedProbe:
    """A good line: `line` from 1 (an entry's number in files of one JSON value); `picture` = a name inside the folder
    or zip, None for a probe of text only; `concept` = "" where the file names none."""

    line: int
    picture: str | None
    question: str
    answer: str
    says: str
    box: Box | None = None
    concept: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be used, and why."""

    line: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Imported:
    """What a file held, in its order."""

    probes: tuple[ImportedProbe, ...]
    bad: tuple[BadLine, ...]


# Pictures


def inner_name(name: str) -> str:
    """A picture's name as it may be looked up inside a folder or zip, with `/`. Raises RequestError for one that leads
    out."""
    clean = name.strip().replace("\\", "/")
    path = PurePosixPath(clean)
    if not clean or "\0" in clean:
        raise RequestError("The picture's name is empty or holds a zero byte.")
    if path.is_absolute() or ".." in path.parts or (len(clean) > 1 and clean[1] == ":"):
        raise RequestError(f"The picture {name!r} lies outside the pictures. Give its path inside the folder or zip.")
    return str(path)


class Pictures:
    """A folder or a zip of pictures. `open(name)` gives one picture's bytes; nothing is unpacked to disk."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.folder = source.resolve() if source.is_dir() else None
        self.members: dict[str, zipfile.ZipInfo] = {}
        self.archive: zipfile.ZipFile | None = None
        if self.folder is None:
            try:
                self.archive = zipfile.ZipFile(source)
            except (OSError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
                raise RequestError(f"{source.name} is no folder and no zip of pictures: {error}.") from error
            if len(self.archive.infolist()) > MAX_MEMBERS:
                raise RequestError(
                    f"The zip has {len(self.archive.infolist())} members; at most {MAX_MEMBERS} can be read. Split it."
                )
            for info in self.archive.infolist():
                if not info.is_dir():
                    self.members[info.filename.replace("\\", "/")] = info

    def check(self, name: str) -> None:
        """Raise RequestError unless a picture of this name is there, inside, and of a size to be read."""
        inner = inner_name(name)
        if self.folder is not None:
            path = (self.folder / inner).resolve()
            if not path.is_relative_to(self.folder):
                raise RequestError(f"The picture {name!r} is a link that leads out of the folder. Copy the file there.")
            try:
                there = path.is_file()
            except OSError:  # a name that no folder can hold
                there = False
            if not there:
                raise RequestError(f"There is no picture {name[:80]!r} in the folder.")
            size, packed = path.stat().st_size, None
        else:
            info = self.members.get(inner)
            if info is None:
                raise RequestError(f"There is no picture {name[:80]!r} in the zip.")
            if info.flag_bits & 1:
                raise RequestError(f"The picture {name!r} is encrypted. Make the zip without a password.")
            size, packed = info.file_size, info.compress_size
        if size > MAX_PICTURE:
            raise RequestError(
                f"The picture {name!r} has {size / 2**20:.0f} MiB; at most {MAX_PICTURE >> 20} are read."
            )
        if packed is not None and size > MAX_RATIO * max(packed, 1):
            raise RequestError(
                f"The picture {name!r} unpacks to {size // max(packed, 1)} times its size: no picture does."
            )

    def open(self, name: str) -> bytes:
        """The picture's bytes. Raises RequestError as `check`, and where the zip lies about a member's size."""
        self.check(name)
        inner = inner_name(name)
        if self.folder is not None:
            return (self.folder / inner).read_bytes()
        assert self.archive is not None
        try:
            with self.archive.open(self.members[inner]) as member:
                data = member.read(MAX_PICTURE + 1)
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError) as error:
            raise RequestError(f"The picture {name!r} cannot be read from the zip: {error}.") from error
        if len(data) > MAX_PICTURE:
            raise RequestError(f"The picture {name!r} has more than {MAX_PICTURE >> 20} MiB.")
        return data

    def close(self) -> None:
        if self.archive is not None:
            self.archive.close()


# Lines


def _text(entry: Mapping[str, Any], key: str, needed: bool) -> str:
    value = entry.get(key)
    if value is not None and not isinstance(value, str | int | float):
        raise RequestError(f"{key!r} should be a text.")
    text = "" if value is None else str(value).strip()
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise RequestError(f"{key!r} holds a zero byte or half of a character, which cannot be stored.")
    if needed and not text:
        raise RequestError(f"{key!r} is missing.")
    if len(text) > MAX_TEXT:
        raise RequestError(f"{key!r} has {len(text)} characters; at most {MAX_TEXT} are read.")
    return text


def _box(value: Any) -> Box | None:
    """left, top, right, bottom in pixels, as four numbers in a list or with blanks, commas or semicolons between."""
    if value in (None, "", []):
        return None
    parts = value.replace(",", " ").replace(";", " ").split() if isinstance(value, str) else value
    try:
        left, top, right, bottom = (float(part) for part in parts)
    except (TypeError, ValueError):
        raise RequestError(f"'box' should be four numbers, left top right bottom, not {value!r}.") from None
    if not (0 <= left < right < float("inf") and 0 <= top < bottom < float("inf")):
        raise RequestError(f"'box' should have left < right and top < bottom, in pixels; it is {value!r}.")
    return left, top, right, bottom


def probe_of(line: int, entry: Mapping[str, Any], forms: Sequence[str], pictures: Pictures | None) -> ImportedProbe:
    """A good line, or RequestError with what is wrong with it."""
    question, answer = _text(entry, "question", True), _text(entry, "answer", True)
    says = _text(entry, "says", False)
    picture = _text(entry, "picture", False) or _text(entry, "image", False)
    concept = _text(entry, "concept", False)
    if says and find_form(answer, says) is None:
        raise RequestError(f"The answer {answer!r} does not contain {says!r}, which 'says' names.")
    said = says or said_in(answer, forms or ([concept] if concept else [answer]))
    if picture:
        if pictures is None:
            raise RequestError(f"The picture {picture!r} is named, but no folder or zip of pictures was given.")
        pictures.check(picture)
    return ImportedProbe(line, picture or None, question, answer, said, _box(entry.get("box")), concept)


def _gather(
    lines: Iterable[tuple[int, Mapping[str, Any] | RequestError]], forms: Sequence[str], pictures: Pictures | None
) -> Imported:
    good: list[ImportedProbe] = []
    bad: list[BadLine] = []
    for line, entry in lines:
        if len(good) + len(bad) >= MAX_LINES:
            bad.append(BadLine(line, f"Only the first {MAX_LINES} lines are read. Split the file."))
            break
        try:
            if isinstance(entry, RequestError):
                raise entry
            good.append(probe_of(line, entry, forms, pictures))
        except RequestError as error:
            bad.append(BadLine(line, str(error)))
    return Imported(tuple(good), tuple(bad))


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"The file is not UTF-8 (byte {error.start}). Save it as UTF-8.") from error


def read_csv(data: bytes, forms: Sequence[str] = (), pictures: Pictures | None = None) -> Imported:
    """A table with a header: `question`, `answer`, and as wanted `picture`, `says`, `box`, `concept`; between fields
    commas, semicolons or tabs. Raises RequestError where the file as a whole cannot be read."""
    text = _decoded(data)
    head = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=head.count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        columns = [(name or "").strip().lower() for name in reader.fieldnames or []]
    except csv.Error as error:
        raise RequestError(f"The first line is no line of a table: {error}.") from error
    if not {"question", "answer"} <= set(columns):
        raise RequestError(
            f"The first line should name the columns question and answer (of {', '.join(COLUMNS)}); "
            f"it names {', '.join(columns) or 'nothing'}."
        )
    reader.fieldnames = columns

    def rows() -> Iterator[tuple[int, Mapping[str, Any] | RequestError]]:
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield reader.reader.line_num, RequestError(f"This is no line of a table: {error}.")
                continue
            wrong = None in row or None in row.values()
            count = RequestError(f"The line has not as many fields as the header, which has {len(columns)}.")
            yield reader.line_num, count if wrong else row

    return _gather(rows(), forms, pictures)


def read_jsonl(data: bytes, forms: Sequence[str] = (), pictures: Pictures | None = None) -> Imported:
    """One JSON object a line, with the keys that `read_csv` has as columns; empty lines are passed over."""

    def rows() -> Iterator[tuple[int, Mapping[str, Any] | RequestError]]:
        for number, line in enumerate(_decoded(data).split("\n"), 1):
            if line.strip():
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    yield number, RequestError(f"This is no JSON: {error}.")
                    continue
                yield number, value if isinstance(value, dict) else RequestError("This is no JSON object.")

    return _gather(rows(), forms, pictures)


# Published shapes


def _whole(data: bytes, key: str, what: str) -> tuple[dict[str, Any], list[Any]]:
    try:
        value = json.loads(_decoded(data))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The {what} file is no JSON: {error}.") from error
    entries = value.get(key) if isinstance(value, dict) else None
    if not isinstance(entries, list):
        raise RequestError(f"The {what} file should be an object with a list {key!r}.")
    return value, entries


def _number(entry: Any, key: str) -> int:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(f"{key!r} is missing or no whole number.")
    return value


def read_vqa(
    questions: bytes,
    annotations: bytes,
    forms: Sequence[str],
    pictures: Pictures | None = None,
    picture_name: str = "COCO_val2014_{:012d}.jpg",
) -> Imported:
    """VQAv2's two files. The answer is `multiple_choice_answer`, or the most frequent of `answers`; questions whose
    answer says none of `forms` are passed over, for they are other concepts' and no mistake. `picture_name` makes a
    file's name of an image's number. Lines are entries of the questions file, from 1."""
    _, asked = _whole(questions, "questions", "questions")
    _, answered = _whole(annotations, "annotations", "annotations")
    answers = {
        entry["question_id"]: entry
        for entry in answered
        if isinstance(entry, dict) and isinstance(entry.get("question_id"), int)
    }

    def rows() -> Iterator[tuple[int, Mapping[str, Any] | RequestError]]:
        for number, entry in enumerate(asked, 1):
            try:
                known = answers.get(_number(entry, "question_id"))
                if known is None:
                    raise RequestError(f"No annotation has the question_id {entry['question_id']}.")
                answer = _answer(known)
                if any(find_form(answer, form) for form in forms):
                    name = picture_name.format(_number(entry, "image_id"))
                    yield number, {"picture": name, "question": entry.get("question"), "answer": answer}
            except RequestError as error:
                yield number, error

    return _gather(rows(), forms, pictures)


def _answer(annotation: Mapping[str, Any]) -> str:
    chosen = annotation.get("multiple_choice_answer")
    if isinstance(chosen, str) and chosen.strip():
        return chosen.strip()
    given = annotation.get("answers")
    said = (
        [str(one.get("answer", "")).strip() for one in given if isinstance(one, dict)]
        if isinstance(given, list)
        else []
    )
    counts = Counter(answer for answer in said if answer)
    if not counts:
        raise RequestError("The annotation has no answer.")
    return counts.most_common(1)[0][0]


def read_captions(
    data: bytes, forms: Sequence[str], pictures: Pictures | None = None, question: str = CAPTION_QUESTION
) -> Imported:
    """COCO's caption file: each caption that says one of `forms` is a probe that asks for a description; the others are
    passed over. Lines are entries of `annotations`, from 1."""
    value, entries = _whole(data, "annotations", "captions")
    images = value.get("images")
    names = {
        image["id"]: image["file_name"]
        for image in (images if isinstance(images, list) else [])
        if isinstance(image, dict) and isinstance(image.get("id"), int) and isinstance(image.get("file_name"), str)
    }

    def rows() -> Iterator[tuple[int, Mapping[str, Any] | RequestError]]:
        for number, entry in enumerate(entries, 1):
            try:
                image = _number(entry, "image_id")
                caption = _text(entry, "caption", True)
                if image not in names:
                    raise RequestError(f"No image has the id {image}.")
                if any(find_form(caption, form) for form in forms):
                    yield number, {"picture": names[image], "question": question, "answer": caption}
            except RequestError as error:
                yield number, error

    return _gather(rows(), forms, pictures)
