"""Puts the parts of a run's page together."""

import secrets
from collections.abc import Callable
from typing import Any

from app.contexts import RunPage, Shell, SteeredView
from app.state import address
from app.views import answer, heat, latents, neurons, sides, steering, sweep, trust, where
from app.views.load import Loaded
from app.worker import Worker
from engine.contract import AnswerToken

SMALL_WORLD = (
    "The built-in model only knows its small world of drawn everyday things, shapes and colours; about other pictures "
    "it guesses. Start the server with --model NAME or --model FOLDER to ask a larger model."
)


def _streamed(worker: Worker, run_id: str) -> tuple[AnswerToken, ...] | None:
    partial = worker.partial(run_id)
    return partial.tokens if partial else None


def _beside(loaded: Loaded, worker: Worker, panel: str) -> SteeredView:
    streamed = _streamed(worker, loaded.beside.id) if loaded.beside is not None else None
    return steering.beside(loaded, streamed, panel)


VIEWS: dict[str, Callable[[Loaded, Worker, str], Any]] = {
    "status": lambda loaded, worker, _: answer.status(loaded, worker),
    "answer": lambda loaded, worker, _: answer.answer(loaded, _streamed(worker, loaded.run.id), worker.info),
    "picture": lambda loaded, _worker, _: heat.view(loaded),
    "neurons": lambda loaded, _worker, _: neurons.view(loaded),
    "steer": lambda loaded, worker, panel: steering.panel(loaded, panel, worker.saes if worker.info else None),
    "steered": _beside,
    "where": lambda loaded, _worker, _: where.view(loaded),
    "trust": lambda loaded, _worker, panel: trust.view(loaded, panel),
    "sweep": sweep.view,
    "latents": latents.view,
}
"""What makes each fragment's context, of a state, the worker and a panel's name."""

FRAGMENTS = tuple(VIEWS)


def new_panel() -> str:
    """A name for one view of a page: what it asks for supersedes only what it asked for before."""
    return secrets.token_hex(8)


def run_page(loaded: Loaded, worker: Worker, shell: Shell, *, panel: str, sample: bool) -> RunPage:
    """`sample`: the picture is one of the built-in model's own."""
    run = loaded.run
    builtin = bool(loaded.model.get("builtin"))
    return RunPage(
        shell=shell,
        run=run.id,
        events=events_url(loaded, panel),
        permalink=loaded.url,
        parent=f"/runs/{run.parent_id}" if run.parent_id else "",
        builtin_note=SMALL_WORLD if builtin and run.picture_hash and not sample else "",
        compare=sides.url(loaded.url),
        **{name: view(loaded, worker, panel) for name, view in VIEWS.items()},
    )


def events_url(loaded: Loaded, panel: str) -> str:
    return address(f"/runs/{loaded.run.id}/events", (*loaded.state.pairs(), ("panel", panel)))


def settled(loaded: Loaded) -> bool:
    """Nothing more will come by itself, but for what the card `trust` listens to."""
    pending = (loaded.attribution, loaded.measured.get("input"))
    return not loaded.run.live and not any(row is not None and row.live for row in pending)
