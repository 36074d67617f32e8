"""What an evaluation is asked and what it finds, as data that goes through JSON. Torch-free (METHODS.md §3)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.entries import BadLine
from engine.errors import RequestError, UnknownName
from engine.turns import LAMBDA_RANGE, POSITIONS

EASY = "easy"
"""The condition in which nothing is made harder; all others count as hard."""
SPLITS = ("build", "dev", "test")
ARMS = ("baseline", "modulated", "random_control", "single_token_control")
METRICS = ("exact", "vqa", "yesno")
LEVELS = {
    "cell": "one setting for each kind of question in each condition",
    "kind": "one setting for each kind of question, over all hard conditions",
    "condition": "one setting for each condition, over all kinds of question",
    "all": "one setting for all kinds in all hard conditions",
}
"""Over which dev questions a setting is chosen."""
RULES = {
    "kind": "union of the concepts that the kind of question asks for",
    "shared": "the same concepts' mean membership: neurons that many of them share",
    "mentioned": "concepts that the question names",
    "answer": "the concept that the model's own first answer names",
    "candidates": "the first answer's concept and its alternatives', each by its probability",
    "equal": "the same concepts, all alike",
    "contrast": "the first candidate's concept up, the second's down",
    "doubt": "the second candidate's concept up, the first's down",
    "balance": "concepts that build questions of the same cell show it to answer too seldom up, too often down",
    "inhibit": "concepts of the other groups down, save what the question's own group shares with them",
}
"""How the concepts to turn are chosen for a question, without knowing the right answer."""
LAYERS = ("all", "lower", "upper")
"""Which half of the layers acts (of an odd number, the middle one is in the upper half)."""
MAPS = {"fuzzy": "each neuron by 1 + λμ", "crisp": "each neuron of the set by 1 + λ, whatever its membership"}
MAX_ITEMS = 20_000


@dataclasses.dataclass(frozen=True)
class Item:
    """One question. `picture()` gives the pixels (height, width, 3; uint8) or None when they are wanted; it may raise
    RequestError. `answers`: the right ones (ten of VQAv2's, else one). `groups`: kinds of concepts that an answer to
    it can name. `says`: the part of the answer that names a concept ('' = all of it). `bare`: there is no picture."""

    id: str
    kind: str
    condition: str
    split: str
    question: str
    answers: tuple[str, ...]
    picture: Callable[[], npt.NDArray[np.uint8] | None] = dataclasses.field(compare=False, repr=False)
    groups: tuple[str, ...] = ()
    says: str = ""
    bare: bool = False

    @property
    def cell(self) -> tuple[str, str]:
        return self.kind, self.condition


@dataclasses.dataclass(frozen=True)
class ItemSet:
    """The questions of a set in a fixed order, and the lines that were left out."""

    items: tuple[Item, ...]
    bad: tuple[BadLine, ...] = ()


@dataclasses.dataclass(frozen=True, order=True)
class Setting:
    """One way to modulate: `rule` of RULES (or "none"), λ > 0 as the strength, and where."""

    rule: str = "none"
    lam: float = 0.0
    positions: str = "all"
    layers: str = "all"
    map: str = "fuzzy"

    @property
    def key(self) -> str:
        return "none" if self == NONE else f"{self.rule} {self.lam:g} {self.positions} {self.layers} {self.map}"

    def __str__(self) -> str:
        if self == NONE:
            return "none"
        more = [
            word
            for word, plain in (
                (f"{self.positions} positions", "all positions"),
                (f"{self.layers} layers", "all layers"),
                (self.map, "fuzzy"),
            )
            if word != plain
        ]
        return ", ".join([f"{self.rule} λ {self.lam:g}", *more])


NONE = Setting()
"""Nothing is turned."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """All that a result depends on besides the model. `set` names the set ("builtin", or the file's name); `kinds` and
    `conditions` empty = all. A cell (a kind in a condition) has at most `limit` test and `dev` dev questions.

    The search, on dev alone: (1) `rules` × `lambdas`, at all positions and layers, on the first `screen` questions of
    each cell; (2) of the `keep` best of these in each condition, `positions`, `layers` and `maps`, one changed at a
    time, and half the λ, on the same questions; (3) what was best for a group of cells (of each of `levels`) on all dev
    questions of these cells. It is chosen if its gain there is more than `margin` standard errors of that gain; else
    "none". Cells that dev finds fewer than `errors` mistakes in are not searched: there is nothing to gain.

    Concepts are the library's, and for right answers that none of these names, concepts built from the set's own build
    questions: `build` questions a cell and probes a concept at most, at most `concepts` of them. `control_probes`: for
    the single-token control's sets, for each concept of the library. `source`: (file, SHA-256) of a file set."""

    set: str = "builtin"
    metric: str = "exact"
    kinds: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    limit: int = 40
    dev: int = 24
    screen: int = 12
    errors: int = 3
    seed: int = 0
    rules: tuple[str, ...] = ("balance", "kind", "mentioned", "answer")
    lambdas: tuple[float, ...] = (1.0, 3.0)
    positions: tuple[str, ...] = ("all", "question")
    layers: tuple[str, ...] = ("all", "upper")
    maps: tuple[str, ...] = ("fuzzy",)
    keep: int = 1
    levels: tuple[str, ...] = ("cell", "kind", "all")
    margin: float = 1.0
    build: int = 20
    concepts: int = 60
    control_probes: int = 4
    max_new_tokens: int = 32
    source: tuple[tuple[str, str], ...] = ()

    def check(self) -> None:
        """Raise RequestError or UnknownName for settings that cannot be carried out."""
        known: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
            "rule": (self.rules, tuple(RULES)),
            "choice of positions": (self.positions, POSITIONS),
            "choice of layers": (self.layers, LAYERS),
            "map": (self.maps, tuple(MAPS)),
            "level": (self.levels, tuple(LEVELS)),
            "metric": ((self.metric,), METRICS),
        }
        for what, (given, allowed) in known.items():
            for name in given:
                if name not in allowed:
                    raise UnknownName(f"There is no {what} {name!r}. Choose of {', '.join(allowed)}.")
        if any(not 0 < lam <= LAMBDA_RANGE[1] for lam in self.lambdas):
            raise RequestError(
                f"Each λ must lie above 0 and be at most {LAMBDA_RANGE[1]:g}; a rule says what is turned down."
            )
        if not self.rules or not self.lambdas or not self.levels:
            raise RequestError("An evaluation needs at least one rule, one λ and one level. Give one of each.")
        if not all(1 <= n <= MAX_ITEMS for n in (self.limit, self.dev, self.screen)):
            raise RequestError(
                f"A kind takes 1 to {MAX_ITEMS} questions; {self.limit} test and {self.dev} dev were asked for."
            )


@dataclasses.dataclass(frozen=True)
class ArmResult:
    """Mean score of one arm with its 95 % interval (Wilson's; of the VQA metric, whose scores are not 0 or 1, by
    bootstrap) over `n` questions."""

    accuracy: float
    low: float
    high: float
    n: int


@dataclasses.dataclass(frozen=True)
class Difference:
    """Mean of paired differences, its bootstrap 95 % interval, exact McNemar's two-sided p (on answers right or wrong),
    and how many questions were `gained` and `lost`."""

    value: float
    low: float
    high: float
    p: float
    gained: int
    lost: int


@dataclasses.dataclass(frozen=True)
class DevRow:
    """One setting on the dev questions of a choice: mean score, gain on nothing, that gain's standard error."""

    setting: Setting
    accuracy: float
    gain: float
    error: float
    n: int


@dataclasses.dataclass(frozen=True)
class KindResult:
    """The result of a kind in a condition on test; `kind` "all": over the kinds, and `condition` "all" or "hard" over
    conditions. `level`: over what the setting was chosen (LEVELS). `chosen`: the setting; None for rows that gather
    several cells whose settings differ. `dev`: what was tried, best gain first; empty for rows that gather. `arms` by
    ARMS. `delta` = modulated − baseline; `against_random`, `against_single_token` = modulated − control. `extra`: other
    figures of the metric by arm (precision, recall, f1, yes_share of yes/no questions)."""

    kind: str
    condition: str
    level: str
    n: int
    chosen: Setting | None
    dev: tuple[DevRow, ...]
    arms: dict[str, ArmResult]
    delta: Difference
    against_random: Difference
    against_single_token: Difference
    extra: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What came of it: `kinds` = a row for each cell at each level, `totals` = rows over several cells. `model`: name,
    revision, library. `warnings`: what a reader should know (few questions, pictures that cannot be read …)."""

    settings: Settings
    model: dict[str, str]
    kinds: tuple[KindResult, ...]
    totals: tuple[KindResult, ...]
    warnings: tuple[str, ...] = ()


def to_json(value: Any) -> Any:
    """Plain JSON of Settings or an Evaluation; NaN becomes None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(entry) for entry in value]
    if isinstance(value, float) and value != value:
        return None
    return value


