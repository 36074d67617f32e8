"""What is explained: the target in words, its exact ids, the ways to write its texts, and what else could be."""

import math
from collections.abc import Mapping
from typing import Any

from app import formats
from app.contexts import Choice, PieceView, SideView, SuggestionView, TargetView, WayView
from app.state import PageState
from app.views.load import Loaded
from app.views.strip import visible
from engine.contract import UNITS, Target, unit

CERTAIN = 0.99
"""An answer of a greater probability has log-probability scores near zero."""
SUGGESTED = 4
SHOWN = 24
"""Characters of the answer that the form's label repeats."""
WHOLE: Mapping[str, Any] = {"span": None, "say": "", "against": "", "exact": False, "quantity": "logprob"}
OWN: Mapping[str, Any] = {"say": "", "against": "", "exact": False}
"""Changes of a page's state that make the whole answer, or the answer's own tokens, the target."""
NATS = unit("gradient")
"""The quantity that is measured in nats."""
QUANTITY_LABELS = {"logprob": "log-probability", "logit": "logit"}


def view(loaded: Loaded) -> TargetView:
    run, state, target = loaded.run, loaded.state, _target(loaded)
    suggestions = _suggestions(loaded, target)
    certain, remedies = _certain(loaded, target, suggestions)
    texts = target.text is not None or target.against is not None
    count = len(loaded.tokens)
    plain = (target.start, target.end) in ((0, count), (0, None)) and not texts and target.quantity == "logprob"
    return TargetView(
        open=texts or target.quantity != "logprob",
        action=f"/runs/{run.id}",
        hidden=state.but(say="", against="", exact=False, quantity="logprob").pairs(),
        text=loaded.explained_text,
        against=loaded.against_text,
        aside=_aside(loaded, target),
        tokens=_tokens(loaded, target),
        value=_value(loaded, target),
        whole="" if plain else state.url(run.id, **WHOLE),
        say=state.say,
        other=state.against,
        place=_place(loaded, target),
        example=_example(loaded, target),
        quantities=tuple(
            Choice(label, state.url(run.id, quantity=value), state.quantity == value, value)
            for value, label in QUANTITY_LABELS.items()
        ),
        quantity_note=f"{state.method} always explains the {UNITS[state.method]}." if state.method in UNITS else "",
        suggestions=suggestions,
        certain=certain,
        remedies=remedies,
        warning=_warning(loaded),
        sides=_sides(loaded, target) if count else (),
    )


def in_unit(what: str) -> str:
    """What differences and scores of such a target are counted in."""
    return "nats" if what == NATS else what.replace("logit", "logits")


def same_sides(loaded: Loaded) -> bool:
    """A contrast of a text with itself: every score is zero."""
    explained = loaded.summary.get("explained")
    return bool(explained) and explained == loaded.summary.get("explained_against")


def _target(loaded: Loaded) -> Target:
    return loaded.choice.target if loaded.choice is not None else Target()


def _count(number: int) -> str:
    return f"{number} token{'' if number == 1 else 's'}"


def _tokens(loaded: Loaded, target: Target) -> str:
    """How many tokens each side has; '' while that is not known."""
    start, end = loaded.span or (0, 0)
    explained = len(loaded.summary.get("explained", ())) if target.text is not None else end - start
    against = len(loaded.summary.get("explained_against", ()))
    if not explained:
        return ""
    return f"{_count(explained)} against {against}" if against else _count(explained)


def _aside(loaded: Loaded, target: Target) -> str:
    explained = tuple(loaded.summary.get("explained", ()))
    if target.text is None or not explained:
        return ""
    said = tuple(token.id for token in loaded.tokens[target.start :][: len(explained)])
    return "as the model said it" if said == explained else "not said by the model"


def _value(loaded: Loaded, target: Target) -> str:
    row = loaded.attribution
    if row is None or row.value is None:
        return ""
    what = unit(row.method, target.quantity)
    if target.against is not None:
        return f"difference {formats.signed(row.value)} {in_unit(what)}"
    return f"{what} {formats.plain(row.value)}"


def _place(loaded: Loaded, target: Target) -> str:
    """Where a text would stand."""
    before = "".join(token.text for token in loaded.tokens[: target.start]).strip()
    if not before:
        return "Instead of the answer"
    return f"After “{before if len(before) <= SHOWN else '…' + before[-SHOWN:]}”, instead of the rest"


