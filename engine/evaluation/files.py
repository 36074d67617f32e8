"""Sets from a person's files: VQAv2, GQA, POPE, and plain tables, with a folder or zip of pictures. Torch-free.

1. Every entry becomes an `Item` or a `BadItem` with its number (line, or place in the list, from 1) and the reason.
2. A picture's name, hashed with the seed, decides the split: all questions about one picture are in one of build, dev
   and test. Questions without a picture go by their own words.
3. Of each kind, at most `settings.dev` and `limit` questions are taken, in the order of a hash with the seed; of build
   questions ten times `settings.build`, so that rarer answers have enough of them.
"""

import dataclasses
import functools
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from engine.entries import Entry, Pictures, csv_lines, field, gather, json_lines, json_of, numbered
from engine.errors import RequestError, UnknownName
from engine.evaluation import squad
from engine.evaluation.contract import Item, ItemSet, Settings

CONDITION = "as given"
SHARES = (("build", 0.3), ("dev", 0.5), ("test", 1.0))
"""Upper ends of the splits' parts of [0, 1)."""
BUILD_TIMES = 10
MAX_PIXELS = 50_000_000
TABLE = ("picture", "question", "answer", "kind")
Decode = Callable[[bytes], npt.NDArray[np.uint8]]


@dataclasses.dataclass(frozen=True)
class Format:
    """A shape of files: in words, what each file is, and the metric that belongs to the set."""

    words: str
    files: tuple[str, ...]
    metric: str


FORMATS = {
    "vqa": Format("VQAv2", ("questions JSON", "annotations JSON"), "vqa"),
    "gqa": Format("GQA", ("questions JSON",), "exact"),
    "pope": Format("POPE", ("JSON lines with question_id, image, text and label",), "yesno"),
    "squad": Format("SQuAD", ("JSON of articles with paragraphs and questions, without pictures",), "exact"),
    "table": Format("table", ("CSV or JSON lines with picture, question, answer and, as wanted, kind",), "exact"),
}
Raw = tuple[str, str, str, tuple[str, ...]]
"""kind, picture's name ('' = none), question, right answers"""


def file_settings(form: str, files: Mapping[str, bytes], settings: Settings) -> Settings:
    """The settings with the set's name, its metric, and the files' digests. Raises UnknownName, RequestError."""
    if form not in FORMATS:
        raise UnknownName(f"There is no format {form!r} of sets. Choose of {', '.join(FORMATS)}.")
    needed = FORMATS[form].files
    if len(files) != len(needed):
        raise RequestError(
            f"{FORMATS[form].words} takes {len(needed)} file(s): {'; '.join(needed)}. {len(files)} were given."
        )
    source = tuple((name, hashlib.sha256(data).hexdigest()) for name, data in files.items())
    return dataclasses.replace(settings, set=next(iter(files)), metric=FORMATS[form].metric, source=source)