def _tuple(value: Any) -> Any:
    return tuple(_tuple(entry) for entry in value) if isinstance(value, list) else value


def settings_from_json(entry: Mapping[str, Any]) -> Settings:
    """Settings of `to_json`. Raises RequestError for what is none."""
    known = {field.name for field in dataclasses.fields(Settings)}
    if unknown := set(entry) - known:
        raise RequestError(f"An evaluation has no setting {min(unknown)!r}. It has {', '.join(sorted(known))}.")
    return Settings(**{key: _tuple(value) for key, value in entry.items()})


def _difference(entry: Mapping[str, Any]) -> Difference:
    known: dict[str, Any] = {key: float("nan") if value is None else value for key, value in entry.items()}
    return Difference(**known)


def _row(entry: Mapping[str, Any]) -> KindResult:
    return KindResult(
        entry["kind"],
        entry["condition"],
        entry["level"],
        entry["n"],
        None if entry["chosen"] is None else Setting(**entry["chosen"]),
        tuple(DevRow(**{**row, "setting": Setting(**row["setting"])}) for row in entry["dev"]),
        {arm: ArmResult(**value) for arm, value in entry["arms"].items()},
        _difference(entry["delta"]),
        _difference(entry["against_random"]),
        _difference(entry["against_single_token"]),
        {arm: dict(values) for arm, values in entry["extra"].items()},
    )


def evaluation_from_json(entry: Mapping[str, Any]) -> Evaluation:
    """An Evaluation of `to_json`."""
    return Evaluation(
        settings_from_json(entry["settings"]),
        dict(entry["model"]),
        tuple(_row(row) for row in entry["kinds"]),
        tuple(_row(row) for row in entry["totals"]),
        tuple(entry["warnings"]),
    )
