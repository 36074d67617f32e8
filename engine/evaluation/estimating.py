"""How many answers an evaluation will generate, before it starts. Torch-free."""

import dataclasses
from collections.abc import Sequence

from engine.evaluation import planning
from engine.evaluation.contract import SPLITS, Item, Settings


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Answers at most, by stage: first passes over `build`, `dev` and `test`, the search's three steps (`coarse`,
    `variants`, `finals`), and the `arms` on test. Less where there is nothing to gain or nothing is chosen."""

    build: int
    dev: int
    coarse: int
    variants: int
    finals: int
    test: int
    arms: int

    @property
    def answers(self) -> int:
        return self.build + self.dev + self.coarse + self.variants + self.finals + self.test + self.arms

    def replace(self, stage: str, left: int) -> "Estimate":
        return dataclasses.replace(self, **{stage: left})


def cells_of(settings: Settings, items: Sequence[Item]) -> dict[str, dict[planning.Cell, list[Item]]]:
    """Each split's questions by cell; of build, those that are asked in the first pass."""
    found = {split: planning.by_cell([item for item in items if item.split == split]) for split in SPLITS}
    found["build"] = {cell: some[: settings.build] for cell, some in found["build"].items()}
    return found


def estimate(settings: Settings, items: Sequence[Item]) -> Estimate:
    """At most this many answers for these questions."""
    cells = cells_of(settings, items)
    numbers = {split: sum(map(len, found.values())) for split, found in cells.items()}
    screen = sum(min(settings.screen, len(some)) for some in cells["dev"].values())
    more = len(settings.positions) + len(settings.layers) + len(settings.maps) - 2
    levels = len(settings.levels)
    return Estimate(
        build=numbers["build"] if "balance" in settings.rules else 0,
        dev=numbers["dev"],
        coarse=screen * len(planning.coarse(settings)),
        variants=screen * settings.keep * max(0, more),
        finals=levels * (numbers["dev"] - screen),
        test=numbers["test"],
        arms=3 * levels * numbers["test"],
    )
