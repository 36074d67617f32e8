"""Long jobs about single latents, as `surveying` has them about neurons.

`latentsurvey`: what every latent of an SAE does over the questions that a survey of neurons takes. `latent` (quick):
what one latent writes and reads, and its activations on the pictures of the survey that it answers to most. `readers`
(quick): which latents of the attached SAEs read what one neuron writes.
"""

import dataclasses
from typing import Any

from app import surveying
from app.arrays import pack
from app.conceptjobs import Done, Room
from engine.contract import IsCancelled, OnProgress

READERS = 5
"""Latents of each SAE that are listed of a neuron."""


def survey(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """`params`: model_revision, sae (its id), name, scenes, runs (see surveying.survey)."""

    def ask(questions: surveying.Opened) -> Any:
        return room.engine.latent_survey(params["sae"], questions, on_progress, cancelled)

    of = {name: params[name] for name in ("model_revision", "sae")}
    return surveying.surveyed(room, params, ("latentsurvey", "latent"), of, ask), None


def look(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """`params`: see latentjobs.look_params."""
    sae, index = params["sae"], params["index"]
    lens = dataclasses.asdict(room.engine.latent_lens(sae, index))
    cases = surveying.strongest(room, "latentsurvey", params["survey"], index) if params["survey"] else []
    if not cases:
        return {**lens, "grids": []}, None
    (found,) = room.engine.seen_latents(sae, [index], surveying.Opened(cases, room.store), len(cases))
    seen = {one.case: one for one in found}
    grids = [seen[k].grid if k in seen else None for k in range(len(cases))]
    maps = {f"map{k}": one.heat for k, one in seen.items()}
    return {**lens, "grids": [grid and [grid.rows, grid.cols, list(grid.box)] for grid in grids]}, pack(maps)


def readers(room: Room, params: dict[str, Any], on_progress: OnProgress, cancelled: IsCancelled) -> Done:
    """`params`: model_revision, layer, index, saes (ids)."""
    made = []
    for sae in room.engine.saes():
        if sae.id in params["saes"]:
            found = room.engine.neuron_readers(sae.id, params["layer"], params["index"], READERS)
            place = {"id": sae.id, "name": sae.name, "layer": sae.layer, "site": sae.site}
            made.append({**place, "latents": [[index, cosine] for index, cosine in found]})
    return {"saes": made}, None


RUNNERS = {"latentsurvey": survey, "latent": look, "readers": readers}
