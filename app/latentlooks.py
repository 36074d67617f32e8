"""What a person does with single latents: looks at one, writes a label, has all of an SAE surveyed, and has the first
of a ranking ablated exactly."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from app import latentjobs, latentqueries, latents, longjobs, neuronqueries, neurons, notes, queries, runs
from app.latentqueries import GatheredLatent
from app.services import Services
from app.tables import LatentNote, now
from engine.contract import RequestError, UnknownName, saes


def look(services: Services, revision: str, sae: Mapping[str, Any], index: int, patience: float) -> str:
    """What is quick to know of a latent, of whose survey there is the newest: see neurons.look."""
    return neurons.look(services, "latent", _params(services, revision, sae, index), patience)


def again(services: Services, revision: str, sae: Mapping[str, Any], index: int) -> None:
    """Look up again what failed. Raises RequestError for a latent of another model."""
    _require(services, sae)
    neurons.request(services, "latent", _params(services, revision, sae, index))


def _params(services: Services, revision: str, sae: Mapping[str, Any], index: int) -> dict[str, Any]:
    with services.database.read() as session:
        done = neuronqueries.newest(session, "latentsurvey", revision, "done", sae=sae["id"])
    return latentjobs.look_params(revision, sae, index, done.result["file"] if done and done.result else "")


def gather(
    session: Session, services: Services, revision: str, sae: Mapping[str, Any], index: int, waiting: str
) -> GatheredLatent:
    """Everything that is stored of a latent of `sae` (its id and name, at least)."""

    def looked(survey: dict[str, Any] | None) -> dict[str, Any]:
        return latentjobs.look_params(revision, sae, index, survey["file"] if survey else "")

    of = {"sae": sae["id"], "name": sae["name"]}
    kinds = ("latentsurvey", "latent")
    seen = neurons.gather_seen(session, services, kinds, revision, lambda _: index, looked, **of)
    ranked = latentqueries.listed_in(session, sae["id"], index)
    blobs = latentqueries.arrays(session, [one.job.id for one in ranked])
    exact = latentqueries.exact(session, [one.job for one in ranked])
    of_sae = sae["id"]
    near = {other for other, _ in seen.looked["alike"]} if seen.looked else set()
    near |= {other for one in ranked for other in one.beside if other is not None}
    return GatheredLatent(
        note=latentqueries.note(session, sae["id"], index),
        seen=seen,
        ranked=[(one, blobs.get(one.job.id), exact.get(one.job.id)) for one in ranked],
        labels={other: label for (its, other), label in latentqueries.labels(session, near).items() if its == of_sae},
        waiting=waiting,
    )


def _require(services: Services, sae: Mapping[str, Any]) -> None:
    if sae["id"] not in [one.id for one in latents.usable(services)]:
        raise RequestError(f"The SAE “{sae['name'][:40]}” is not attached to the loaded model. Attach it first.")


def survey(services: Services, revision: str, sae: Mapping[str, Any]) -> None:
    """Have all latents of an attached SAE surveyed. Raises RequestError for one of another model."""
    _require(services, sae)
    neurons.survey(services, revision, "latentsurvey", sae=sae["id"], name=sae["name"])


def write(services: Services, sae: Mapping[str, Any], index: int, label: str, text: str) -> None:
    """Keep a label and a note; both empty: forget them. Raises RequestError for longer ones."""
    label, text = notes.cleaned(label, text)
    with services.database.write() as session:
        row = latentqueries.note(session, sae["id"], index) or LatentNote(sae_id=sae["id"], index=index)
        session.add(row)
        row.label, row.note, row.changed = label, text, now()
        if not label and not text:
            session.flush()
            session.delete(row)


def ablate(services: Services, run_id: str, job_id: str) -> str:
    """Queue the exact ablation of the first latents of a run's ranking (the newest for ''), unless it is there already;
    the ranking's id. Raises NoSuchRun, UnknownName (of a ranking), RequestError."""

    def room() -> None:
        runs.check_model(services)
        runs.check_room(session, services)

    with services.database.write() as session:
        if queries.run(session, run_id) is None:
            raise runs.NoSuchRun(f"There is no run “{run_id[:40]}”.")
        ranking = latentqueries.of_run(session, run_id, job_id)
        if ranking is None or ranking.state != "done" or not ranking.result:
            raise RequestError("There is no finished ranking of this run’s latents. Rank them first.")
        _require(services, {"id": ranking.params["sae"], "name": ranking.params["name"]})
        params, ranked = latentqueries.exact_params(ranking), ranking.id
        if not params["latents"]:
            raise RequestError("No latent is listed in this ranking, so there is none to ablate.")
        exact = longjobs.request(session, longjobs.EXACT, run_id, params, room).id
    services.worker.stop(exact, wanted=False)
    services.worker.wake()
    services.broker.publish(run_id)
    return ranked


def found(services: Services, session: Session, query: str) -> tuple[str, list[tuple[str, LatentNote]]]:
    """(the latent of an attached SAE that the query spells, or ''; latents whose label or note holds it, by name)."""
    attached = {sae.id: sae for sae in latents.usable(services)}
    if not query or not attached:
        return "", []
    named = ""
    try:
        wanted, index = saes.parse_latent(query)
        if any(sae.name == wanted and index < sae.n_latents for sae in attached.values()):
            named = f"sae.{wanted}.{index}"
    except UnknownName:
        pass
    noted = latentqueries.noted(session, list(attached), query)
    return named, [(f"sae.{attached[row.sae_id].name}.{row.index}", row) for row in noted]
