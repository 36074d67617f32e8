"""Contexts of the page of one latent of a sparse autoencoder (SAE)."""

import dataclasses

from app.contexts.latentconcepts import LatentConceptsView
from app.contexts.links import Choice
from app.contexts.neuron import AlikeNeuron, SeenView, TokenBar
from app.contexts.pages import Shell
from app.contexts.run import HeatCell
from app.contexts.trust import FigureView


@dataclasses.dataclass(frozen=True, slots=True)
class LatentRun:
    """A run in whose ranking the latent is listed. `href` = its page with the latent drawn. Without a picture `src` is
    '' and `cells` are empty. `variant` = the ranking's in words; `exact` = what the answer loses without it, '' = not
    known; `beside` = the latents before and after it in that ranking."""

    href: str
    src: str
    width: int
    height: int
    cells: tuple[HeatCell, ...]
    question: str
    answer: str
    rank: str
    influence: str
    activation: str
    image: str
    variant: str
    exact: str = ""
    beside: tuple[Choice, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class HistoryView:
    """Influence and mean activation over the runs that list a latent, newest last; `rows` = (run, influence, mean
    activation)."""

    figure: FigureView
    rows: tuple[tuple[str, str, str], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LatentPage:
    """templates/latents/show.html. `about` = its SAE in words. `other` = a banner: its model is not loaded. `message`
    in place of the lists while they are not there, `live` while they come; `again` = URL to POST to after a failure.
    `written_by` = neurons whose write vectors its encoder reads; `alike` = latents that write alike (bars and values
    are cosines). `runs`, and `searched` = where they were looked for; `history` of at least two of them, or None.
    `moves` = neighbours (an empty href: there is none); `label` and `note`, of `limits` characters; `seen` = when it is
    active."""

    shell: Shell
    latent: str
    about: str
    here: str
    other: str
    live: bool
    message: str
    again: str
    promoted: tuple[TokenBar, ...]
    suppressed: tuple[TokenBar, ...]
    written_by: tuple[AlikeNeuron, ...]
    alike: tuple[AlikeNeuron, ...]
    runs: tuple[LatentRun, ...]
    searched: str
    seen: SeenView
    moves: tuple[Choice, ...] = ()
    label: str = ""
    note: str = ""
    limits: tuple[int, int] = (80, 4000)
    history: HistoryView | None = None
    concepts: LatentConceptsView = dataclasses.field(default_factory=LatentConceptsView)
