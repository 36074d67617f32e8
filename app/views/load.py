"""Reads everything that one state of a run's page needs, in a fixed number of queries."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from app import formats, jobs, latentconcepts, latentqueries, longjobs, neuronqueries, queries, records, steerings
from app.arrays import Floats, unpack
from app.queries import ConceptFact
from app.state import PageState
from app.tables import AttributionRow, JobRow, NeuronRow, Picture, Preset, Run
from app.targets import TargetChoice, outside
from engine.contract import AnswerToken, Target, UnknownName


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """One state of a run's page. `choice` is the target, None without an answer. `beside` is the steered run that
    stands beside this one (or this run itself, on a steered run's own page); `beside_of` the run it was steered from;
    `whole_of`: the attributions of their whole answers, as (original, steered), None while they are not there.
    `memberships` by (layer, index); `labels` by name, `latent_labels` by (SAE's id, index), `latent_concepts` = of
    each ranked latent the strongest. `measured`: the target's measurements by kind; `places` in the queue of those that
    wait; `paces`: (steps, seconds) that such a one took last time, of those that are not done.
    `model`: what the run remembers of its model. `sweep`: the one that the state names, `latents`: the ranking that it
    names, or the newest, each with its place in the queue; `exact` = the ablation of its first latents,
    `swappable` = rankings like it of other runs."""

    run: Run
    picture: Picture | None
    parent: Run | None
    state: PageState
    choice: TargetChoice | None
    tokens: tuple[AnswerToken, ...]
    attribution: AttributionRow | None
    arrays: Mapping[str, Floats]
    neurons: list[NeuronRow]
    memberships: dict[tuple[int, int], list[tuple[str, float]]]
    concepts: dict[str, ConceptFact]
    beside: Run | None
    beside_of: Run | None
    whole_of: tuple[AttributionRow | None, AttributionRow | None]
    heats: tuple[Floats | None, Floats | None]
    grid: Any
    measured: Mapping[str, JobRow]
    places: Mapping[str, int]
    paces: Mapping[str, tuple[int, float]]
    position: int
    queue: int
    presets: tuple[Preset, ...] = ()
    sweep: JobRow | None = None
    sweep_place: int = 0
    latents: JobRow | None = None
    latents_place: int = 0
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    latent_labels: Mapping[tuple[str, int], str] = dataclasses.field(default_factory=dict)
    swappable: Sequence[latentqueries.Swappable] = ()
    latent_concepts: Mapping[int, tuple[str, float, int]] = dataclasses.field(default_factory=dict)
    exact: JobRow | None = None

    @property
    def model(self) -> Mapping[str, Any]:
        return self.run.model or {}

    @property
    def span(self) -> tuple[int, int] | None:
        """The answer's tokens that are explained; empty where a text is explained instead."""
        return self.choice.span if self.choice is not None else None

    @property
    def summary(self) -> Mapping[str, Any]:
        """What is stored of the attribution; empty while it is not there."""
        return (self.attribution.summary if self.attribution is not None else None) or {}

    @property
    def whole(self) -> bool:
        """The target is the whole answer's log-probability, and nothing is left out."""
        return self.choice is None or self.choice.key == f"0-{len(self.tokens)}"

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
    def explained_text(self) -> str:
        """The text that is explained, as it is written once that is known."""
        if self.choice is None:
            return ""
        if self.choice.target.text is not None:
            return str(self.summary.get("text") or self.choice.target.text).strip()
        start, end = self.choice.span
        return "".join(token.text for token in self.tokens[start:end]).strip()

    @property
    def against_text(self) -> str:
        """The text of a contrast's other side, '' without one."""
        if self.choice is None or self.choice.target.against is None:
            return ""
        return str(self.summary.get("against") or self.choice.target.against).strip()

    @property
    def target_text(self) -> str:
        """The target between a sentence's quotation marks, which a contrast closes and opens again."""
        text, against = formats.quoted(self.explained_text), formats.quoted(self.against_text)
        return f"{text}” rather than “{against}" if against else text

    @property
    def url(self) -> str:
        return self.state.url(self.run.id)


def target(run: Run, state: PageState) -> TargetChoice | None:
    """The target that this state explains; None while there is no answer. Raises BadTarget for one outside it."""
    count = len(run.answer["tokens"]) if run.answer else 0
    if not count:
        return None
    start, end = state.span or (0, count)
    if end > count:
        raise outside(start, end, count)
    if state.say:
        end = start
    wanted = Target(start, end, state.say or None, state.against or None, state.quantity, state.leave)
    return TargetChoice(wanted, state.exact)


def load(session: Session, run_id: str, state: PageState, *, ranked: bool = True) -> Loaded | None:
    """None if there is no such run. `ranked`: with the ranked neurons and what they belong to, which is most of the
    work. Raises RequestError for a state that names what does not exist."""
    found = queries.run_with_picture(session, run_id)
    if found is None:
        return None
    run, picture, parent = found
    state = state.own(run.method)
    choice = target(run, state)
    attribution = queries.attribution(session, run.id, choice.key, state.method) if choice else None
    ready = ranked and attribution is not None and attribution.state == "done"
    neurons = queries.neurons(session, attribution.id) if attribution is not None and ready else []
    concepts = queries.concept_facts(session, run.model_revision)
    _verify(state, run, concepts)
    beside, beside_of = (run, parent) if parent is not None else (None, None)
    if state.steer:
        child = queries.run(session, state.steer)
        if child is None or child.parent_id != run.id:
            raise UnknownName(f"There is no steered run “{state.steer[:40]}” of this run.")
        beside, beside_of = child, run
    sweep = _sweep(session, run, state.sweep)
    latents = latentqueries.of_run(session, run.id, state.latents)
    answered = bool(beside is not None and beside.answer)
    whole_of = (_whole(session, beside_of), _whole(session, beside)) if answered else (None, None)
    heats, grid = _heats(*whole_of)
    measured = _measured(session, run, choice, state.method)
    return Loaded(
        run=run,
        picture=picture,
        parent=parent,
        state=state,
        choice=choice,
        tokens=records.tokens(run.answer),
        attribution=attribution,
        arrays=unpack(attribution.arrays) if attribution is not None and attribution.arrays else {},
        neurons=neurons,
        memberships=queries.memberships(session, concepts, [(n.layer, n.index) for n in neurons]),
        concepts=concepts,
        beside=beside,
        beside_of=beside_of,
        whole_of=whole_of,
        heats=heats,
        grid=grid,
        measured=measured,
        places={kind: longjobs.place(session, row) for kind, row in measured.items() if row.state == "queued"},
        paces=_paces(session, run, choice, state.method, measured),
        position=queries.queue_position(session, run, jobs.SLOW_METHODS),
        queue=queries.queue_length(session),
        presets=tuple(queries.presets(session, run.model_revision)) if run.model_revision else (),
        sweep=sweep,
        sweep_place=longjobs.place(session, sweep) if sweep is not None else 0,
        latents=latents,
        latents_place=longjobs.place(session, latents) if latents is not None else 0,
        labels=neuronqueries.labels(session, run.model_revision, [f"text.{n.layer}.{n.index}" for n in neurons]),
        exact=latentqueries.exact(session, [latents]).get(latents.id) if latents is not None else None,
        latent_concepts=_latent_concepts(session, latents, attribution),
        latent_labels=latentqueries.labels(session, _latents_shown(state, latents, beside)),
        swappable=latentqueries.swappable(session, latents) if latents is not None and latents.state == "done" else (),
    )


def _latent_concepts(
    session: Session, ranking: JobRow | None, attribution: AttributionRow | None
) -> dict[int, tuple[str, float, int]]:
    """Of concepts in which a latent is as much, that which is most like what is explained."""
    if ranking is None or not ranking.result:
        return {}
    like = ((attribution.summary if attribution is not None else None) or {}).get("concepts", ())
    indices = [one["index"] for one in ranking.result["latents"]]
    return latentconcepts.strongest(session, ranking.params["sae"], indices, [name for name, *_ in like])


def _latents_shown(state: PageState, ranking: JobRow | None, beside: Run | None) -> set[int]:
    """Indices of the latents that the panel or the ranking may name."""
    listed = (ranking.result or {}).get("latents", ()) if ranking is not None else ()
    turned = ((beside.steering if beside is not None else None) or {}).get("latents", ())
    added = [name for name in state.add if steerings.kind_of(name) == steerings.LATENT_FIELD]
    return {
        *(one["index"] for one in listed), *(index for _, _, index, *_ in turned),
        *(steerings.latent(name)[1] for name in added),
    }  # fmt: skip


def _sweep(session: Session, run: Run, job_id: str) -> JobRow | None:
    row = session.get(JobRow, job_id) if job_id else None
    if job_id and (row is None or row.kind != longjobs.SWEEP or row.run_id != run.id):
        raise UnknownName(f"There is no sweep “{job_id[:40]}” of this run.")
    return row


def _measured(session: Session, run: Run, choice: TargetChoice | None, method: str) -> dict[str, JobRow]:
    if choice is None:
        return {}
    return {row.kind: row for row in longjobs.of_run(session, run.id, longjobs.KINDS, choice, method)}


def _paces(
    session: Session, run: Run, choice: TargetChoice | None, method: str, measured: Mapping[str, JobRow]
) -> dict[str, tuple[int, float]]:
    if choice is None:
        return {}
    wanted = [kind for kind in ("faithfulness", "noise") if kind not in measured or measured[kind].state != "done"]
    known = {
        kind: longjobs.pace(session, kind, run.model_revision, longjobs.params_of(kind, choice, method))
        for kind in wanted
    }
    return {kind: found for kind, found in known.items() if found is not None}


def _verify(state: PageState, run: Run, concepts: Mapping[str, ConceptFact]) -> None:
    """Concepts, neurons and layers in the URL must exist, once it is known which do. (`add` is answered inside the
    panel.)"""
    if not run.model_revision:
        return
    for name in (state.concept, state.heat.removeprefix("concept:") if state.heat.startswith("concept:") else ""):
        if name and name not in concepts:
            raise steerings.unknown_concept(name, concepts)
    kind, _, name = state.heat.partition(":")
    if kind in ("neuron", "activation") and run.model:
        steerings.verify_neuron(*steerings.neuron(name), run.model)
    for layer in (state.layer, int(name) if kind == "layer" else None):
        if layer is not None and run.model and layer >= run.model["n_layers"]:
            last = run.model["n_layers"] - 1
            raise UnknownName(f"There is no layer {layer} in this model: its layers go from 0 to {last}.")


def _whole(session: Session, run: Run | None) -> AttributionRow | None:
    """The attribution of a run's whole answer by its own method."""
    if run is None or not run.answer:
        return None
    return queries.attribution(session, run.id, f"0-{len(run.answer['tokens'])}", run.method)


def _heats(original: AttributionRow | None, steered: AttributionRow | None) -> tuple[tuple[Any, Any], Any]:
    """The evidence heat maps of both whole answers, with their grid, once both are there."""
    maps = [
        unpack(row.arrays).get("evidence_heat") if row is not None and row.arrays else None
        for row in (original, steered)
    ]
    if any(heat is None for heat in maps) or original is None or not original.summary:
        return (None, None), None
    return (maps[0], maps[1]), original.summary["grid"]
