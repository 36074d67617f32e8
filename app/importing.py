"""A person's files become probes: a table of lines, a second file of annotations where the shape has one, and a zip of
pictures. Each picture goes through intake into the store; what cannot be taken is said line by line."""

import dataclasses
import io
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image

from app.uploads import BadPicture, Limits, Normalised, normalise
from engine.contract import RequestError, concepts

imports = concepts.imports
Box = tuple[float, float, float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Files:
    """What a person chose. `table` holds the probes, `annotations` VQAv2's second file (b'' = none), `pictures` a zip
    or the path of a zip or folder (b'' = none). `name` is the table's, and says with its ending what shape it has."""

    name: str
    table: bytes
    annotations: bytes = b""
    pictures: bytes | Path = b""


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """A good line, its picture stored. `box` in the pixels of the stored picture."""

    line: int
    picture_hash: str | None
    question: str
    answer: str
    says: str
    box: Box | None


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """What a file held: good lines, and (number, reason) of those that could not be taken."""

    taken: tuple[Taken, ...]
    bad: tuple[tuple[int, str], ...]


def read(files: Files, forms: Sequence[str], limits: Limits, keep: Callable[[Normalised], str], most: int) -> Read:
    """At most `most` good lines; `keep` stores a picture and gives its hash. Raises RequestError where the file or the
    zip as a whole cannot be read."""
    with tempfile.TemporaryDirectory() as folder:
        pictures = _pictures(files.pictures, Path(folder))
        try:
            found = _parsed(files, forms, pictures)
            return _taken(found, pictures, limits, keep, most)
        finally:
            if pictures is not None:
                pictures.close()


def _pictures(data: bytes | Path, folder: Path) -> concepts.imports.Pictures | None:
    if isinstance(data, Path):
        return imports.Pictures(data)
    if not data:
        return None
    path = folder / "pictures.zip"
    path.write_bytes(data)
    return imports.Pictures(path)


def _parsed(
    files: Files, forms: Sequence[str], pictures: concepts.imports.Pictures | None
) -> concepts.imports.Imported:
    """By its ending; where that says nothing, by its first character."""
    ending = Path(files.name.casefold()).suffix
    objects = files.table.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{")
    if ending == ".json" or (files.annotations and objects):
        return _published(files, forms, pictures)
    if ending in (".jsonl", ".ndjson") or (objects and ending not in (".csv", ".tsv")):
        return imports.read_jsonl(files.table, forms, pictures)
    return imports.read_csv(files.table, forms, pictures)


def _published(
    files: Files, forms: Sequence[str], pictures: concepts.imports.Pictures | None
) -> concepts.imports.Imported:
    if files.annotations:
        return imports.read_vqa(files.table, files.annotations, forms, pictures)
    try:
        value = json.loads(files.table)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{files.name} is no JSON: {error}. For one object a line, name it .jsonl.") from error
    if isinstance(value, dict) and "questions" in value:
        raise RequestError(f"{files.name} holds VQAv2's questions. Choose its annotations too: they hold the answers.")
    return imports.read_captions(files.table, forms, pictures)


def _taken(
    found: concepts.imports.Imported, pictures: concepts.imports.Pictures | None, limits: Limits,
    keep: Callable[[Normalised], str], most: int,
) -> Read:  # fmt: skip
    taken: list[Taken] = []
    bad = [(entry.line, entry.reason) for entry in found.bad]
    for probe in found.probes:
        try:
            if len(taken) >= most:
                raise RequestError(f"There is room for {most} more probes only. Make a second concept of the rest.")
            picture_hash, box = None, None
            if probe.picture is not None and pictures is not None:
                data = pictures.open(probe.picture)
                picture = normalise(data, limits)
                box = _fitted(probe.box, data, picture)
                picture_hash = keep(picture)
            taken.append(Taken(probe.line, picture_hash, probe.question, probe.answer, probe.says, box))
        except BadPicture as error:
            bad.append((probe.line, f"{probe.picture}: {error}"))
        except RequestError as error:
            bad.append((probe.line, str(error)))
    return Read(tuple(taken), tuple(sorted(bad)))


def _fitted(box: Box | None, data: bytes, picture: Normalised) -> Box | None:
    """A box in pixels of the file as one of the stored picture, which may have been scaled down; None where the picture
    was turned. Raises RequestError for a box outside."""
    if box is None:
        return None
    with Image.open(io.BytesIO(data)) as image:
        (width, height), turned = image.size, image.getexif().get(0x0112, 1) not in (0, 1)
    if turned:
        return None
    if box[2] > width or box[3] > height:
        raise RequestError(f"The box reaches to {box[2]:g}, {box[3]:g}; the picture has {width} × {height} pixels.")
    across, down = picture.width / width, picture.height / height
    return box[0] * across, box[1] * down, box[2] * across, box[3] * down
