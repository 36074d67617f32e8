"""Reads everything that one state of a run's page needs, in a fixed number of queries."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from app import queries, records, steerings
from app.arrays import Floats, unpack
from app.queries import ConceptFact
from app.state import PageState
from app.tables import AttributionRow, NeuronRow, Picture, Run
from engine.contract import AnswerToken, BadTarget, UnknownName


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """One state of a run's page. `span` is the target's (start, end), None while there is no answer. `beside` is the
    steered run that stands beside this one (or this run itself, on a steered run's own page); `beside_of` the run it
    was steered from. `neuron_names`: memberships by (layer, index). `model`: what the run remembers of its model."""

    run: Run
    picture: Picture | None
    parent: Run | None
    state: PageState
    span: tuple[int, int] | None
    tokens: tuple[AnswerToken, ...]
    attribution: AttributionRow | None
    arrays: Mapping[str, Floats]
    neurons: list[NeuronRow]
    memberships: dict[tuple[int, int], list[tuple[str, float]]]
    concepts: dict[str, ConceptFact]
    beside: Run | None
    beside_of: Run | None
    heats: tuple[Floats | None, Floats | None]
    grid: Any
    position: int
    queue: int

    @property
    def model(self) -> Mapping[str, Any]:
        return self.run.model or {}

    @property
    def whole(self) -> bool:
        return self.span is None or self.span == (0, len(self.tokens))

    @property
    def waiting(self) -> bool:
        """The attribution is not there yet, but it is coming."""
        if self.attribution is not None:
            return self.attribution.live
        return self.run.live

    @property
    def heat(self) -> str:
        """What the heat map shows, as in a URL; without a wish, where the neurons that carried the target found it."""
        return self.state.heat or "evidence"

    @property
    def outdated(self) -> bool:
        """The attribution was made with another library of concepts than the one that is known now."""
        if self.attribution is None or not self.attribution.summary:
            return False
        now = next((fact.library for fact in self.concepts.values()), "")
        return bool(self.attribution.summary.get("library") != now)

    @property
    def target_text(self) -> str:
        if self.span is None:
            return ""
        return "".join(token.text for token in self.tokens[self.span[0] : self.span[1]]).strip()

    @property
    def url(self) -> str:
        return self.state.url(self.run.id)


def target(run: Run, state: PageState) -> tuple[int, int] | None:
    """The span that this state explains. Raises BadTarget for one outside the answer."""
    count = len(run.answer["tokens"]) if run.answer else 0
    if not count:
        return None
    if state.span is None:
        return 0, count
    if state.span[1] > count:
        raise BadTarget(
            f"Tokens {state.span[0]} to {state.span[1]} are not a span of this answer, which has {count} tokens."
        )
    return state.span


def load(session: Session, run_id: str, state: PageState) -> Loaded | None:
    """None if there is no such run. Raises RequestError for a state that names what does not exist."""
    found = queries.run_with_picture(session, run_id)
    if found is None:
        return None
    run, picture, parent = found
    span = target(run, state)
    attribution = queries.attribution(session, run.id, *span, state.method) if span else None
    ready = attribution is not None and attribution.state == "done"
    neurons = queries.neurons(session, attribution.id) if attribution is not None and ready else []
    concepts = queries.concept_facts(session, run.model_revision)
    _verify(state, run, concepts)
    beside, beside_of = (run, parent) if parent is not None else (None, None)
    if state.steer:
        child = queries.run(session, state.steer)
        if child is None or child.parent_id != run.id:
            raise UnknownName(f"There is no steered run “{state.steer[:40]}” of this run.")
        beside, beside_of = child, run
    heats, grid = _heats(session, beside, beside_of)
    return Loaded(
        run=run,
        picture=picture,
        parent=parent,
        state=state,
        span=span,
        tokens=records.tokens(run.answer),
        attribution=attribution,
        arrays=unpack(attribution.arrays) if attribution is not None and attribution.arrays else {},
        neurons=neurons,
        memberships=queries.memberships(session, concepts, [(n.layer, n.index) for n in neurons]),
        concepts=concepts,
        beside=beside,
        beside_of=beside_of,
        heats=heats,
        grid=grid,
        position=queries.queue_position(session, run),
        queue=queries.queue_length(session),
    )


def _verify(state: PageState, run: Run, concepts: Mapping[str, ConceptFact]) -> None:
    """Concepts, neurons and layers in the URL must exist, once it is known which do. (`add` is answered inside the
    panel.)"""
    if not run.model_revision:
        return
    for name in (state.concept, state.heat.removeprefix("concept:") if state.heat.startswith("concept:") else ""):
        if name and name not in concepts:
            raise steerings.unknown_concept(name, concepts)
    if state.heat.startswith("neuron:") and run.model:
        steerings.verify_neuron(*steerings.neuron(state.heat.removeprefix("neuron:")), run.model)
    if state.layer is not None and run.model and state.layer >= run.model["n_layers"]:
        raise UnknownName(
            f"There is no layer {state.layer} in this model: its layers go from 0 to {run.model['n_layers'] - 1}."
        )


def _heats(session: Session, steered: Run | None, original: Run | None) -> tuple[tuple[Any, Any], Any]:
    """The evidence heat maps of both whole answers, with their grid, once both are there."""
    if steered is None or original is None or not steered.picture_hash or not (steered.answer and original.answer):
        return (None, None), None
    rows = [
        queries.attribution(session, run.id, 0, len(run.answer["tokens"]), run.method)
        for run in (original, steered)
        if run.answer
    ]
    maps = [unpack(row.arrays).get("evidence_heat") if row is not None and row.arrays else None for row in rows]
    if any(heat is None for heat in maps) or rows[0] is None or not rows[0].summary:
        return (None, None), None
    return (maps[0], maps[1]), rows[0].summary["grid"]
