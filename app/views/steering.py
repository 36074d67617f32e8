"""The steering panel, and the default answer beside the steered one."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from app import exports, formats, records, steerings
from app.contexts import (
    AlternativeView,
    Choice,
    ConceptTurnRow,
    PairToken,
    PresetLine,
    PresetsView,
    SteeredView,
    SteerView,
)
from app.state import address
from app.views import moved, turned
from app.views.answer import alternatives
from app.views.heat import EVIDENCE, cells, picture_src
from app.views.load import Loaded
from engine.contract import MAX_SET, POSITIONS, AnswerToken, RequestError

LEADING = 6
POSITION_LABELS = {"all": "all positions", "image": "image", "question": "question", "answer": "answer"}
LISTED = 12
"""Presets that the panel's menu lists."""


def panel(loaded: Loaded, panel_id: str, attached: steerings.Attached) -> SteerView:
    """The form. It shows the steering of the run that stands beside this one, or its own on a steered run's page; first
    concepts that are most similar to the answer, those whose validation failed after the others. `attached`: the
    loaded model's SAEs."""
    state, run = loaded.state, loaded.run
    present = loaded.beside.steering if loaded.beside is not None and loaded.beside.steering else None
    lams = dict(present["concepts"]) if present else {}
    edits = {(layer, index): (how, value) for layer, index, how, value in present["neurons"]} if present else {}
    latents = turned.latents_of(present)
    positions = present["positions"] if present else "all"
    added, neurons, saes, errors = _added(loaded, attached)
    saes = {**{key: sae for key, (sae, _) in latents.items()}, **saes}
    summary = loaded.attribution.summary if loaded.attribution is not None else None
    listed = summary["concepts"] if summary else []
    scores = {name: score for name, score, _ in listed}
    alike = {name: similarity for name, _, similarity in listed}
    nearest = [name for name in scores if name in loaded.concepts][: 2 * LEADING]
    leading = sorted(nearest, key=lambda name: loaded.concepts[name].weak)[:LEADING]
    names = list(dict.fromkeys([*leading, *(name for name in lams if name in loaded.concepts), *added]))
    largest = max((alike.get(name, 0.0) for name in names), default=0.0)
    return SteerView(
        waiting=loaded.waiting and summary is None,
        action=f"/runs/{run.id}/steer",
        concepts=tuple(
            _concept(loaded, name, scores.get(name), alike.get(name), lams.get(name), largest) for name in names
        ),
        neurons=tuple(turned.neuron(loaded, key, edits.get(key)) for key in dict.fromkeys([*edits, *neurons])),
        positions=tuple(Choice(POSITION_LABELS[name], "", name == positions, name) for name in POSITIONS),
        add_action=f"/runs/{run.id}",
        add_options=(*sorted(set(loaded.concepts) - set(names)), *turned.ranked(loaded, attached)),
        add_error=" ".join(errors),
        hidden=(*state.pairs(), ("panel", panel_id)),
        empty="" if names or edits or neurons or saes else _empty(loaded),
        reset=(state.url(run.parent_id or run.id, steer="")) if present else "",
        **_layers(loaded, present.get("layers") if present else None),
        presets=menu(loaded, panel_id),
        sweep=f"/runs/{run.id}/sweep",
        latents=tuple(
            turned.latent(loaded, key, sae, latents[key][1] if key in latents else None, attached)
            for key, sae in saes.items()
        ),
    )


def _layers(loaded: Loaded, present: Sequence[int] | None) -> dict[str, tuple[Choice, ...]]:
    """The options of the two selects; none for a model of one layer, or an unknown one."""
    count = int(loaded.model.get("n_layers", 0))
    if count < 2:
        return {}
    first, last = present or (None, count - 1)
    return {
        "first": (
            Choice("all", "", first is None, ""),
            *(Choice(str(layer), "", layer == first, str(layer)) for layer in range(count)),
        ),
        "last": tuple(Choice(str(layer), "", layer == last, str(layer)) for layer in range(count)),
    }


