"""What is explained, as `factories.answer` shows it: filled with plausible values, keyword arguments replace fields."""

import dataclasses
from typing import Any

from app import contexts as c

STATE = "/runs/7f3a9c"


def choice(label: str, selected: bool = False, value: str = "") -> c.Choice:
    return c.Choice(label, STATE, selected, value)


def side(label: str, *pieces: str, **changes: Any) -> c.SideView:
    ids = tuple(c.PieceView(piece, 400 + n) for n, piece in enumerate(pieces))
    return dataclasses.replace(c.SideView(label, ids, (), "as the model said it", False), **changes)


def target(**changes: Any) -> c.TargetView:
    """Two tokens of the answer."""
    quantities = (choice("log-probability", True, "logprob"), choice("logit", value="logit"))
    suggestions = (c.SuggestionView("tower", "6 %", STATE), c.SuggestionView("<lamp>", "2 %", STATE))
    view = c.TargetView(
        False, STATE, (("span", "1-3"), ("method", "gradient")), "traffic light", "", "", "2 tokens",
        "log-probability −0.10", STATE, "", "", "After “a”, instead of the rest", "tower", quantities, "", suggestions,
        "", (), "", (side("explained", "·traffic", "·light"),),
    )  # fmt: skip
    return dataclasses.replace(view, **changes)


def contrast_target(**changes: Any) -> c.TargetView:
    """Two texts that the model did not say."""
    ways = tuple(
        c.WayView(text, f"−{3 + n}.250", f"1 token: {400 + n}", STATE, n == 0)
        for n, text in enumerate(("·tower", "·Tower", "tower", "<b>bold</b>"))
    )
    note = "most probable way to write it"
    sides = (side("explained", "·tower", ways=ways, note=note), side("rather than", *LETTERS, ways=ways, note=note))
    return target(
        **{
            "open": True, "text": "tower", "against": "a text of many letters", "aside": "not said by the model",
            "tokens": "1 token against 40", "value": "difference +3.210 nats", "say": "tower",
            "other": '"><script>alert(1)</script>', "suggestions": (), "sides": sides,
        } | changes
    )  # fmt: skip


LETTERS = ("·", *"abcdefghijklmnopqrstuvwxyzabcdefghijklm")
