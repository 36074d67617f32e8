"""Contexts of what is shown of concepts in latents: on a latent's page, a concept's page, and the page of SAEs."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class MembershipRow:
    """A concept of a latent, or a latent of a concept: its name, its page, and μ as a bar ∈ [0, 1] and as text."""

    name: str
    href: str
    bar: float
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class LatentConceptsView:
    """templates/latents/_concepts.html: the concepts of a latent by falling membership, `folded` after the first
    `rows`. `about` = how many there are of how many, `empty` in its place where there is none."""

    rows: tuple[MembershipRow, ...] = ()
    folded: tuple[MembershipRow, ...] = ()
    about: str = ""
    empty: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class MakingView:
    """How memberships are made: `live` while a job runs, `share` ∈ [0, 1] and `message` say how far it is; `error` of
    the last. A POST to `action` of `hidden` (name, value) starts one, `button` says so ('' = it cannot be started), and
    `about` how long it takes; `cancel` = URL to POST to, '' = nothing to cancel. `probes` = number of probes that the
    form offers, '' where it does not ask."""

    live: bool
    share: float
    message: str
    error: str
    action: str
    hidden: tuple[tuple[str, str], ...]
    button: str
    about: str
    cancel: str
    probes: str


@dataclasses.dataclass(frozen=True, slots=True)
class ConceptLatentsView:
    """A concept's latents of one SAE (templates/concepts/_latents.html): the strongest, `about` = how they were made
    and how many there are, `stale` = why they are out of date, '' where they are not; `empty` = why there are none."""

    sae: str
    rows: tuple[MembershipRow, ...]
    about: str
    stale: str
    empty: str
    making: MakingView


@dataclasses.dataclass(frozen=True, slots=True)
class SaeConceptsView:
    """An SAE's line in templates/latents/_memberships.html: for how many concepts it has memberships, as a sentence."""

    sae: str
    about: str
    making: MakingView
