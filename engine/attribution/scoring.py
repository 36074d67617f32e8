"""One way in to all methods: a subject (a target's sides, ready to be run) and a method's name → scores."""

from collections.abc import Callable

from engine.attribution.ablation import ablation
from engine.attribution.contrast import difference
from engine.attribution.direct import direct
from engine.attribution.effects import Subject
from engine.attribution.gradient import gradient
from engine.attribution.integrated import integrated
from engine.attribution.logprob_increase import logprob_increase
from engine.attribution.pan import pan
from engine.attribution.result import Scored
from engine.contract import Cancelled, IsCancelled, OnProgress, never
from engine.features import Inputs
from engine.hooks import intervene
from engine.targets import Part

READING: dict[str, Callable[..., Scored]] = {"direct": direct, "pan": pan, "logprob_increase": logprob_increase}
"""Methods that read the positions which predict the answer."""


def score(
    subject: Subject, method: str, cancelled: IsCancelled = never, on_progress: OnProgress | None = None
) -> Scored:
    """Scores of a known method, under the subject's steering. Raises Cancelled between sides, steps and batches;
    `ablation` tells its progress between batches."""
    if method == "ablation":
        return ablation(subject, on_progress=on_progress, cancelled=cancelled)
    sides = []
    for part, inputs in subject.sides:
        if cancelled():
            raise Cancelled("Stopped before attribution.")
        with intervene(subject.loaded.anatomy, [subject.steering]):
            sides.append(_side(subject, part, inputs, method, cancelled))
    return sides[0] if len(sides) == 1 else difference(sides[0], sides[1])


def _side(subject: Subject, part: Part, inputs: Inputs, method: str, cancelled: IsCancelled) -> Scored:
    if method in READING:
        return READING[method](subject.loaded, inputs, subject.length, part.ids, part.target)
    if method == "integrated":
        return integrated(subject.loaded, inputs, part.ids, part.target, cancelled=cancelled)
    return gradient(subject.loaded, inputs, part.ids, part.target)
