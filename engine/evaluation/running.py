"""An evaluation from its first question to its last: parts, in order. Torch-free (METHODS.md §3).

1. *First pass*: the model's own answers to build and dev questions, with the alternatives of their first token.
2. *Search* on dev (`contract.Settings`, `planning`); test questions are not put to the model before a choice is made.
3. *Test*, once: the baseline, and where a setting was chosen the modulated arm, as many random neurons of the same
   layers (another set for each question) and the single-token baseline's set, all with the same edits.
"""

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine import contract
from engine.errors import Cancelled, RequestError
from engine.evaluation import planning
from engine.evaluation.choice import First, balance
from engine.evaluation.contract import NONE, Evaluation, Item, Setting, Settings, to_json
from engine.evaluation.estimating import Estimate, cells_of, estimate
from engine.evaluation.metrics import score
from engine.evaluation.planning import Cell
from engine.evaluation.reporting import Tested, evaluation_of
from engine.evaluation.sources import Sources
from engine.measures import OnProgress
from engine.turns import PLAIN, Steering

if TYPE_CHECKING:
    from engine.contract import Answer, Engine, ModelInfo

CHUNK = 128
"""Questions handed to the engine at once: no more pictures are in memory."""
OnPart = Callable[[str, Any], None]
Asked = tuple[Item, Steering]


