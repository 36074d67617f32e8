"""The card that shows a sweep: what is answered under each value of one row of the steering panel.

Probabilities are shown plain and on a linear axis from 0 to 1: what matters is which answer holds the model's belief,
and where that changes hands; a logarithm would spread out what is improbable either way. The probability of a whole
answer falls with its length, so that of LONG default answers is given by token (the geometric mean).
"""

import itertools
import math
import string
from collections.abc import Mapping, Sequence
from typing import Any

from app import formats, records, steerings, sweepchart, swept
from app.contexts import AnswerRun, DistinctAnswer, FigureView, SweepRow, SweepView
from app.state import address
from app.tables import JobRow
from app.views.load import Loaded
from app.worker import Worker

LONG = 8
"""Tokens of a default answer from which on probabilities are means by token."""
TALKS = {
    "queued": "number {place} in the queue",
    "running": "the first tokens follow",
    "cancelled": "Cancelled; nothing was kept.",
}
NOTHING = SweepView(
    False, False, "", "", "", "", "", "", "", "", "", "", (), (), FigureView("sweep-chart", "", {}, ""), (), (), (), (),
    "", True,
)  # fmt: skip
Point = Mapping[str, Any]


def view(loaded: Loaded, worker: Worker, panel: str) -> SweepView:
    job = loaded.sweep
    if job is None:
        return NOTHING
    params, run = job.params, loaded.run
    row, around, values = params["row"], params["steering"], params["values"]
    operation = params.get("operation", "scale")
    symbol = "λ" if row.startswith(steerings.CONCEPT_FIELD) else steerings.SYMBOLS[operation]
    ids = records.ids(run.answer) if run.answer else []
    points = _points(job, worker)
    said = _said(points, (run.answer or {}).get("text", ""), ids)
    strip = _strip(said, values, symbol)
    listed, current = _current(loaded, params)
    by_token = len(ids) >= LONG
    label = f"Probability of the answer and of the default answer at each {symbol} of {swept.name_of(row)}"
    given, default = _probabilities(points, len(ids), by_token=by_token)
    stream = (*loaded.state.pairs(), ("only", "sweep"), ("panel", panel))
    failed = job.state in ("failed", "cancelled")
    chart = sweepchart.sweep(
        values, given, default,
        _labels(said, values, symbol),
        current if listed else None,
        f"{symbol} of {swept.name_of(row)}",
        "probability by token" if by_token else "probability",
    )  # fmt: skip
    return SweepView(
        present=True,
        live=job.live,
        events=address(f"/runs/{run.id}/events", stream) if job.live else "",
        field=row,
        symbol=symbol,
        name=swept.name_of(row),
        summary=_summary(around, values, symbol),
        message=_message(job, points, loaded.sweep_place),
        error=job.error if job.state == "failed" else "",
        cancel=f"/sweeps/{job.id}/cancel" if job.live and not job.stop_requested else "",
        again=f"/runs/{run.id}/sweep" if failed else "",
        action=f"/runs/{run.id}/steer",
        hidden=(*loaded.state.pairs(), ("panel", panel)),
        others=(*swept.fields_of(around), *_standing(params)),
        operation=operation,
        figure=FigureView("sweep-chart", label, chart if points else {}, _caption(by_token=by_token, tokens=len(ids))),
        strip=strip,
        answers=_answers(said, values, symbol),
        columns=(symbol, "answer", "its probability", "default answer’s"),
        rows=tuple(
            SweepRow(
                f"{value:g}", steerings.number(value), text or "no answer",
                _percent(p), _percent(q), same, listed and value == current,
            )
            for value, (_, text, same), p, q in zip(values, said, given, default, strict=True)
        ) if points else (),
        export=f"/sweeps/{job.id}.json",
        listed=listed,
    )  # fmt: skip


def settled(loaded: Loaded) -> bool:
    return loaded.sweep is None or not loaded.sweep.live


def _points(job: JobRow, worker: Worker) -> Sequence[Point]:
    if job.state == "done":
        points: Sequence[Point] = (job.result or {}).get("points", ())
        return points
    return swept.as_json(worker.points(job.id)) if job.live else ()


def _said(points: Sequence[Point], default: str, ids: list[int]) -> list[tuple[str, str, bool]]:
    """(key, text, is it the default answer?) by value. Keys are letters, the default answer's first. An answer in the
    making counts as the default one while it may still become it."""
    letters: dict[str, str] = {}
    made = []
    for point in points:
        same = point["ids"] == (ids[: len(point["ids"])] if point["live"] else ids)
        made.append((default if same and not point["live"] else point["text"], same))
    if any(text == default for text, _ in made):
        letters[default] = string.ascii_uppercase[0]
    for text, _ in made:
        if text and text not in letters:
            letters[text] = _letter(len(letters))
    return [(letters.get(text, "…"), text, same) for text, same in made]


