"""What there is to know of whole SAEs: what stands, what was tried, what a training would do and how long it takes."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import formats, saejobs, saeplaces
from app.settings import Settings
from app.tables import AttachedSae, JobRow
from engine.contract import ModelInfo, RequestError, saes

LISTED = 20
"""Trainings that are listed, and attempts to attach that are looked at, the newest."""
NAMED = 60
NAME = re.compile(r"[A-Za-z0-9][\w. -]*", re.ASCII)
MOST_STEPS = 1_000_000
NUMBERS: dict[str, tuple[str, int, int]] = {
    "layer": ("layer", 0, 10**4),
    "n_latents": ("number of latents", 8, 2**17),
    "k": ("k", 1, 2**17),
    "steps": ("number of steps", 1, MOST_STEPS),
    "batch": ("batch", 8, 2**16),
    "seed": ("seed", 0, 10**9),
}
"""Whole numbers of a recipe: what it is called, its least and its largest value."""
TRAINED = ("topk", "jumprelu")
WORLD, FOLDER = "world", "folder"


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """A training as it was typed; empty = the default."""

    layer: str = ""
    site: str = ""
    architecture: str = ""
    n_latents: str = ""
    k: str = ""
    steps: str = ""
    batch: str = ""
    seed: str = ""
    name: str = ""
    source: str = ""
    folder: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What a training would do. `seconds` (None: not known) by `basis` in words; `megabytes` of memory that it takes
    beside the model, and `size` of its file in MB."""

    recipe: saes.Recipe
    folder: str
    positions: int
    pictures: int
    megabytes: float
    size: float
    seconds: float | None
    basis: str


def place_of(layer: str, site: str) -> tuple[int | None, str | None]:
    """What was said of an SAE's place beside its files. Raises RequestError."""
    if site and site not in saes.SITES:
        raise RequestError(f"There is no site “{site[:40]}”. Choose one of {', '.join(saes.SITES)}.")
    return (number("layer", layer) if layer.strip() else None), site or None


def number(field: str, typed: str) -> int:
    words, low, high = NUMBERS[field]
    text = typed.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
        raise RequestError(f"The {words} is “{text[:20]}”; it must be a whole number from {low} to {high:,}.")
    return int(text)


def attempts(session: Session, revision: str) -> list[JobRow]:
    """Attempts to attach to this model that have not ended, or failed; newest first."""
    mine = select(JobRow).where(JobRow.kind == saejobs.ATTACH, JobRow.state.in_(("queued", "running", "failed")))
    rows = session.scalars(mine.order_by(JobRow.queued.desc(), JobRow.id).limit(LISTED))
    return [row for row in rows if row.params["model_revision"] == revision]


def attached(session: Session, revision: str) -> dict[str, AttachedSae]:
    """What people attached to this model, by id."""
    mine = select(AttachedSae).where(AttachedSae.model_revision == revision)
    return {row.id: row for row in session.scalars(mine)}


def tried(session: Session, revision: str) -> dict[str, dict[str, Any]]:
    """The result of the newest job that attached or trained an SAE of this model, by the SAE's id."""
    mine = select(JobRow).where(JobRow.kind.in_((saejobs.ATTACH, saejobs.TRAIN)), JobRow.state == "done")
    found: dict[str, dict[str, Any]] = {}
    for row in session.scalars(mine.order_by(JobRow.finished.desc()).limit(10 * LISTED)):
        if row.params["model_revision"] == revision and row.result:
            found.setdefault(row.result["sae"]["id"], row.result)
    return found


def trainings(session: Session) -> list[JobRow]:
    """Newest first."""
    mine = select(JobRow).where(JobRow.kind == saejobs.TRAIN).order_by(JobRow.queued.desc(), JobRow.id)
    return list(session.scalars(mine.limit(LISTED)))


