"""What people's files hold: numbered entries of tables, JSON lines and JSON; pictures of a folder or zip. Torch-free.

1. Every line, or entry of a JSON list, is good or a `BadLine` with its number (from 1) and the reason; good ones are
   kept whatever the bad ones are. Nothing is decoded: an entry has its picture's name, `Pictures` gives the bytes.
2. A picture's name stays inside its folder or zip: absolute paths, `..`, links that lead out, and members of a zip that
   are too large or too well compressed are refused.
"""

import csv
import dataclasses
import functools
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from engine.errors import RequestError

MAX_LINES = 100_000
MAX_MEMBERS = 200_000
MAX_PICTURE = 50 * 2**20
MAX_RATIO = 200
MAX_TEXT = 2000
MAX_LEFT_OUT = 3
"""Folders of a zip that need not be named."""
HIDDEN = "__MACOSX/"
"""Where a Mac puts, into a zip, beside each file a second one that is no picture."""
NUMBERED = re.compile(r"((?:.*[^0-9])?)([0-9]{1,18})(\.\w+)")
"""A picture's name that ends in its number, as COCO's do."""
DIGITS, COCO_NAME = 12, "COCO_val2014_{:012d}.jpg"
Entry = tuple[int, Mapping[str, Any] | RequestError]
"""Number from 1, and what stands there or why that cannot be read."""
Good = TypeVar("Good")


@dataclasses.dataclass(frozen=True, slots=True)
class BadLine:
    """A line, or entry of a JSON list, that cannot be used, and why."""

    line: int
    reason: str


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
    """A folder or a zip of pictures. `open(name)` gives one picture's bytes; nothing is unpacked to disk. A zip's
    members may lie in folders that no line names (`images/…`), as long as one member alone is meant."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.folder = source.resolve() if source.is_dir() else None
        self.members: dict[str, zipfile.ZipInfo] = {}
        self.archive: zipfile.ZipFile | None = None
        self._shorter: dict[str, zipfile.ZipInfo | None] = {}
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
                    self._take(info)

    def _take(self, info: zipfile.ZipInfo) -> None:
        """Know a member by its whole name, and by what is left without its first folders (None: of several)."""
        whole = info.filename.replace("\\", "/")
        self.members[whole] = info
        rest = "" if whole.startswith(HIDDEN) else whole
        for _ in range(MAX_LEFT_OUT):
            rest = rest.partition("/")[2]
            if rest:
                self._shorter[rest] = None if rest in self._shorter else info

    def _member(self, inner: str) -> zipfile.ZipInfo | None:
        return self.members.get(inner) or self._shorter.get(inner)

    @functools.cached_property
    def numbers(self) -> dict[int, str]:
        """The pictures whose names end in a number, by it; of several, one with COCO's twelve digits."""
        here = self.members if self.folder is None else [path.name for path in self.folder.iterdir()]
        names = sorted(name for name in here if not name.startswith(HIDDEN))
        found = [match for match in map(NUMBERED.fullmatch, names) if match is not None]
        found.sort(key=lambda match: len(match[2]) == DIGITS)
        return {int(match[2]): self._shortest(match[0]) for match in found}

    def _shortest(self, name: str) -> str:
        """A member's name without the folders that need not be named."""
        bare = name.rsplit("/", 1)[-1]
        return bare if bare not in self.members and self._shorter.get(bare) else name

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
            info = self._member(inner)
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
        info = self._member(inner)
        assert info is not None, "it was found by check"
        try:
            with self.archive.open(info) as member:
                data = member.read(MAX_PICTURE + 1)
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError) as error:
            raise RequestError(f"The picture {name!r} cannot be read from the zip: {error}.") from error
        if len(data) > MAX_PICTURE:
            raise RequestError(f"The picture {name!r} has more than {MAX_PICTURE >> 20} MiB.")
        return data

    def close(self) -> None:
        if self.archive is not None:
            self.archive.close()