def _others(loaded: Loaded, target: Target) -> list[tuple[str, float]]:
    """(text, log-probability) of what the model could have said at the target's first place, most probable first."""
    if not target.start < len(loaded.tokens):
        return []
    token = loaded.tokens[target.start]
    others = [(other.text, other.logprob) for other in token.alternatives if other.id != token.id]
    return [(text, logprob) for text, logprob in others if text.strip() and not _mark(text)][:SUGGESTED]


def _mark(text: str) -> bool:
    """A special token, such as the end of the answer: no text stands for it."""
    return text.strip().startswith("<") and text.strip().endswith(">")


def _example(loaded: Loaded, target: Target) -> str:
    return next((text.strip() for text, _ in _others(loaded, target)), "")


def _suggestions(loaded: Loaded, target: Target) -> tuple[SuggestionView, ...]:
    """The answer's token against its alternatives; for a text, against what was said in its place."""
    state, run_id = loaded.state, loaded.run.id
    if target.text is not None:
        end = state.span[1] if state.span else len(loaded.tokens)
        said = "".join(token.text for token in loaded.tokens[target.start : end])
        written = loaded.summary.get("text")
        if not said.strip() or target.against is not None or not written:
            return ()
        href = state.url(run_id, say=written, against=said, exact=True)
        return (SuggestionView(said.strip(), "its answer", href),)
    here = (target.start, target.start + 1)
    return tuple(
        SuggestionView(
            text.strip(), formats.percent(math.exp(min(0.0, logprob))),
            state.url(run_id, span=here, say="", against=text, exact=True),
        )
        for text, logprob in _others(loaded, target)
    )  # fmt: skip


def _certain(loaded: Loaded, target: Target, suggestions: tuple[SuggestionView, ...]) -> tuple[str, tuple[Choice, ...]]:
    """A hint for an answer that could hardly have been another, with links to targets whose scores say more."""
    start, end = loaded.span or (0, 0)
    probability = math.exp(min(0.0, sum(token.logprob for token in loaded.tokens[start:end])))
    own = target.text is None and target.against is None and target.quantity == "logprob"
    if not own or start == end or probability <= CERTAIN or loaded.state.method in UNITS:
        return "", ()
    logit = Choice("its logit", loaded.state.url(loaded.run.id, quantity="logit"), False)
    first = loaded.tokens[start].text.strip()
    whose = f"“{first}” " if end - start > 1 else "it "
    runner = [Choice(f"{whose}rather than “{near.text}”", near.href, False) for near in suggestions[:1]]
    remedies = (logit, *runner) if loaded.state.method != "logprob_increase" else tuple(runner)
    return "It is nearly certain, so its scores are tiny.", remedies


def _warning(loaded: Loaded) -> str:
    if same_sides(loaded):
        return "Both sides are the same tokens, so every score is zero. Change one of the two texts."
    return ""


def _sides(loaded: Loaded, target: Target) -> tuple[SideView, ...]:
    if target.text is None:
        start, end = loaded.span or (0, 0)
        tokens = loaded.tokens[start:end]
        own = tuple(PieceView(visible(token.text), token.id) for token in tokens)
        first = SideView("explained", own, (), "as the model said it", False)
    else:
        first = _written(loaded, "explained", "text", "explained")
    if target.against is None:
        return (first,)
    return first, _written(loaded, "rather than", "against", "explained_against")


def _written(loaded: Loaded, label: str, field: str, ids: str) -> SideView:
    """The side that a text makes: `field` of the target, its ids under the name `ids` in the summary."""
    explained = list(loaded.summary.get(ids, ()))
    ways = loaded.summary.get("ways", {}).get(field, ())
    own = next((pieces for _, known, pieces, _ in ways if known == explained), [""] * len(explained))
    return SideView(
        label=label,
        pieces=tuple(PieceView(visible(piece), i) for piece, i in zip(own, explained, strict=True)),
        ways=tuple(
            WayView(
                visible(text),
                formats.plain(logprob),
                f"{_count(len(known))}: {', '.join(map(str, known))}",
                loaded.state.url(loaded.run.id, **_exactly(loaded.state, loaded.summary, field, text)),
                known == explained,
            )
            for text, known, _, logprob in ways
        ),
        note="exactly as written" if loaded.state.exact else "most probable way to write it",
        waiting=loaded.waiting,
    )


def _exactly(state: PageState, summary: Mapping[str, Any], field: str, text: str) -> dict[str, Any]:
    """Changes of the state that take `text` for `field`, and leave the other field as it is written now."""
    say = summary.get("text") if state.say else ""
    against = summary.get("against") if state.against else ""
    return {"exact": True, "say": say, "against": against, "say" if field == "text" else "against": text}
