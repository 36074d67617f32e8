"""How many threads to use on a machine that others use too: measured, not assumed.

Two threads that wait for each other at every step are slower than one as soon as someone else holds a core. `Chooser`
tries each count in turn, keeps the faster, and looks again now and then."""

import os
from collections.abc import Sequence
from typing import Final

import torch

TRIAL: Final = 6
SPELL: Final = 45
"""Steps of a trial, and steps between two rounds of trials."""


class Chooser:
    """Call `step(seconds)` after each step; it sets torch's number of threads when it should change."""

    def __init__(self, counts: Sequence[int] = ()) -> None:
        self.counts = tuple(counts) or tuple(sorted({1, os.cpu_count() or 1}))
        self.pace = dict.fromkeys(self.counts, 0.0)
        self.steps = 0
        self.using = self.counts[-1]

    def step(self, seconds: float) -> None:
        """Note how long a step took and choose the count for the next."""
        trial, steps = divmod(self.steps, TRIAL)
        if len(self.counts) == 1:
            return
        if trial < len(self.counts):
            if steps:  # the first step after a change is not typical
                self.pace[self.using] += seconds
            self.steps += 1
            if self.steps % TRIAL == 0:
                left = trial + 1 < len(self.counts)
                self._use(self.counts[-2 - trial] if left else min(self.counts, key=lambda count: self.pace[count]))
            return
        self.steps += 1
        if self.steps >= TRIAL * len(self.counts) + SPELL:
            self.steps, self.pace = 0, dict.fromkeys(self.counts, 0.0)
            self._use(self.counts[-1])

    def _use(self, count: int) -> None:
        self.using = count
        torch.set_num_threads(count)