def parts_key(settings: Settings, info: "ModelInfo", library: str) -> str:
    """Names what finished parts belong to: these settings, this model, this library revision."""
    text = json.dumps([to_json(settings), info.revision, library], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _never() -> bool:
    return False


class _Run:
    def __init__(
        self,
        engine: "Engine",
        items: Sequence[Item],
        settings: Settings,
        on_progress: OnProgress | None,
        on_part: OnPart | None,
        done: Mapping[str, Any],
        cancelled: Callable[[], bool],
    ) -> None:
        self.engine, self.settings, self.done, self.cancelled = engine, settings, done, cancelled
        self.on_progress, self.on_part = on_progress, on_part
        self.left: Estimate = estimate(settings, items)
        self.counted = 0
        info = engine.info()
        self.model = {"name": info.name, "revision": info.revision, "library": engine.library().revision}
        self.warnings: list[str] = []
        self.firsts: dict[str, First] = {}
        self.cells = cells_of(settings, items)
        self.sources = Sources(engine, items, settings, self.part, self.breathe)
        self.scores: dict[Cell, dict[Setting, list[float]]] = {}

    def part(self, key: str, compute: Callable[[], Any]) -> Any:
        """A part that is done, or computed now and handed over."""
        if key in self.done:
            return self.done[key]
        if self.cancelled():
            raise Cancelled("Stopped between two parts of the evaluation.")
        self.breathe()
        value = compute()
        if self.on_part is not None:
            self.on_part(key, value)
        return value

    def breathe(self) -> None:
        """Say how far it is between two steps: whoever waits for the engine may use it meanwhile."""
        if self.on_progress is not None:
            self.on_progress(self.counted, self.counted + self.left.answers)

    def tell(self, stage: str, more: int, left: int | None = None) -> None:
        """Count answers of a stage; `left`: how many of it are still to come, where that is known better now."""
        self.counted += more
        before = getattr(self.left, stage)
        self.left = self.left.replace(stage, max(0, before - more) if left is None else left)
        self.breathe()

    # Answers

    def ask(self, asked: Sequence[Asked], stage: str) -> "list[Answer]":
        """Answers to questions under steerings, a chunk of pictures at a time."""
        found: list[Answer] = []
        for start in range(0, len(asked), CHUNK):
            chunk = asked[start : start + CHUNK]
            pictures: dict[str, Any] = {}
            for item, _ in chunk:
                if item.id not in pictures:
                    self.breathe()
                    pictures[item.id] = item.picture()
            some = [
                (contract.Question(pictures[item.id], item.question, self.settings.max_new_tokens), steering)
                for item, steering in chunk
            ]
            counted = 0

            def between(done: int, _all: int) -> None:
                nonlocal counted
                self.tell(stage, done - counted)
                counted = done

            found += self.engine.answers(some, between, self.cancelled)
        return found

    def first_pass(self, split: str, cell: Cell) -> list[Item]:
        """Ask a cell's questions plainly; the items that could be asked, with `firsts` known."""
        items = self.cells[split].get(cell, [])

        def compute() -> list[Any]:
            before = self.counted, self.left
            try:
                given: list[Answer | str] = list(self.ask([(item, PLAIN) for item in items], split))
            except RequestError:  # one of them cannot be asked: find out which
                self.counted, self.left = before
                given = [self._or_reason(item) for item in items]
            return [
                one if isinstance(one, str)
                else {"answer": one.text, "first": [[a.text, math.exp(a.logprob)] for a in one.tokens[0].alternatives]
                      if one.tokens else []}
                for one in given
            ]  # fmt: skip

        key = f"first/{split}/{cell[0]}/{cell[1]}"
        known = key in self.done
        found = self.part(key, compute)
        if known:
            self.tell(split, len(items))
        usable = []
        for item, one in zip(items, found, strict=True):
            if isinstance(one, str):
                self.warnings.append(f"Question {item.id} was left out: {one}")
                continue
            self.firsts[item.id] = First(one["answer"], tuple((text, float(p)) for text, p in one["first"]))
            usable.append(item)
        self.cells[split][cell] = usable
        return usable

    def _or_reason(self, item: Item) -> "Answer | str":
        try:
            return self.ask([(item, PLAIN)], item.split)[0]
        except RequestError as error:
            return str(error)

    def own_scores(self, items: Sequence[Item], answers: Sequence[str] | None = None) -> list[float]:
        said = [self.firsts[item.id].text for item in items] if answers is None else answers
        return [score(self.settings.metric, one, item.answers) for item, one in zip(items, said, strict=True)]

    def steered(self, items: Sequence[Item], wanted: Sequence[tuple[str, Setting, str]], stage: str) -> None:
        """The parts (key, setting, arm) of one cell that are missing, all in one go: pictures are read once."""
        missing = [one for one in wanted if one[0] not in self.done and one[0] not in self.fresh]
        asked: list[Asked] = []
        said: dict[tuple[str, str], str] = {}
        where: list[tuple[str, str]] = []
        for item in items:
            for key, setting, arm in missing:
                steering = self.steering(setting, item, arm)
                if steering == PLAIN:
                    said[key, item.id] = self.firsts[item.id].text
                else:
                    asked.append((item, steering))
                    where.append((key, item.id))
        self.tell(stage, len(items) * len(wanted) - len(asked))
        for place, answer in zip(where, self.ask(asked, stage), strict=True):
            said[place] = answer.text
        for key, _, _ in wanted:
            if (key, items[0].id) in said:
                self.fresh[key] = self.part(key, lambda key=key: [said[key, item.id] for item in items])  # type: ignore[misc]
            elif key in self.done:
                self.fresh[key] = self.done[key]

    def steering(self, setting: Setting, item: Item, arm: str) -> Steering:
        first = self.firsts[item.id]
        if arm == "single_token_control":
            return self.sources.single_token(setting, item, first)
        control = zlib.crc32(f"{self.settings.seed}/{item.id}".encode()) if arm == "random_control" else None
        return self.sources.chooser.steering(setting, item, first, control)

    # Stages

    def prepare(self) -> None:
        """First pass over dev, and over build where a rule learns from it."""
        self.fresh: dict[str, Any] = {}
        for cell in self.cells["dev"]:
            items = self.first_pass("dev", cell)
            self.scores[cell] = {NONE: self.own_scores(items)}
        if "balance" in self.settings.rules:
            for cell in self.searched():
                items = self.first_pass("build", cell)
                names = self.sources.chooser.names_in(items[0].groups) if items else {}
                said = [self.firsts[item.id].text for item in items]
                self.sources.balances[cell] = balance(items, said, names)
        self.tell("build", 0, 0)

    def searched(self) -> list[Cell]:
        """Cells with something to gain on dev."""
        errors = self.settings.errors
        return [cell for cell, known in self.scores.items() if sum(1 - one for one in known[NONE]) >= errors]

    def try_on_dev(self, cell: Cell, settings: Sequence[Setting], n: int, stage: str) -> None:
        """Scores of these settings on the cell's first `n` dev questions."""
        items, screen = self.cells["dev"][cell], self.settings.screen
        for low, high, name in ((0, screen, "screen"), (screen, n, "rest")):
            some = items[low:high]
            if some and high <= n:
                wanted = [
                    (f"dev/{cell[0]}/{cell[1]}/{setting.key}/{name}", setting, "modulated") for setting in settings
                ]
                self.steered(some, wanted, stage)
                for key, setting, _ in wanted:
                    scores = self.own_scores(some, self.fresh[key])
                    known = self.scores[cell].get(setting, [])
                    self.scores[cell][setting] = known[:low] + scores

    def search(self) -> dict[str, dict[planning.Group, tuple[Setting, tuple[Any, ...]]]]:
        """The choice of each group at each level, and what was tried for it."""
        cells, settings = self.searched(), self.settings
        screen = min(settings.screen, settings.dev)
        self.tell("coarse", 0, len(cells) * screen * len(planning.coarse(settings)))
        for cell in cells:
            self.try_on_dev(cell, planning.coarse(settings), screen, "coarse")
        self.tell("coarse", 0, 0)
        for members in planning.groups("condition", cells).values():
            bases = planning.best(planning.ranked(members, self.scores), settings.keep)
            more = dict.fromkeys(one for base in bases for one in planning.variants(base, settings))
            for cell in members:
                self.try_on_dev(cell, tuple(more), screen, "variants")
        self.tell("variants", 0, 0)
        finals: dict[Cell, dict[Setting, None]] = {cell: {} for cell in cells}
        for level in settings.levels:
            for members in planning.groups(level, cells).values():
                for setting in planning.best(planning.ranked(members, self.scores), 1):
                    for cell in members:
                        finals[cell][setting] = None
        for cell, some in finals.items():
            if some:
                self.try_on_dev(cell, tuple(some), settings.dev, "finals")
        self.tell("finals", 0, 0)
        found: dict[str, dict[planning.Group, tuple[Setting, tuple[Any, ...]]]] = {}
        for level in settings.levels:
            found[level] = {}
            for key, members in planning.groups(level, cells).items():
                full = planning.ranked(members, self.scores, settings.dev)
                tried = full + tuple(row for row in planning.ranked(members, self.scores) if row not in full)
                found[level][key] = (planning.chosen(full, settings.margin), tried)
        return found

    def test(self, choices: Mapping[Cell, Sequence[Setting]]) -> dict[Cell, Tested]:
        """Every arm that a choice needs, on every test question."""
        arms = ("modulated", "random_control", "single_token_control")
        needed = sum(len(self.cells["test"].get(cell, ())) * 3 * len(some) for cell, some in choices.items())
        self.tell("arms", 0, needed)
        tested: dict[Cell, Tested] = {}
        for cell in list(self.cells["test"]):
            items = self.first_pass("test", cell)
            if not items:
                continue
            said = {(NONE, arm): [self.firsts[item.id].text for item in items] for arm in ("baseline", *arms)}
            wanted = [(f"test/{cell[0]}/{cell[1]}/{setting.key}/{arm}", setting, arm)
                      for setting in choices.get(cell, ()) for arm in arms]  # fmt: skip
            if wanted:
                self.steered(items, wanted, "arms")
            for key, setting, arm in wanted:
                said[setting, arm] = self.fresh[key]
                said[setting, "baseline"] = said[NONE, "baseline"]
            scores = {key: self.own_scores(items, answers) for key, answers in said.items()}
            tested[cell] = Tested(tuple(items), scores, said)
        return tested


def run(
    engine: "Engine",
    items: Sequence[Item],
    settings: Settings,
    on_progress: OnProgress | None = None,
    on_part: OnPart | None = None,
    done: Mapping[str, Any] | None = None,
    cancelled: Callable[[], bool] = _never,
) -> Evaluation:
    """The evaluation of these questions. See the package's docstring for parts and progress. Raises RequestError for
    settings or a set that cannot be evaluated, and Cancelled."""
    settings.check()
    if not any(item.split == "test" for item in items) or not any(item.split == "dev" for item in items):
        raise RequestError("The set has no dev or no test questions. An evaluation needs both; use a larger set.")
    going = _Run(engine, items, settings, on_progress, on_part, done or {}, cancelled)
    going.prepare()
    if not any(going.cells["dev"].values()):
        raise RequestError(f"No dev question could be asked. {' '.join(going.warnings)}".strip()[:1000])
    found = going.search()
    choices: dict[Cell, dict[Setting, None]] = {}
    for level, by_group in found.items():
        for key, members in planning.groups(level, list(going.cells["dev"])).items():
            setting = by_group[key][0] if key in by_group else NONE
            for cell in members:
                if setting != NONE and cell in going.searched():
                    choices.setdefault(cell, {})[setting] = None
    tested = going.test({cell: tuple(some) for cell, some in choices.items()})
    going.tell("arms", 0, 0)
    return evaluation_of(settings, going.model, tested, found, going.warnings)