def numbered(pictures: Pictures | None, number: int) -> str:
    """The name of the picture of this number; where none is there, as the others are written, or COCO's."""
    names = pictures.numbers if pictures is not None else {}
    if number in names or not names:
        return names.get(number, COCO_NAME.format(number))
    like = NUMBERED.fullmatch(next(reversed(names.values())))
    assert like is not None, "these names end in a number"
    before, digits, after = like.groups()
    return f"{before}{number:0{len(digits) if digits[0] == '0' else 1}d}{after}"


# Entries


def text_of(data: bytes) -> str:
    """A file's text. Raises RequestError for one that is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"The file is not UTF-8 (byte {error.start}). Save it as UTF-8.") from error


def json_of(data: bytes, what: str = "") -> Any:
    """A file's one JSON value; `what` file it is, in words. Raises RequestError."""
    try:
        return json.loads(text_of(data))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The {what} file is no JSON: {error}.".replace("  ", " ")) from error


def json_lines(data: bytes) -> Iterator[Entry]:
    """One JSON object a line; empty lines are passed over. Raises RequestError, when it begins."""
    for number, line in enumerate(text_of(data).split("\n"), 1):
        if line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, RequestError(f"This is no JSON: {error}.")
                continue
            yield number, value if isinstance(value, dict) else RequestError("This is no JSON object.")


def csv_lines(data: bytes, known: Sequence[str]) -> Iterator[Entry]:
    """A table whose header names question and answer, and others of `known` as wanted; between fields commas,
    semicolons or tabs. Raises RequestError, at once, where the file as a whole cannot be read."""
    text = text_of(data)
    delimiter = max(",;\t", key=text.split("\n", 1)[0].count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        columns = [(name or "").strip().lower() for name in reader.fieldnames or []]
    except csv.Error as error:
        raise RequestError(f"The first line is no line of a table: {error}.") from error
    if not {"question", "answer"} <= set(columns):
        raise RequestError(
            f"The first line should name the columns question and answer (of {', '.join(known)}); "
            f"it names {', '.join(columns) or 'nothing'}."
        )
    reader.fieldnames = columns
    return _rows(reader, len(columns))


def _rows(reader: "csv.DictReader[str]", columns: int) -> Iterator[Entry]:
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield reader.reader.line_num, RequestError(f"This is no line of a table: {error}.")
            continue
        wrong = None in row or None in row.values()
        count = RequestError(f"The line has not as many fields as the header, which has {columns}.")
        yield reader.reader.line_num, count if wrong else row


def field(entry: Mapping[str, Any], *keys: str, needed: bool = True) -> str:
    """The text under the first of these keys that holds one, '' where none is `needed`. Raises RequestError."""
    value = next((entry[key] for key in keys if entry.get(key) not in (None, "")), "")
    if not isinstance(value, str | int | float):
        raise RequestError(f"{keys[0]!r} should be a text.")
    text = str(value).strip()
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise RequestError(f"{keys[0]!r} holds a zero byte or half of a character, which cannot be stored.")
    if needed and not text:
        raise RequestError(f"{keys[0]!r} is missing.")
    if len(text) > MAX_TEXT:
        raise RequestError(f"{keys[0]!r} has {len(text)} characters; at most {MAX_TEXT} are read.")
    return text


def gather(
    entries: Iterable[Entry], read: Callable[[int, Mapping[str, Any]], Good]
) -> tuple[tuple[Good, ...], tuple[BadLine, ...]]:
    """(what `read` makes of the good entries, the bad ones). `read` raises RequestError for a bad one."""
    good: list[Good] = []
    bad: list[BadLine] = []
    for line, entry in entries:
        if len(good) + len(bad) >= MAX_LINES:
            bad.append(BadLine(line, f"Only the first {MAX_LINES} lines are read. Split the file."))
            break
        try:
            if isinstance(entry, RequestError):
                raise entry
            good.append(read(line, entry))
        except RequestError as error:
            bad.append(BadLine(line, str(error)))
    return tuple(good), tuple(bad)
