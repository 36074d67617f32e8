"""The concepts that an evaluation turns, and the single-token baseline's sets of the same concepts. Torch-free.

Concepts are the engine's library, and one for each (kind, frequent answer) of the set's build questions that the
library has no concept for: by evidence shares, what is specific among its kind, and the linear membership map, as the
built-in library is (METHODS.md §2). The single-token sets are made the same way from the baseline's evidence.
"""

import base64
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.concepts.evidence import Shares, pack
from engine.concepts.fuzzy import Memberships, linear
from engine.concepts.probes import Probe, find_form
from engine.errors import RequestError
from engine.evaluation.choice import Chooser, First, Known, Weights, known_of, named
from engine.evaluation.contract import EASY, Item, Setting, Settings
from engine.evaluation.metrics import plain
from engine.turns import PLAIN, Steering

if TYPE_CHECKING:
    from engine.contract import Engine

QUANTILE = 0.98
"""Of the membership map, as the built-in library's."""
LEAST_PROBES = 3
Part = Callable[[str, Callable[[], Any]], Any]
"""(key, how to compute it) → the part, from what is done or computed and handed over."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A concept to be built from a set's own questions."""

    kind: str
    name: str
    items: tuple[Item, ...]


def plans(items: Sequence[Item], settings: Settings, known: Chooser | None = None) -> tuple[Plan, ...]:
    """One for each kind of concept and right answer that no known concept of the question's groups names and enough
    build questions have, the most frequent first. Where a kind has easy questions, only these are taken."""
    build = [item for item in items if item.split == "build"]
    easy = {item.kind for item in build if item.condition == EASY}
    found: dict[tuple[str, str], list[Item]] = {}
    for item in build:
        if item.condition == EASY or item.kind not in easy:
            said = Counter(plain(one) for one in item.answers).most_common(1)[0][0]
            if said and not (known and named(said, known.names_in(item.groups))):
                found.setdefault((item.groups[0] if item.groups else item.kind, said), []).append(item)
    enough = {key: some for key, some in found.items() if len(some) >= LEAST_PROBES}
    order = sorted(enough, key=lambda key: (-len(enough[key]), key))[: settings.concepts]
    return tuple(Plan(kind, name, tuple(enough[kind, name][: settings.build])) for kind, name in order)


def probes_of(plan: Plan) -> list[Probe]:
    """Its probes; questions whose picture cannot be read are left out."""
    found = []
    for item in plan.items:
        answer = next((one for one in item.answers if find_form(one, plan.name)), plan.name)
        try:
            found.append(Probe(item.picture(), item.question, answer, plan.name))
        except RequestError:
            continue
    return found


def packed(evidence: Memberships) -> str:
    return base64.b64encode(pack(evidence).to_bytes()).decode()


def unpacked(text: str) -> Memberships:
    return Shares.from_bytes(base64.b64decode(text)).dense()


def specific_sets(kinds: Sequence[str], evidence: Sequence[Memberships]) -> list[Memberships]:
    """Memberships: the evidence less the mean of the other concepts' of its kind (of all others, where it is the only
    one), floored at 0, through the map."""
    sets = []
    for k, own in enumerate(evidence):
        rest = [j for j in range(len(evidence)) if j != k]
        others = [evidence[j] for j in rest if kinds[j] == kinds[k]] or [evidence[j] for j in rest]
        less = np.mean(others, axis=0, dtype=np.float32) if others else np.float32(0)
        sets.append(linear(np.maximum(own - less, 0), QUANTILE))
    return sets


class Sources:
    """Concepts and control sets of one evaluation; what costs model runs goes through `part`, and calls `breathe`
    between two batches."""

    def __init__(
        self, engine: "Engine", items: Sequence[Item], settings: Settings, part: Part, breathe: Callable[[], None]
    ) -> None:
        self.engine, self.settings, self.part, self.breathe = engine, settings, part, breathe
        library = engine.library().concepts
        names, kinds = [entry.name for entry in library], [entry.kind for entry in library]
        sets = [entry.memberships for entry in library]
        self.plans = plans(items, settings, Chooser(known_of(names, kinds, sets)) if library else None)
        self.first_plan = len(library)
        own = [plan.kind for plan in self.plans]
        sets += specific_sets(own, [self._built(plan) for plan in self.plans])
        if not sets:
            raise RequestError(
                "No concept can be turned: the model has no library, and no answer of the set has "
                f"{LEAST_PROBES} build questions. Use a larger set, or a model with a library."
            )
        self.known = known_of([*names, *(plan.name for plan in self.plans)], [*kinds, *own], sets)
        self.balances: dict[tuple[str, str], Weights] = {}
        self.chooser = Chooser(self.known, self.balances)
        self._single: dict[tuple[str, ...], Chooser] = {}

    def _built(self, plan: Plan) -> Memberships:
        def compute() -> str:
            found = self.engine.probe_evidence(probes_of(plan), on_progress=lambda _done, _all: self.breathe()).results
            if not found:
                raise RequestError(f"No build question of {plan.name!r} could be put to the model.")
            return packed(np.asarray(np.mean([one.shares.dense() for one in found], axis=0), np.float32))

        return unpacked(self.part(f"concept/{plan.kind}/{plan.name}", compute))

    def _single_evidence(self, k: int) -> Memberships:
        name, kind = self.known.names[k], self.known.kinds[k]

        def compute() -> str:
            if k >= self.first_plan:
                probes: Sequence[Probe] = probes_of(self.plans[k - self.first_plan])
            else:
                probes = self.engine.world_probes(name, self.settings.control_probes)
            return packed(self.engine.baseline_evidence(probes))

        return unpacked(self.part(f"single token/{kind}/{name}", compute))

    def _single_chooser(self, kinds: tuple[str, ...]) -> Chooser:
        """The same concepts by the single-token baseline; those of other kinds are empty."""
        if kinds not in self._single:
            rows = self.known.rows(kinds)
            sets = specific_sets([self.known.kinds[k] for k in rows], [self._single_evidence(k) for k in rows])
            values = np.zeros_like(self.known.values)
            for k, entry in zip(rows, sets, strict=True):
                values[k] = entry.ravel()
            theirs = Known(self.known.names, self.known.kinds, values, self.known.shape)
            self._single[kinds] = Chooser(theirs, self.balances)
        return self._single[kinds]

    def single_token(self, setting: Setting, item: Item, first: First) -> Steering:
        """The control: the same edits on the single-token baseline's neurons for the same concepts, strongest to
        strongest; as many neurons (fewer only where the baseline names fewer)."""
        mine = self.chooser.steering(setting, item, first)
        if mine == PLAIN:
            return PLAIN
        kinds = sorted({self.known.kinds[k] for k in self.chooser.weights(setting.rule, item, first)})
        theirs = self._single_chooser(tuple(kinds)).steering(setting, item, first)
        values = sorted((turn.value for turn in mine.neurons), key=lambda value: -abs(value - 1))
        order = sorted(theirs.neurons, key=lambda turn: -abs(turn.value - 1))
        dealt = [dataclasses.replace(turn, value=value) for turn, value in zip(order, values, strict=False)]
        return dataclasses.replace(theirs, neurons=tuple(dealt)) if dealt else PLAIN
