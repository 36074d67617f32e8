"""How far a ranking can be trusted: its measured faithfulness and its noise band, or how to have them measured.

The verdict is arithmetic on what was measured, by the thresholds that the card states: the order AGREES with exact
ablation from one Spearman correlation on, and ROUGHLY from another; it beats chance where, at more than half of the
sizes, the target falls further than with each of the random sets.
"""

import datetime as dt
from collections.abc import Mapping
from typing import Any

import numpy as np

from app import figures, formats
from app.contexts import BandView, FigureView, MeasurementView, TrustView
from app.state import address
from app.tables import JobRow, now
from app.views import progress, target
from app.views.load import Loaded
from engine.contract import unit

KINDS = ("faithfulness", "noise")
TITLES = {"faithfulness": "Faithfulness", "noise": "Noise band"}
AGREES, ROUGHLY = 0.8, 0.5
COMPLETE, ADDS_UP = "integrated", 0.05
"""The method that promises completeness, and the relative error up to which it is kept."""
SPOKEN = 50
"""The caption tells of the largest set up to this size."""
THRESHOLDS = (
    f"Spearman from {AGREES} on: agrees; from {ROUGHLY}: roughly. Better than chance: further than each random set at "
    "more than half of the sizes. Yes needs both, no lacks both."
)
FACTS = {
    "area between": "How much further the target falls than with random sets: mean over the logarithm of the size",
    "AUC": "Area under the curve: the target's mean loss over the logarithm of the size",
    "Spearman": "Rank correlation of scores and exact effects of single neurons; 1 = the same order",
    "completeness": "Σ of all scores against what is lost when no neuron fires",
}
COLUMNS = ("neurons ablated", "ranked first", "random, mean", "random, lowest")
TEACH = {
    "faithfulness": (
        "The neurons ranked first are set to zero, 1, 2, 5, 10, … at once, and so are random sets of equal size; then "
        "some of them one by one, which gives their exact effects to compare the scores with."
    ),
    "noise": (
        "The same scores are computed again in another number type, and as one row of a batch of two: what changes "
        "place among the first neurons by that alone cannot be told apart."
    ),
}
UNKNOWN = {
    "faithfulness": "That takes some seconds with a small model and minutes with a large one; steering goes on.",
    "noise": "That takes some seconds.",
}
ONLY_GRADIENT = "The noise band is defined for the method gradient only; this ranking was made by {method}."
ONLY_ORIGINAL = "The noise band is measured without steering: look at the original run."


def view(loaded: Loaded, panel: str, at: dt.datetime | None = None) -> TrustView:
    """`at`: the time that it is, for what is left of a running measurement."""
    row, time = loaded.attribution, at or now()
    found = {kind: loaded.measured.get(kind) for kind in KINDS}
    live = any(job is not None and job.live for job in found.values())
    ready = row is not None and row.state == "done"
    result = _worded(loaded, _result(found["faithfulness"]))
    stream = (*loaded.state.pairs(), ("only", "trust"), ("panel", panel))
    return TrustView(
        waiting=loaded.waiting,
        long=loaded.state.method == COMPLETE,
        empty=_nothing(loaded),
        sub=f"{loaded.state.method} for “{loaded.target_text}”" if ready else "",
        action=f"/runs/{loaded.run.id}/measurements",
        hidden=loaded.state.pairs(),
        live=live,
        events=address(f"/runs/{loaded.run.id}/events", stream) if live else "",
        faithfulness=_measurement(loaded, "faithfulness", found["faithfulness"], time),
        noise=_noise(loaded, found["noise"], time),
        thresholds=THRESHOLDS,
        figures=figures_of(result),
        facts=_facts(result),
        columns=COLUMNS,
        bands=_bands(loaded, _result(found["noise"])),
        **(judged(result) if result else {}),
    )


def _nothing(loaded: Loaded) -> str:
    """Why there is nothing to measure; '' where there is, or may be soon."""
    if loaded.waiting:
        return ""
    if loaded.attribution is None or loaded.attribution.state != "done":
        return "There is no ranking here that could be judged."
    return "Every score is zero: there is no order that could be judged." if target.same_sides(loaded) else ""


