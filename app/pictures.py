"""Stored pictures: a PNG for each normalised picture, named by the hash of its pixels; and the samples that ship."""

import functools
import json
import re
import secrets
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from sqlalchemy.orm import Session

from app.tables import Picture
from app.uploads import Limits, Normalised, Pixels, normalise, to_png

SAMPLES = Path(__file__).resolve().parent.parent / "engine" / "builtin" / "samples"
HASH = re.compile(r"[0-9a-f]{64}")


class Store:
    """The folder of pictures. Files are written beside their place and moved there: a half-written one never shows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.load = functools.lru_cache(maxsize=8)(self._load)

    def path(self, picture_hash: str) -> Path:
        if not HASH.fullmatch(picture_hash):
            raise FileNotFoundError(picture_hash)
        return self.folder / picture_hash[:2] / f"{picture_hash}.png"

    def put(self, picture: Normalised) -> None:
        path = self.path(picture.hash)
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{secrets.token_hex(6)}")
        beside.write_bytes(to_png(picture.pixels))
        beside.replace(path)

    def _load(self, picture_hash: str) -> Pixels:
        """Pixels (height, width, 3) uint8."""
        with Image.open(self.path(picture_hash)) as image:
            return np.asarray(image.convert("RGB"), np.uint8)


def remember(session: Session, picture: Normalised) -> None:
    """The row of a picture that is in the store."""
    if session.get(Picture, picture.hash) is None:
        session.add(Picture(hash=picture.hash, width=picture.width, height=picture.height, notes=list(picture.notes)))
        session.flush()


class Sample(NamedTuple):
    """A picture that ships with the built-in model, with questions that it can answer."""

    name: str
    file: str
    alt: str
    questions: tuple[str, ...]

    @property
    def path(self) -> Path:
        return SAMPLES / self.file

    def normalised(self, limits: Limits) -> Normalised:
        return normalise(self.path.read_bytes(), limits)


@functools.lru_cache(maxsize=4)
def sample_hashes(limits: Limits) -> frozenset[str]:
    """Hashes of all samples' pixels."""
    return frozenset(sample.normalised(limits).hash for sample in samples().values())


@functools.cache
def samples() -> dict[str, Sample]:
    """The samples by name; none where the file is absent (a model folder of one's own needs no samples)."""
    try:
        listed = json.loads((SAMPLES / "samples.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    known = [
        Sample(s["name"], s["file"], s.get("alt", s["name"]), tuple(map(_question, s.get("questions", ()))))
        for s in listed
    ]
    return {sample.name: sample for sample in known if sample.path.is_file()}


def _question(listed: str | dict[str, str]) -> str:
    """A suggestion is a question, or a question with its answer (which the page does not give away)."""
    return listed if isinstance(listed, str) else listed["question"]
