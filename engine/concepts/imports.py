"""Probes from a person's files: CSV, JSONL, VQAv2-shaped and COCO-caption-shaped, with a folder or zip of pictures.
Torch-free.

Every line becomes an `ImportedProbe` or a `BadLine` (see engine.entries). `says` is the part of the answer that
expresses the concept; without one, the first surface form found in it.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from engine.concepts.probes import find_form, said_in
from engine.entries import BadLine, Entry, Pictures, csv_lines, field, gather, json_lines, json_of, numbered
from engine.errors import RequestError

__all__ = ["BadLine", "Box", "Imported", "ImportedProbe", "Pictures", "probe_of", "read_captions", "read_csv",
           "read_jsonl", "read_vqa"]  # fmt: skip

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


@dataclasses.dataclass(frozen=True)
class Imported:
    """What a file held, in its order."""

    probes: tuple[ImportedProbe, ...]
    bad: tuple[BadLine, ...]


# Lines


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
    question, answer = field(entry, "question"), field(entry, "answer")
    says, concept = field(entry, "says", needed=False), field(entry, "concept", needed=False)
    picture = field(entry, "picture", "image", needed=False)
    if says and find_form(answer, says) is None:
        raise RequestError(f"The answer {answer!r} does not contain {says!r}, which 'says' names.")
    said = says or said_in(answer, forms or ([concept] if concept else [answer]))
    if picture:
        if pictures is None:
            raise RequestError(f"The picture {picture!r} is named, but no folder or zip of pictures was given.")
        pictures.check(picture)
    return ImportedProbe(line, picture or None, question, answer, said, _box(entry.get("box")), concept)


def _gathered(entries: Iterable[Entry], forms: Sequence[str], pictures: Pictures | None) -> Imported:
    return Imported(*gather(entries, lambda line, entry: probe_of(line, entry, forms, pictures)))


def read_csv(data: bytes, forms: Sequence[str] = (), pictures: Pictures | None = None) -> Imported:
    """A table with a header: `question`, `answer`, and as wanted `picture`, `says`, `box`, `concept`; between fields
    commas, semicolons or tabs. Raises RequestError where the file as a whole cannot be read."""
    return _gathered(csv_lines(data, COLUMNS), forms, pictures)


def read_jsonl(data: bytes, forms: Sequence[str] = (), pictures: Pictures | None = None) -> Imported:
    """One JSON object a line, with the keys that `read_csv` has as columns; empty lines are passed over."""
    return _gathered(json_lines(data), forms, pictures)


# Published shapes


def _whole(data: bytes, key: str, what: str) -> tuple[dict[str, Any], list[Any]]:
    value = json_of(data, what)
    entries = value.get(key) if isinstance(value, dict) else None
    if not isinstance(entries, list):
        raise RequestError(f"The {what} file should be an object with a list {key!r}.")
    return value, entries


def _number(entry: Any, key: str) -> int:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(f"{key!r} is missing or no whole number.")
    return value


def read_vqa(questions: bytes, annotations: bytes, forms: Sequence[str], pictures: Pictures | None = None) -> Imported:
    """VQAv2's two files. The answer is `multiple_choice_answer`, or the most frequent of `answers`; questions whose
    answer says none of `forms` are passed over, for they are other concepts' and no mistake. Lines are
    entries of the questions file, from 1."""
    _, asked = _whole(questions, "questions", "questions")
    _, answered = _whole(annotations, "annotations", "annotations")
    answers = {
        entry["question_id"]: entry
        for entry in answered
        if isinstance(entry, dict) and isinstance(entry.get("question_id"), int)
    }

    def rows() -> Iterator[Entry]:
        for number, entry in enumerate(asked, 1):
            try:
                known = answers.get(_number(entry, "question_id"))
                if known is None:
                    raise RequestError(f"No annotation has the question_id {entry['question_id']}.")
                answer = _answer(known)
                if any(find_form(answer, form) for form in forms):
                    name = numbered(pictures, _number(entry, "image_id"))
                    yield number, {"picture": name, "question": entry.get("question"), "answer": answer}
            except RequestError as error:
                yield number, error

    return _gathered(rows(), forms, pictures)


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

    def rows() -> Iterator[Entry]:
        for number, entry in enumerate(entries, 1):
            try:
                image = _number(entry, "image_id")
                caption = field(entry, "caption")
                if image not in names:
                    raise RequestError(f"No image has the id {image}.")
                if any(find_form(caption, form) for form in forms):
                    yield number, {"picture": names[image], "question": question, "answer": caption}
            except RequestError as error:
                yield number, error

    return _gathered(rows(), forms, pictures)