def settled(loaded: Loaded) -> bool:
    """No measurement of this card waits or runs."""
    return not any(kind in KINDS and job.live for kind, job in loaded.measured.items())


def _result(job: JobRow | None) -> Mapping[str, Any]:
    return (job.result if job is not None and job.state == "done" else None) or {}


def _worded(loaded: Loaded, result: Mapping[str, Any]) -> Mapping[str, Any]:
    """`words`: what S is in a sentence; of a contrast it is a difference."""
    if not result:
        return result
    contrast = loaded.choice is not None and loaded.choice.target.against is not None
    return {**result, "words": f"{result['unit']} difference" if contrast else result["unit"]}


def _measurement(loaded: Loaded, kind: str, job: JobRow | None, at: dt.datetime) -> MeasurementView:
    state = job.state if job is not None else ""
    live = job is not None and job.live
    stoppable = live and job is not None and not job.stop_requested
    again = state in ("failed", "cancelled")
    name = TITLES[kind].lower()
    return MeasurementView(
        kind=kind,
        title=TITLES[kind],
        state=state,
        live=live,
        teach=f"{TEACH[kind]} {_cost(kind, loaded.paces.get(kind))}",
        message=progress.message(job, loaded.places.get(kind, 1), at, "ablated runs") if job is not None else "",
        error=job.error if job is not None and state == "failed" else "",
        button="" if live or state == "done" else "Measure again" if again else f"Measure {name}",
        cancel=f"/measurements/{job.id}/cancel" if stoppable and job is not None else "",
        share=job.done / job.total if job is not None and job.total else 0.0 if state == "queued" else None,
    )


def _noise(loaded: Loaded, job: JobRow | None, at: dt.datetime) -> MeasurementView:
    refused = ONLY_ORIGINAL if loaded.run.steering else ""
    if loaded.state.method != "gradient":
        refused = ONLY_GRADIENT.format(method=loaded.state.method)
    if refused:
        return MeasurementView("noise", TITLES["noise"], "", False, refused)
    return _measurement(loaded, "noise", job, at)


def _cost(kind: str, pace: tuple[int, float] | None) -> str:
    if pace is None:
        return UNKNOWN[kind]
    runs, seconds = pace
    took = formats.about(seconds)
    return f"That takes {runs} runs of the model: {took}, as it did last time." if runs else f"That takes {took}."


