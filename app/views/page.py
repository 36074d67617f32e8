"""Puts the parts of a run's page together."""

import secrets

from app.contexts import RunPage, Shell
from app.state import address
from app.views import answer, heat, latents, neurons, sides, steering, sweep, trust, where
from app.views.load import Loaded
from app.worker import Worker

FRAGMENTS = ("status", "answer", "picture", "neurons", "steer", "steered", "where", "trust", "sweep", "latents")
SMALL_WORLD = (
    "The built-in model only knows its small world of drawn everyday things, shapes and colours; about other pictures "
    "it guesses. Start the server with --model NAME or --model FOLDER to ask a larger model."
)


def new_panel() -> str:
    """A name for one view of a page: what it asks for supersedes only what it asked for before."""
    return secrets.token_hex(8)


def run_page(loaded: Loaded, worker: Worker, shell: Shell, *, panel: str, sample: bool) -> RunPage:
    """`sample`: the picture is one of the built-in model's own."""
    run = loaded.run
    partial = worker.partial(run.id)
    other = worker.partial(loaded.beside.id) if loaded.beside is not None else None
    builtin = bool(loaded.model.get("builtin"))
    return RunPage(
        shell=shell,
        run=run.id,
        events=events_url(loaded, panel),
        permalink=loaded.url,
        parent=f"/runs/{run.parent_id}" if run.parent_id else "",
        builtin_note=SMALL_WORLD if builtin and run.picture_hash and not sample else "",
        status=answer.status(loaded, worker),
        answer=answer.answer(loaded, partial.tokens if partial else None, worker.info),
        picture=heat.view(loaded),
        neurons=neurons.view(loaded),
        steer=steering.panel(loaded, panel),
        steered=steering.beside(loaded, other.tokens if other else None, panel),
        where=where.view(loaded),
        trust=trust.view(loaded, panel),
        sweep=sweep.view(loaded, worker, panel),
        latents=latents.view(loaded, worker, panel),
        compare=sides.url(loaded.url),
    )


def events_url(loaded: Loaded, panel: str) -> str:
    return address(f"/runs/{loaded.run.id}/events", (*loaded.state.pairs(), ("panel", panel)))


def settled(loaded: Loaded) -> bool:
    """Nothing more will come by itself, but for what the card `trust` listens to."""
    pending = (loaded.attribution, loaded.measured.get("input"))
    return not loaded.run.live and not any(row is not None and row.live for row in pending)
