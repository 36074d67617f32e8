"""Contexts of the card that ranks a run's latents (templates/runs/_latents.html)."""

import dataclasses

from app.contexts.links import Choice
from app.contexts.run import HeatCell, MembershipView
from app.contexts.swap import SwapView
from app.contexts.trust import FigureView


@dataclasses.dataclass(frozen=True, slots=True)
class LatentField:
    """One part of a variant as a select: form field, what it is called, its options (`label`, `value`, `selected`)."""

    name: str
    label: str
    options: tuple[Choice, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LatentRow:
    """A ranked latent: `index` of its SAE. `href` = its page, '' = it has none now; `bar` ∈ [0, 1] of the largest
    influence; `image_share` ∈ [0, 1], '' as `image_percent` where nothing came of it. `heat` = URL of the state that
    draws it, '' where there is no picture; `selected`: it is drawn. `steer` = URL that adds it to the steering panel,
    '' = it cannot be turned; `label` = what it is called; `exact` = what the answer loses without it, '' = not known;
    `concept` = the one to which it belongs most, and `others` = to how many more it belongs as much."""

    rank: int
    latent: str
    index: int
    href: str
    influence: str
    bar: float
    activation: str
    image_share: float
    image_percent: str
    peak: str
    heat: str
    selected: bool
    steer: str = ""
    label: str = ""
    concept: MembershipView | None = None
    others: int = 0
    exact: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class LatentLine:
    """A latent of one of the short lists."""

    latent: str
    href: str
    influence: str
    activation: str


@dataclasses.dataclass(frozen=True, slots=True)
class LatentHeat:
    """A latent drawn over the picture. `choices`: what of it. `scale` = the largest value as text, '' = none."""

    latent: str
    src: str
    width: int
    height: int
    alt: str
    cells: tuple[HeatCell, ...]
    choices: tuple[Choice, ...]
    scale: str
    caption: str


@dataclasses.dataclass(frozen=True, slots=True)
class ExactView:
    """The first latents of a ranking, each ablated alone. It is asked for by a POST of `hidden` to `action`; `button`
    says so, '' = it cannot be asked for. `done`: rows have their exact losses, and `verdict` says how far the ranking
    agrees with them. `live`: it waits or runs; `message` = how far it is, `cancel` = URL to POST to, `error` = why it
    failed."""

    action: str
    hidden: tuple[tuple[str, str], ...]
    button: str = ""
    done: bool = False
    verdict: str = ""
    live: bool = False
    message: str = ""
    cancel: str = ""
    error: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class LatentsView:
    """templates/runs/_latents.html (root #latents). Without `present` the root is hidden and empty: the model has no
    SAE. `waiting`: the answer comes first. `live`: the ranking waits or runs. The card listens to `events`, if any.
    It is asked for by a POST of `hidden` (name, value) and `fields` to `action`; `button` says so, '' = it cannot be
    asked for. `teach` = what it is; `why` = the default variant and its reasons. `message` = how far it is,
    `share` ∈ [0, 1] or None; `cancel` = URL to POST `hidden` to, or ''. `error` = why it failed.
    With `ranked`: `sub` = SAE and variant; `fit` = (term, value, definition); `warnings` = what is wrong with the fit;
    `figure` = influence against mean activation, None while it runs; `verdict` = how far both rankings agree; `rows`,
    then `folded` ones, with influences in `unit`; `quiet` fire much and matter little, `loud` the reverse; `exact` =
    its yardstick; `swap` = the form for another run's latents; `export` = URL of the JSON."""

    present: bool
    waiting: bool = False
    live: bool = False
    ranked: bool = False
    events: str = ""
    sub: str = ""
    teach: str = ""
    why: str = ""
    action: str = ""
    hidden: tuple[tuple[str, str], ...] = ()
    fields: tuple[LatentField, ...] = ()
    button: str = ""
    message: str = ""
    share: float | None = None
    cancel: str = ""
    error: str = ""
    fit: tuple[tuple[str, str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    figure: FigureView | None = None
    verdict: str = ""
    unit: str = ""
    rows: tuple[LatentRow, ...] = ()
    folded: tuple[LatentRow, ...] = ()
    quiet: tuple[LatentLine, ...] = ()
    loud: tuple[LatentLine, ...] = ()
    drawn: LatentHeat | None = None
    exact: ExactView | None = None
    swap: SwapView | None = None
    saes: str = "/saes"
    export: str = ""