def judged(result: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a measured faithfulness."""
    sizes, ranked, random = result["sizes"], np.array(result["ranked"]), np.array(result["random"])
    correlation, sampled = result["spearman"], len(result["sample"])
    deeper = int((ranked < random.min(axis=0)).sum())
    chance = 2 * deeper > len(sizes)
    agrees = correlation >= AGREES
    roughly = correlation >= ROUGHLY
    order = "agrees with" if agrees else "agrees roughly with" if roughly else "does not agree with"
    return {
        "verdict": "Yes." if agrees and chance else "With care." if roughly or chance else "No.",
        "because": (
            f"The order {order} exact ablation (Spearman {correlation:.2f} over {sampled} neurons). Without the "
            f"neurons ranked first the target falls further than without any of {len(random)} random sets, at {deeper} "
            f"of {len(sizes)} sizes.{_adds_up(result)}"
        ),
        "rows": tuple(
            (str(size), *map(formats.plain, (first, float(drawn.mean()), float(drawn.min()))))
            for size, first, drawn in zip(sizes, result["ranked"], random.T, strict=True)
        ),
    }


def _adds_up(result: Mapping[str, Any]) -> str:
    """Of a method whose scores should sum to what is lost without any neuron: whether they do."""
    error = result["completeness_error"]
    if result["method"] != COMPLETE or error is None:
        return ""
    holds = error <= ADDS_UP
    but = "" if holds else ", so take its scores for an order and not for amounts"
    return (
        f" Its scores should sum to what is lost without any neuron, and {'do' if holds else 'do not'}: the error is "
        f"{formats.percent(error)}{but}."
    )


def _facts(result: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    """The terms stand there from the start, so that their room is kept."""
    values = ["…"] * len(FACTS)
    if result:
        nats = target.in_unit(result["unit"])
        values = [
            f"{formats.plain(result['area'])} {nats}",
            f"{formats.plain(result['auc'])} {nats}",
            f"{result['spearman']:.3f}",
            _completeness(result),
        ]
    return tuple((term, value, about) for (term, about), value in zip(FACTS.items(), values, strict=True))


def _completeness(result: Mapping[str, Any]) -> str:
    method, words, error = result["method"], result["words"], result["completeness_error"]
    lost = f"without any neuron the {words} falls by {formats.plain(result['emptied'])}"
    if not _comparable(result):
        return f"{lost}; scores of {method} have another unit, so their sum is not compared"
    miss = f"; error {formats.percent(error)}" if error is not None else ""
    some = " (its candidates only)" if method == "ablation" else ""
    return f"all scores{some} sum to {formats.plain(result['total'])}, {lost}{miss}"


def _comparable(result: Mapping[str, Any]) -> bool:
    """Are the scores in the target's own unit?"""
    quantity = "logit" if result["unit"] == "logit" else "logprob"
    return unit(result["method"], quantity) == unit("gradient", quantity)


def figures_of(result: Mapping[str, Any]) -> tuple[FigureView, ...]:
    """Both figures, empty while the measurement runs, so that their room is kept."""
    curve, scatter = "Deletion curve", "Scores against exact effects of single neurons"
    if not result:
        return (
            FigureView("trust-curve", curve, {}, "The deletion curve follows."),
            FigureView("trust-scatter", scatter, {}, "Scores against exact effects follow."),
        )
    sizes, ranked, random, whole, words = (result[key] for key in ("sizes", "ranked", "random", "whole", "words"))
    spoken = max((k for k, size in enumerate(sizes) if size <= SPOKEN), default=0)
    first, count = ranked[spoken], sizes[spoken]
    drawn = float(np.mean([curve[spoken] for curve in random]))
    at = f"from {formats.plain(whole)} (dotted) to {formats.plain(first)}"
    what = f"lowers the {words} {at}" if first < whole else f"raises the {words} {at}"
    if first == whole:
        what = f"leaves the {words} at {formats.plain(whole)}"
    neurons = f"{count} neurons" if count > 1 else "neuron"
    caption = (
        f"Ablating the {neurons} ranked first {what}; {count} random: {formats.plain(drawn)} "
        f"(mean of {len(random)} sets)."
    )
    same = _comparable(result)
    equal = " On the line both are equal." if same else ""
    effects = (
        f"{len(result['sample'])} neurons, each ablated alone: its score, and what the target loses. "
        f"Spearman {result['spearman']:.2f}.{equal}"
    )
    return (
        FigureView("trust-curve", curve, figures.deletion_curve(sizes, ranked, random, whole, words), caption),
        FigureView(
            "trust-scatter", scatter,
            figures.scores_and_effects(result["sample"], result["scores"], result["effects"], equal=same), effects,
        ),
    )  # fmt: skip


def _bands(loaded: Loaded, result: Mapping[str, Any]) -> tuple[BandView, ...]:
    made = []
    for band in result.get("bands", ()):
        moved, top = band["moved"], band["top"]
        apart = f"scores differ by at most {formats.percent(band['difference'])} of the largest"
        if not band["difference"]:
            apart = "the scores are the same to the last bit"
        words = f"In {band['against']}, none of the first {top} changes place; {apart}."
        if moved:
            words = f"In {band['against']}, {len(moved)} of the first {top} change place; {apart}. Take as tied:"
        links = tuple((name, loaded.state.url(loaded.run.id, heat=f"neuron:{name}")) for name in moved)
        made.append(BandView(band["against"], words, links))
    return tuple(made)
