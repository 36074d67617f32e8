"""Contexts of the page of one latent, and of the page that lists sparse autoencoders (SAEs)."""

import dataclasses

from app.contexts.neuron import AlikeNeuron, TokenBar
from app.contexts.pages import Shell
from app.contexts.run import HeatCell


@dataclasses.dataclass(frozen=True, slots=True)
class LatentRun:
    """A run in whose ranking the latent is listed. `href` = its page with the latent drawn. Without a picture `src` is
    '' and `cells` are empty. `variant` = the ranking's in words."""

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


@dataclasses.dataclass(frozen=True, slots=True)
class LatentPage:
    """templates/latents/show.html. `about` = its SAE in words. `other` = a banner: its model is not loaded. `message`
    in place of the lists while they are not there, `live` while they come; `again` = URL to POST to after a failure.
    `written_by` = neurons whose write vectors its encoder reads; `alike` = latents that write alike (bars and values
    are cosines). `runs`, and `searched` = where they were looked for."""

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


@dataclasses.dataclass(frozen=True, slots=True)
class SaeCard:
    """An SAE. `about` = architecture and site; `facts` (term, value); `refused` = why it cannot stand on the loaded
    model, or ''. `command` = what made it, or ''."""

    name: str
    about: str
    facts: tuple[tuple[str, str], ...]
    refused: str
    command: str


@dataclasses.dataclass(frozen=True, slots=True)
class SaesPage:
    """templates/latents/saes.html. `empty` = why none is listed, or ''."""

    shell: Shell
    saes: tuple[SaeCard, ...]
    empty: str