def menu(loaded: Loaded, panel_id: str) -> PresetsView:
    """The presets that this run's model has."""
    shown = loaded.presets[:LISTED]
    return PresetsView(
        lines=tuple(
            PresetLine(row.name, steerings.in_words(row.steering), f"/presets/{row.id}/apply") for row in shown
        ),
        hidden=(("run", loaded.run.id), ("panel", panel_id), *loaded.state.pairs()),
        save=f"/presets?run={loaded.run.id}",
        href=f"/presets?run={loaded.run.id}",
        more=len(loaded.presets) - len(shown),
    )


def _empty(loaded: Loaded) -> str:
    if loaded.concepts:
        return "Add a concept, a neuron or a latent by its name to turn it."
    return "No concepts are known for this model yet; single neurons and latents can be turned: add one by its name."


def _added(
    loaded: Loaded, attached: steerings.Attached
) -> tuple[list[str], list[tuple[int, int]], dict[turned.Latent, str], list[str]]:
    """What was added by hand: concepts, neurons, latents with their SAE's name, and sentences about names that do not
    exist."""
    concepts: list[str] = []
    neurons: list[tuple[int, int]] = []
    latents: dict[turned.Latent, str] = {}
    errors = []
    for name in loaded.state.add:
        try:
            if name in loaded.concepts:
                concepts.append(name)
            elif name.startswith("text."):
                place = steerings.neuron(name)
                if loaded.run.model:
                    steerings.verify_neuron(*place, loaded.run.model)
                neurons.append(place)
            elif name.startswith("sae."):
                sae, index = steerings.latent(name)
                key = (steerings.ids_of(attached).get(sae, sae), index)
                steerings.verify_latent(key[0], sae, index, attached)
                latents[key] = sae
            elif loaded.run.model_revision:
                raise steerings.unknown_concept(name, loaded.concepts)
        except RequestError as error:
            errors.append(str(error))
    return concepts, neurons, latents, errors


def _concept(
    loaded: Loaded, name: str, score: float | None, alike: float | None, lam: float | None, largest: float
) -> ConceptTurnRow:
    fact = loaded.concepts[name]
    return ConceptTurnRow(
        concept=name,
        kind=fact.kind,
        field=f"{steerings.CONCEPT_FIELD}{name}",
        lam=f"{lam or 0:g}",
        on=bool(lam),
        members=min(fact.members, MAX_SET),
        weight=formats.signed(score) if score is not None else "",
        polarity=formats.polarity(score or 0.0),
        bar=(alike or 0.0) / largest if largest else 0.0,
        heat=loaded.state.url(loaded.run.id, heat=f"concept:{name}"),
        href=f"/concepts/{exports.quoted(name)}",
        factor=f"×{1 + lam:.1f}".replace("-", "−") if lam else "",
        similarity=formats.membership(alike) if alike is not None else "",
        weak=fact.weak,
        step=turned.step(lam or 0.0),
    )


