"""What people do with whole SAEs: attach one, let it go, have one trained, and look at what there is."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import errors, longjobs, runs, saejobs, saeplaces, saeplans, standing
from app.saeplans import Draft, Plan
from app.services import Services
from app.tables import AttachedSae, EvaluationPart, JobRow
from engine.contract import saes


def attach(services: Services, typed: str, layer: str, site: str) -> str:
    """Queue an attempt; the job's id. Raises RequestError for what pages may not open."""
    place, info = saeplans.place_of(layer, site), standing.loaded(services, "an SAE")
    params = saejobs.attach_params(info.revision, saeplaces.sae(services.settings, typed), *place, secrets.token_hex(6))
    return _request(services, saejobs.ATTACH, params)


def detach(services: Services, sae: str) -> str:
    """Let go of one that people attached, by its id; the job's id. Raises Missing."""
    info = standing.loaded(services, "an SAE")
    with services.database.read() as session:
        if session.get(AttachedSae, (sae, info.revision)) is None:
            raise errors.Missing("No such SAE was attached here; one that ships with the model stays.")
    params = {"model_revision": info.revision, "sae": sae, "asked": secrets.token_hex(6)}
    return _request(services, saejobs.DETACH, params)


def try_again(services: Services, job_id: str) -> str:
    """Attach once more what could not be attached; the new job's id. Its place is judged anew."""
    with services.database.read() as session:
        job = session.get(JobRow, job_id)
        if job is None or job.kind != saejobs.ATTACH:
            raise errors.Missing("That attempt is not known any more. Attach it by its folder.")
        given = dict(job.params)
    layer = "" if given["layer"] is None else str(given["layer"])
    return attach(services, given["path"], layer, given["site"] or "")


def forget(services: Services, job_id: str) -> None:
    """Drop an attempt that failed, and with one of a start, what was to be attached."""
    with services.database.write() as session:
        job = session.get(JobRow, job_id)
        if job is None or job.kind != saejobs.ATTACH or job.live:
            raise errors.Missing("That attempt is not known any more.")
        start, _, sae = str(job.params["asked"]).partition(" ")
        row = session.get(AttachedSae, (sae, job.params["model_revision"])) if start == saejobs.START else None
        for gone in filter(None, (row, job)):
            session.delete(gone)


def _request(services: Services, kind: str, params: dict[str, Any]) -> str:
    with services.database.write() as session:
        job_id = longjobs.request(session, kind, None, params, lambda: runs.check_room(session, services)).id
    return standing.told(services, job_id)


def wait(services: Services, job_id: str, patience: float) -> None:
    """Until the job has ended, but no longer than `patience` seconds."""

    def ended() -> bool:
        with services.database.read() as session:
            row = session.get(JobRow, job_id)
            return row is None or not row.live

    services.broker.wait(f"job:{job_id}", ended, patience)


def plan(services: Services, draft: Draft) -> Plan:
    """What a draft would do. Raises RequestError."""
    info = standing.loaded(services, "a training")
    with services.database.read() as session:
        return saeplans.plan(session, services.settings, info, services.worker.saes, draft)


def start(services: Services, draft: Draft) -> str:
    """Queue a training, or go on with the same one; its job's id. Raises RequestError."""
    planned = plan(services, draft)
    info = standing.loaded(services, "a training")
    return _request(services, saejobs.TRAIN, saejobs.train_params(info.revision, planned.recipe, planned.folder))


def training(session: Session, job_id: str) -> JobRow:
    """Raises Missing."""
    job = session.get(JobRow, job_id)
    if job is None or job.kind != saejobs.TRAIN:
        raise errors.Missing(f"There is no training “{job_id[:40]}”. All are listed under Sparse autoencoders.")
    return job


def cancel(services: Services, job_id: str) -> None:
    with services.database.read() as session:
        training(session, job_id)
    standing.cancel(services, job_id)


def again(services: Services, job_id: str, *, anew: bool = False) -> str:
    """Go on with a training that was stopped or failed, or begin it `anew`; its id."""
    with services.database.write() as session:
        job = training(session, job_id)
        if anew and not job.live and job.state != "done":
            saejobs.forget_checkpoint(services.store, job.params)
            for part in session.scalars(select(EvaluationPart).where(EvaluationPart.evaluation == job.identity)):
                session.delete(part)
    return standing.again(services, job_id)


def resumable(services: Services, params: Mapping[str, Any]) -> bool:
    """Whether a training has a checkpoint from which it goes on."""
    return Path(saejobs.folder_of(services.store, dict(params)), saes.CHECKPOINT).is_file()
