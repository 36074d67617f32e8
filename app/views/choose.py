"""The page on which two states are chosen for a comparison."""

import dataclasses
from collections.abc import Sequence

from app import steerings, targets
from app.contexts import AddressField, Choice, ChoosePage, ChosenView, Shell
from app.state import PageState
from app.tables import AttributionRow, Run
from app.views import load, shell
from app.views.compare import method_label, target_in_words
from app.views.load import Loaded
from app.views.sides import Side, url


def page(
    around: Shell,
    fields: Sequence[AddressField],
    chosen: Sequence[Loaded | None],
    suggestions: Sequence[Choice],
    recent: Sequence[Run],
    heat: str,
    error: str,
) -> ChoosePage:
    """`chosen`: side A and side B, as far as they are known; at most one of them here is."""
    known = [(letter, loaded) for letter, loaded in zip("AB", chosen, strict=True) if loaded is not None]
    a, b = (_side_of(loaded).address if loaded is not None else "" for loaded in chosen)
    lines = [
        dataclasses.replace(shell.run_line(run), href=url(a, run.id, heat) if a else url(run.id, b, heat))
        for run in recent
    ]
    return ChoosePage(
        shell=around,
        fields=tuple(fields),
        chosen=tuple(_chosen(letter, loaded) for letter, loaded in known),
        hidden=tuple((name, value) for name, value in (("a", a), ("b", b), ("heat", heat)) if value),
        error=error,
        suggestions=tuple(suggestions),
        recent=tuple(lines),
        recent_title="Other runs" if known else "Recent runs",
    )


def _chosen(letter: str, loaded: Loaded) -> ChosenView:
    line = shell.run_line(loaded.run)
    return ChosenView(
        letter, loaded.url, line.picture or "", line.question, line.answer, line.steering, target_in_words(loaded),
        method_label(loaded.state.method), "/compare",
    )  # fmt: skip


def _side_of(loaded: Loaded) -> Side:
    return Side(loaded.run.id, loaded.state)


def suggestions(
    loaded: Loaded, rows: Sequence[AttributionRow], steered: Sequence[Run], other: str, heat: str
) -> tuple[Choice, ...]:
    """Comparisons of a state with the other targets and methods that are computed for its run, with its steered runs,
    and with the original of a steered one. `other`: the letter of the side that is still missing."""
    own = _side_of(loaded).address
    found = []
    for row in rows:
        state = _state_of(loaded.run, row)
        if state is not None and (row.key, row.method) != (loaded.choice and loaded.choice.key, loaded.state.method):
            seen = dataclasses.replace(loaded, state=state, choice=load.target(loaded.run, state), attribution=row)
            found.append(
                (f"{target_in_words(seen)}, by {method_label(row.method)}", Side(loaded.run.id, state).address)
            )
    for run in steered:
        said = f"“{run.answer['text']}”" if run.answer else run.state
        found.append((f"steered: {steerings.in_words(run.steering)} → {said}", run.id))
    if loaded.parent is not None and loaded.parent.answer:
        found.append((f"the original run → “{loaded.parent.answer['text']}”", loaded.parent.id))
    return tuple(
        Choice(label, url(own, address, heat) if other == "b" else url(address, own, heat), False)
        for label, address in found
    )


def _state_of(run: Run, row: AttributionRow) -> PageState | None:
    """The state of the run's page that shows this attribution; None where no URL says it."""
    choice = targets.from_json(row.start, row.end, row.target)
    goal, (start, end) = choice.target, choice.span
    count = len(run.answer["tokens"]) if run.answer else 0
    if goal.text is not None:
        span = (start, start + 1) if start else None
    else:
        span = None if (start, end) == (0, count) else (start, end)
    state = PageState(
        span=span, say=goal.text or "", against=goal.against or "", exact=choice.exact, quantity=goal.quantity,
        leave=goal.leave_out, method=row.method,
    )  # fmt: skip
    reached = start < count and load.target(run, state)
    return state if reached and reached.key == row.key else None