def beside(loaded: Loaded, partial: tuple[AnswerToken, ...] | None, panel_id: str) -> SteeredView:
    """Default and steered side by side; an empty state when there is nothing beside this run. Its stream carries the
    panel, so that a panel's own listening does not keep alive what the panel has left."""
    steered, original = loaded.beside, loaded.beside_of
    if steered is None or original is None:
        return _nothing()
    own_page = steered.id == loaded.run.id
    pair = steered.pair or {}
    was, now = records.tokens(original.answer), records.tokens(steered.answer)
    streamed = partial or ()
    apart = _first_difference(was, now)
    size = (loaded.picture.width, loaded.picture.height) if loaded.picture else (0, 0)
    largest = max((float(np.abs(heat).max()) for heat in loaded.heats if heat is not None), default=0.0)
    stream = address(f"/runs/{loaded.run.id}/events", (*loaded.state.pairs(), ("only", "steered"), ("panel", panel_id)))
    control = steered.control or {}
    stopped = steered.state == "cancelled"
    return SteeredView(
        present=True,
        live=steered.live,
        events="" if own_page else stream,
        href="" if own_page else f"/runs/{steered.id}",
        summary=steerings.in_words(steered.steering, pair.get("n_neurons")),
        original_text=(original.answer or {}).get("text", ""),
        steered_text=steered.answer["text"] if steered.answer else "".join(t.text for t in streamed).strip(),
        same_answer=bool(now) and [t.id for t in was] == [t.id for t in now],
        original_tokens=_pairs(was, moved.differing(was, now), pair.get("original_under_steered", ()), steered=False),
        steered_tokens=_pairs(now, moved.differing(now, was), pair.get("steered_under_original", ()), steered=True),
        alternatives_original=_at(was, apart) if now else (),
        alternatives_steered=_at(now, apart),
        control=_control(control) or ("not run: this steering was left for another one" if stopped else ""),
        control_same=bool(control.get("same", True)),
        duration=formats.milliseconds(steered.timing["steer"]) if steered.timing else "",
        error=steered.error or ("This steering was cancelled." if stopped and not steered.answer else ""),
        remedy=steered.remedy,
        undo=loaded.state.url(original.id, steer=""),
        picture=picture_src(loaded.run.picture_hash),
        width=size[0],
        height=size[1],
        heat_original=cells(loaded.heats[0], loaded.grid, size, largest),
        heat_steered=cells(loaded.heats[1], loaded.grid, size, largest),
        heat_of=EVIDENCE,
        alternatives_of=(_text_at(was, apart), _text_at(now, apart)),
        original_parts=moved.parts((original.answer or {}).get("text", ""), was, now),
        steered_parts=moved.parts((steered.answer or {}).get("text", ""), now, was),
        **moved.concepts(loaded, steered),
    )


def _nothing() -> SteeredView:
    return SteeredView(
        False, False, "", "", "", "", "", True, (), (), (), (), "", True, "", "", "", "", "", 0, 0, (), ()
    )


def _control(control: dict[str, object]) -> str:
    if not control:
        return ""
    return "answer unchanged" if control["same"] else f"“{control['text']}”"


def _first_difference(was: Sequence[AnswerToken], now: Sequence[AnswerToken]) -> int:
    """The first place where the answers part; 0 when they do not."""
    for place, (one, other) in enumerate(zip(was, now, strict=False)):
        if one.id != other.id:
            return place
    return min(len(was), len(now)) if len(was) != len(now) and was and now else 0


def _at(tokens: Sequence[AnswerToken], place: int) -> tuple[AlternativeView, ...]:
    """What else could have stood at a place: without the token that does."""
    if not tokens:
        return ()
    token = tokens[min(place, len(tokens) - 1)]
    others = tuple(other for other in token.alternatives if other.id != token.id)
    return alternatives(dataclasses.replace(token, alternatives=others))


def _text_at(tokens: Sequence[AnswerToken], place: int) -> str:
    return tokens[min(place, len(tokens) - 1)].text if tokens else ""


def _pairs(
    tokens: Sequence[AnswerToken], differs: Sequence[bool], elsewhere: Sequence[float], *, steered: bool
) -> tuple[PairToken, ...]:
    """Each token with its probability under both models; `elsewhere` = log-probabilities under the other one."""
    made = []
    for place, token in enumerate(tokens):
        here = math.exp(min(0.0, token.logprob))
        there = math.exp(min(0.0, elsewhere[place])) if place < len(elsewhere) else 0.0
        original, turned = (there, here) if steered else (here, there)
        known = place < len(elsewhere)
        made.append(
            PairToken(
                token.text, token.id,
                original, formats.percent(original) if known or not steered else "…",
                turned, formats.percent(turned) if known or steered else "…",
                differs[place],
            )
        )  # fmt: skip
    return tuple(made)