def decoded(data: bytes) -> npt.NDArray[np.uint8]:
    """A picture's pixels, upright, RGB. Raises RequestError for what is no picture, or a too large one."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise RequestError(
                    f"A picture has {image.width} × {image.height} pixels; {MAX_PIXELS} are read at most."
                )
            return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except UnidentifiedImageError as error:  # its words hold an address in memory, another one each time
        raise RequestError("A picture cannot be read: it is no picture, or of a kind that is not known.") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise RequestError(f"A picture cannot be read: {error}.") from error


# Entries of each format


def _table(entry: Mapping[str, Any]) -> Raw:
    kind = field(entry, "kind", needed=False) or "question"
    return kind, field(entry, "picture", "image", needed=False), field(entry, "question"), (field(entry, "answer"),)


def _pope(entry: Mapping[str, Any]) -> Raw:
    label = field(entry, "label", "answer").casefold()
    if label not in ("yes", "no"):
        raise RequestError(f"'label' should be yes or no, not {label!r}.")
    kind = field(entry, "category", "kind", needed=False) or "yes or no"
    return kind, field(entry, "image", "picture"), field(entry, "text", "question"), (label,)


def _gqa(entry: Mapping[str, Any]) -> Raw:
    types = entry.get("types")
    kind = field(types, "structural", needed=False) if isinstance(types, dict) else ""
    kind = kind or "question"
    return kind, f"{field(entry, 'imageId')}.jpg", field(entry, "question"), (field(entry, "answer"),)


def _vqa(entry: Mapping[str, Any], pictures: Pictures | None) -> Raw:
    given = entry.get("answers")
    people = (
        [field(one, "answer", needed=False) for one in given if isinstance(one, dict)]
        if isinstance(given, list)
        else []
    )
    answers = tuple(one for one in people if one) or (field(entry, "multiple_choice_answer"),)
    number = field(entry, "image_id")
    picture = numbered(pictures, int(number)) if number.isdecimal() else number
    return field(entry, "answer_type", needed=False) or "other", picture, field(entry, "question"), answers


def _vqa_entries(files: Sequence[bytes]) -> Iterator[Entry]:
    values = [json_of(data) for data in files]
    asked = next((v["questions"] for v in values if isinstance(v, dict) and isinstance(v.get("questions"), list)), None)
    said = next(
        (v["annotations"] for v in values if isinstance(v, dict) and isinstance(v.get("annotations"), list)), None
    )
    if asked is None or said is None:
        raise RequestError("VQAv2 takes a file with a list 'questions' and one with a list 'annotations'.")
    known = {
        one["question_id"]: one
        for one in said
        if isinstance(one, dict) and isinstance(one.get("question_id"), int | str)
    }
    met: dict[int | str, int] = {}
    for number, entry in enumerate(asked, 1):
        number_of = entry.get("question_id") if isinstance(entry, dict) else None
        if not isinstance(number_of, int | str) or number_of not in known:
            yield number, RequestError("No annotation has this question's question_id.")
        elif met.setdefault(number_of, number) != number:
            yield number, RequestError(f"Its question_id {number_of} is that of number {met[number_of]} already.")
        else:
            yield number, {**known[number_of], **entry}


def _gqa_entries(data: bytes) -> Iterator[Entry]:
    value = json_of(data)
    if not isinstance(value, dict):
        raise RequestError("GQA's questions file should be an object of questions by their number.")
    for number, entry in enumerate(value.values(), 1):
        yield number, entry if isinstance(entry, dict) else RequestError("This is no JSON object.")


def _entries(
    form: str, files: Sequence[bytes], pictures: Pictures | None
) -> tuple[Iterator[Entry], Callable[..., Raw]]:
    if form == "vqa":
        return _vqa_entries(files), functools.partial(_vqa, pictures=pictures)
    if form == "gqa":
        return _gqa_entries(files[0]), _gqa
    if form == "pope":
        return json_lines(files[0]), _pope
    if form == "squad":
        return squad.entries(json_of(files[0])), squad.raw
    if files[0].lstrip(b"\xef\xbb\xbf \r\n\t")[:1] == b"{":
        return json_lines(files[0]), _table
    return csv_lines(files[0], TABLE), _table


# Items


def _drawn(seed: int, *words: str) -> float:
    """A number in [0, 1) that depends on the words and the seed alone."""
    digest = hashlib.sha256("\0".join([str(seed), *words]).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def split_of(seed: int, picture: str) -> str:
    """The split that a picture (or a question without one) belongs to."""
    drawn = _drawn(seed, "split", picture)
    return next(name for name, end in SHARES if drawn < end)


def _picture(pictures: Pictures, name: str, decode: Decode) -> npt.NDArray[np.uint8]:
    return decode(pictures.open(name))


def _nothing() -> None:
    return None


def file_items(
    settings: Settings,
    form: str,
    files: Mapping[str, bytes],
    pictures: Pictures | None,
    decode: Decode = decoded,
) -> ItemSet:
    """The questions of the files. `decode` makes pixels of a picture's bytes. The same question about the same picture,
    of the same kind, counts once. Raises RequestError where a file as a whole cannot be read."""
    file_settings(form, files, settings)
    entries, read = _entries(form, list(files.values()), pictures)
    known: dict[tuple[str, str, str], int] = {}

    def item(number: int, entry: Mapping[str, Any]) -> Item:
        kind, picture, question, answers = read(entry)
        if picture and pictures is None:
            raise RequestError(f"The picture {picture!r} is named, but no folder or zip of pictures was given.")
        if picture and pictures is not None:
            pictures.check(picture)
        first = known.setdefault((kind, picture, question), number)
        if first != number:
            raise RequestError(f"The same is asked already in number {first}: each question counts once.")
        load = functools.partial(_picture, pictures, picture, decode) if picture and pictures else _nothing
        split = split_of(settings.seed, picture or question)
        return Item(str(number), kind, CONDITION, split, question, answers, load, (kind,), bare=not picture)

    good, bad = gather(entries, item)
    return ItemSet(_taken(good, settings), bad)


def _taken(items: Sequence[Item], settings: Settings) -> tuple[Item, ...]:
    """The wanted kinds' questions, at most as many of each kind and split as the settings say. Raises UnknownName."""
    kinds = list(dict.fromkeys(item.kind for item in items))
    for kind in settings.kinds:
        if kind not in kinds:
            raise UnknownName(f"The set has no kind of question {kind!r}. It has {', '.join(kinds)}.")
    left = {"build": BUILD_TIMES * settings.build, "dev": settings.dev, "test": settings.limit}
    grouped: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        grouped.setdefault((item.kind, item.split), []).append(item)
    found: list[Item] = []
    for kind in settings.kinds or kinds:
        for split, most in left.items():
            some = grouped.get((kind, split), [])
            some.sort(key=lambda item: _drawn(settings.seed, "order", item.id))
            found += some[:most]
    return tuple(found)