def _letter(place: int) -> str:
    letters = string.ascii_uppercase
    return letters[place] if place < len(letters) else f"{letters[place % len(letters)]}{place // len(letters)}"


def _labels(said: list[tuple[str, str, bool]], values: Sequence[float], symbol: str) -> list[str]:
    at = [f"{symbol} {steerings.number(value)}" for value in values[: len(said)]]
    return [f"{value}: {key} “{formats.quoted(text)}”" for value, (key, text, _) in zip(at, said, strict=True)]


def _strip(said: list[tuple[str, str, bool]], values: Sequence[float], symbol: str) -> tuple[AnswerRun, ...]:
    runs, start = [], 0
    for (key, text, same), group in itertools.groupby(said):
        count = len(list(group))
        where = _range(values[start], values[start + count - 1])
        runs.append(AnswerRun(count, key, text, same, f"{symbol} {where}: {text or 'no answer'}"))
        start += count
    return tuple(runs)


def _range(first: float, last: float) -> str:
    low, high = steerings.number(first), steerings.number(last)
    return low if first == last else f"{low} … {high}"


def _answers(said: list[tuple[str, str, bool]], values: Sequence[float], symbol: str) -> tuple[DistinctAnswer, ...]:
    where: dict[tuple[str, str, bool], list[str]] = {}
    start = 0
    for answer, group in itertools.groupby(said):
        count = len(list(group))
        where.setdefault(answer, []).append(_range(values[start], values[start + count - 1]))
        start += count
    listed = sorted(where, key=lambda answer: (len(answer[0]), answer[0]))
    return tuple(
        DistinctAnswer(key, text or "no answer", same, f"{symbol} {', '.join(where[key, text, same])}")
        for key, text, same in listed
    )


def _probabilities(
    points: Sequence[Point], length: int, *, by_token: bool
) -> tuple[list[float | None], list[float | None]]:
    """(of the answer given, of the default answer) at each value."""
    given = [_probability(point["logprob"], len(point["ids"]), by_token=by_token) for point in points]
    default = [_probability(point["original"], length, by_token=by_token) for point in points]
    return given, default


def _probability(logprob: float | None, tokens: int, *, by_token: bool) -> float | None:
    if not tokens:
        return None
    if logprob is None:
        return 0.0
    return round(math.exp(min(0.0, logprob / (tokens if by_token else 1))), 6)


def _percent(probability: float | None) -> str:
    return "–" if probability is None else formats.percent(probability)


def _standing(params: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Of a latent's row: the fields that say which latent it is, and what its values are values of."""
    if not params.get("sae"):
        return ()
    name, turned = swept.name_of(params["row"]), (params["row"], repr(params["values"][len(params["values"]) // 2]))
    set_to = ((f"{steerings.OPERATION_FIELD}{name}", "set"), turned) if params["operation"] == "set" else ()
    return ((f"{steerings.SAE_FIELD}{name}", params["sae"]), *set_to)


def _current(loaded: Loaded, params: Mapping[str, Any]) -> tuple[bool, float]:
    """(does the steering that stands beside this run differ from a sweep's in the row alone?, the row's value in
    it)."""
    present = loaded.beside.steering if loaded.beside is not None else None
    value = swept.value_in(present, params)
    if value is None:
        return False, 0.0
    there = present or {"concepts": [], "neurons": [], "positions": "all"}
    here = swept.at(params, value)
    # Nothing is turned at any position or layer: an empty steering is the same wherever it acts.
    same = here == there or (steerings.empty(here) and steerings.empty(there))
    return same, value


def _summary(around: Mapping[str, Any], values: Sequence[float], symbol: str) -> str:
    others = steerings.in_words(around)
    return f"{symbol} {_range(values[0], values[-1])}{f' · with {others}' if others else ''}"


def _message(job: JobRow, points: Sequence[Point], place: int) -> str:
    if job.live and job.stop_requested:
        return "stopping after this token"
    if job.state == "done":
        took = formats.milliseconds((job.result or {}).get("milliseconds", 0))
        return f"{len(points)} answers in one batch, {took}"
    if points:
        longest = max(len(point["ids"]) for point in points)
        return f"{longest} token{'' if longest == 1 else 's'} so far"
    return TALKS.get(job.state, "").format(place=place)


def _caption(*, by_token: bool, tokens: int) -> str:
    what = "Probability of the answer given at each value, and of the default answer there."
    if by_token:
        what += f" By token (geometric mean), because whole answers of {tokens} tokens are all improbable."
    return f"{what} A click on a point turns the panel to it."
