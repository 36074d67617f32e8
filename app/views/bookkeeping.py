"""How an attribution adds up: its sums by modality, what was verified, and positions that can be left out of it."""

from collections.abc import Mapping

import numpy as np

from app import formats
from app.contexts import ApartView, Choice
from app.views import target
from app.views.load import Loaded
from engine.contract import APART, MODALITIES, UNITS, unit

LABELS: Mapping[str, str] = {"special": "special tokens", "high-norm": "high-norm positions"}
ABOUT: Mapping[str, str] = {
    "special": "Beginning-of-sequence and role marks. They stand in every prompt, so that what is scored there says "
    "little about this picture; attention often rests on them for want of anything better.",
    "high-norm": "Attention sinks and register-like patches: their stream is far longer than the median position’s. "
    "Attention rests there for want of anything better, and they hold no local content of the picture.",
}
NOTHING_LEFT = 0.9995


def shares(loaded: Loaded) -> tuple[tuple[str, str], ...]:
    """(modality, its part of Σ|score|)."""
    known = loaded.summary.get("modality_shares", ())
    return tuple((name, formats.percent(share)) for name, share in zip(MODALITIES, known, strict=False))


def sums(loaded: Loaded) -> tuple[tuple[str, str], ...]:
    """(modality, Σ of all scores at its positions), and all of them together."""
    if not loaded.summary:
        return ()
    by_modality = loaded.arrays["layer_sums"].sum(axis=0, dtype=np.float64)
    named = [*zip(MODALITIES, by_modality, strict=True), ("all", by_modality.sum())]
    return tuple((name, formats.signed(float(value))) for name, value in named)


def checks(loaded: Loaded) -> tuple[str, ...]:
    row = loaded.attribution
    if row is None or row.value is None or not loaded.summary:
        return ()
    total = formats.signed(float(loaded.arrays["layer_sums"].sum(dtype=np.float64)))
    listed = formats.signed(sum(neuron.score for neuron in loaded.neurons))
    what = unit(row.method, loaded.state.quantity)
    contrast = loaded.state.against != ""
    value = f"difference ({what})" if contrast else what
    added = (
        f"Σ over all neurons and positions {total}, of which the {len(loaded.neurons)} listed {listed}; "
        f"the target’s {value} is {(formats.signed if contrast else formats.plain)(row.value)}."
    )
    return (
        added,
        f"Scores are in {target.in_unit(what)}.",
        *(f"{'✓' if holds else '✗'} {name}: {detail}" for name, holds, detail in loaded.summary["checks"]),
    )


def apart(loaded: Loaded) -> tuple[ApartView, ...]:
    """A switch for each kind of position; its share once that is known."""
    state, known = loaded.state, _known(loaded)
    made = []
    for kind in APART:
        without = tuple(other for other in APART if (other in state.leave) != (other == kind))
        count, share = known.get(kind, (0, None))
        made.append(
            ApartView(
                label=LABELS[kind],
                percent="" if share is None else formats.percent(share),
                counted=kind not in state.leave,
                href=state.url(loaded.run.id, leave=without),
                about=ABOUT[kind] + (f" Here: {_positions(count)}." if share is not None else ""),
            )
        )
    return tuple(made)


def left_out(loaded: Loaded) -> str:
    """What the sums, the ranking and the heat maps do without."""
    known, parts, gone = _known(loaded), [], 0.0
    for kind in loaded.state.leave:
        count, share = known.get(kind, (0, None))
        parts.append(LABELS[kind] + ("" if share is None else f" ({_positions(count)}, {formats.percent(share)})"))
        gone = max(gone, share or 0.0)
    if not parts:
        return ""
    return f"Left out: {' and '.join(parts)}.{' Nothing is left to rank.' if gone >= NOTHING_LEFT else ''}"


def ways_back(loaded: Loaded) -> tuple[Choice, ...]:
    """What to choose where this target cannot be explained by this method."""
    row, state, run_id = loaded.attribution, loaded.state, loaded.run.id
    if row is None or row.state != "failed":
        return ()
    links = []
    if state.quantity == "logit" and state.method not in UNITS:
        links.append(Choice("Explain the log-probability", state.url(run_id, quantity="logprob"), False))
    if state.method != "gradient":
        links.append(Choice("Use gradient", state.url(run_id, method="gradient"), False))
    if not loaded.whole:
        links.append(Choice("Back to the whole answer", state.url(run_id, **target.WHOLE, leave=()), False))
    return tuple(links)


def _known(loaded: Loaded) -> dict[str, tuple[int, float]]:
    """By kind: how many positions, and their part of Σ|score| before anything is left out."""
    return {kind: (len(positions), share) for kind, positions, share, _ in loaded.summary.get("apart", ())}


def _positions(count: int) -> str:
    return f"{count} position{'' if count == 1 else 's'}"
