"""Context of the form that swaps in another run's latents (in templates/runs/_latents.html)."""

import dataclasses

from app.contexts.links import Choice


@dataclasses.dataclass(frozen=True, slots=True)
class SwapRun:
    """A run whose latents may be swapped in. `job` = its ranking, `href` = its page, `src` = its picture or ''."""

    job: str
    href: str
    question: str
    answer: str
    src: str


@dataclasses.dataclass(frozen=True, slots=True)
class SwapView:
    """A POST of `hidden` (name, value), `other` = a run's `job`, `k` one of `sizes` and `value` one of `values` to
    `action`. `teach` = what it does; `empty` = why there is no run to choose."""

    action: str
    hidden: tuple[tuple[str, str], ...]
    runs: tuple[SwapRun, ...]
    sizes: tuple[Choice, ...]
    values: tuple[Choice, ...]
    teach: str
    empty: str