def plan(session: Session, settings: Settings, info: ModelInfo, known: Sequence[saes.SaeInfo], draft: Draft) -> Plan:
    """What a draft would do to the loaded model, on which the SAEs `known` stand. Raises RequestError."""
    recipe = recipe_of(draft, info)
    builtin = draft.source != FOLDER
    if builtin and not info.builtin:
        raise RequestError(
            "The little world’s pictures are for the built-in model. Give a folder with pictures and a file of "
            f"questions ({', '.join(saeplaces.QUESTIONS)})."
        )
    folder = "" if builtin else saeplaces.pictures(settings, draft.folder)
    weights = 2 * recipe.n_latents * info.d_model
    # Weights, their gradients and Adam's two moments; the store; activations of a batch.
    memory = 4 * (4 * weights + recipe.kept * info.d_model + 4 * recipe.batch * recipe.n_latents)
    free = free_memory()
    if free is not None and memory > free:
        raise RequestError(
            f"This training takes {memory / 2**20:,.0f} MB of memory beside the model, and {free / 2**20:,.0f} MB are "
            "free on this machine. Choose fewer latents or a smaller batch."
        )
    seconds, basis = _seconds(session, info, recipe, known)
    return Plan(
        recipe=recipe,
        folder=folder,
        positions=recipe.steps * recipe.batch,
        pictures=recipe.pictures * (recipe.steps // recipe.each),
        megabytes=memory / 2**20,
        size=2 * weights / 2**20,
        seconds=seconds,
        basis=basis,
    )


def free_memory() -> int | None:
    """Bytes that a process may still take; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
    except (OSError, ValueError, IndexError):
        return None


def recipe_of(draft: Draft, info: ModelInfo) -> saes.Recipe:
    """Raises RequestError for a value that cannot be."""
    middle = max(0, info.n_layers // 2 - 1)
    given: dict[str, Any] = {"layer": middle}
    given |= {name: number(name, typed) for name in NUMBERS if (typed := getattr(draft, name).strip())}
    for name, known in (("site", saes.SITES), ("architecture", TRAINED)):
        if typed := getattr(draft, name):
            if typed not in known:
                raise RequestError(f"There is no {name} “{typed[:40]}”. Choose one of {', '.join(known)}.")
            given[name] = typed
    recipe = saes.Recipe(**given, name=formats.one_line(draft.name)[:NAMED])
    if recipe.layer >= info.n_layers:
        raise RequestError(f"There is no layer {recipe.layer}: this model’s layers go from 0 to {info.n_layers - 1}.")
    if recipe.k > recipe.n_latents:
        raise RequestError(f"k is {recipe.k}, and there are {recipe.n_latents} latents. Choose a k below that.")
    if recipe.name and not NAME.fullmatch(recipe.name):
        raise RequestError(f"“{recipe.name}” cannot be the name of a folder. Use letters, digits, “-” and “_”.")
    return recipe


def _seconds(
    session: Session, info: ModelInfo, recipe: saes.Recipe, known: Sequence[saes.SaeInfo]
) -> tuple[float | None, str]:
    """(seconds, by what): steps of a training here, or of one by which an SAE on this model was made elsewhere. Reading
    pictures takes as long for few latents as for many, so that a step is at least as long as theirs."""
    work = recipe.batch * recipe.n_latents
    for row in trainings(session):
        if row.state == "done" and row.result and row.result["pace"] and row.params["model_revision"] == info.revision:
            other = row.params["recipe"]
            longer = max(1.0, work / (other["batch"] * other["n_latents"]))
            return recipe.steps * row.result["pace"] * longer, "at the pace of the newest training here"
    for sae in known:
        minutes, positions = (sae.card.get(key) for key in ("cpu_minutes", "trained_positions"))
        steps = re.search(r"--steps (\d+)", str(sae.card.get("command", "")))
        if minutes and positions and steps:
            longer = max(1.0, work * int(steps[1]) / (positions * sae.n_latents))
            seconds = recipe.steps * 60 * minutes / int(steps[1]) * longer
            return seconds, f"if this machine is as fast as the one that made {sae.name}"
    return None, ""
