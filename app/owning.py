"""The use cases of own concepts: make one, fill it from files and runs, build it, set its map, delete it. Each is one
writing transaction, after which the worker is told."""

import secrets
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from app import formats, importing, longjobs, own, queries, runs
from app.importing import Files
from app.services import Services
from app.tables import JobRow, OwnConcept, ProbeRow
from engine.contract import ModelInfo, RequestError, UnknownName, concepts

MAX_REPORTED = 100
"""Lines of a file that are reported as bad; of those after them, the number."""
MAX_KIND = 40


class NoSuchConcept(Exception):
    """There is no own concept of this id."""


def loaded(services: Services) -> ModelInfo:
    """The loaded model. Raises NoModel, or RequestError while it loads."""
    runs.check_model(services)
    if services.worker.info is None:
        raise RequestError("The model is loading, and a concept belongs to one model. Try again in a moment.")
    return services.worker.info


def find(session: Session, concept_id: str) -> OwnConcept:
    row = session.get(OwnConcept, concept_id)
    if row is None:
        raise NoSuchConcept(f"There is no own concept “{concept_id[:40]}”. It may have been deleted.")
    return row


def create(services: Services, draft: own.Draft, files: Files | None = None) -> str:
    """A new concept with the probes of `files`, or with some of the built-in world, whose building is queued at once;
    its id. Nothing is made where anything is wrong with it as a whole."""
    info = loaded(services)
    name, kind = formats.one_line(draft.name), formats.one_line(draft.kind) or own.KIND
    forms = forms_of(draft.forms)
    check(name, kind, forms)
    n = _drawn(services, info, draft) if draft.source == "world" else 0
    if draft.source not in ("file", "world", "none"):
        raise UnknownName(f"Probes cannot come from “{draft.source[:40]}”. Choose file, world or none.")
    if draft.source == "file" and files is None:
        raise RequestError("Choose a file of probes, or start with an empty concept.")
    with services.database.read() as session:
        own.check_free(session, info.revision, name)
    read = _read(services, files, forms or (name,), own.MAX_PROBES) if draft.source == "file" and files else None
    with services.database.write() as session:
        row = _new(session, info, name, kind, forms or ((draft.world,) if n else ()))
        if read is not None and files is not None:
            _put(session, row.id, files.name, read)
        if n:
            _queue_build(session, services, row, {"world": draft.world, "n": n})
        concept_id = row.id
    services.worker.wake()
    return concept_id


def forms_of(text: str) -> tuple[str, ...]:
    """Surface forms as they were typed, one a line; the same one once."""
    return tuple(dict.fromkeys(form for line in text.splitlines() if (form := formats.one_line(line))))


def check(name: str, kind: str, forms: tuple[str, ...]) -> None:
    concepts.probes.check_plan(concepts.probes.ConceptPlan(name, kind, forms))
    own.check_name(name)
    if len(kind) > MAX_KIND:
        raise RequestError(f"The kind has {len(kind)} characters; at most {MAX_KIND} are taken. Shorten it.")


def _drawn(services: Services, info: ModelInfo, draft: own.Draft) -> int:
    with services.database.read() as session:
        if draft.world not in worlds(session, info):
            raise UnknownName(f"The built-in world has no concept “{draft.world[:80]}”. Choose one of the list.")
    if not draft.n.isdecimal() or len(draft.n) > 9 or not 1 <= int(draft.n) <= own.MAX_DRAWN:
        raise RequestError(f"The number of probes is “{draft.n[:20]}”; it must be between 1 and {own.MAX_DRAWN}.")
    return int(draft.n)


def worlds(session: Session, info: ModelInfo) -> dict[str, str]:
    """Name → kind of the concepts that the built-in world can draw probes of; none for another model."""
    if not info.builtin:
        return {}
    mine = {row.name for row in own.rows(session, info.revision)}
    facts = queries.concept_facts(session, info.revision).values()
    return {fact.name: fact.kind for fact in facts if fact.name not in mine}


def _new(session: Session, info: ModelInfo, name: str, kind: str, forms: tuple[str, ...]) -> OwnConcept:
    own.check_free(session, info.revision, name)
    row = OwnConcept(
        id=runs.new_id(), model_revision=info.revision, name=name, kind=kind, forms=list(forms), contrast=[],
        map=own.MAP, quantile=own.QUANTILE, mode=own.MODE,
    )  # fmt: skip
    session.add(row)
    session.flush()
    return row


def add_file(services: Services, concept_id: str, files: Files) -> None:
    """The lines of a file that are not there yet become probes; the report on this file is replaced."""
    loaded(services)
    with services.database.read() as session:
        row = find(session, concept_id)
        forms = tuple(row.forms) or (row.name,)
        room = own.MAX_PROBES - len([probe for probe in own.probes(session, concept_id) if probe.question])
    read = _read(services, files, forms, own.MAX_PROBES)
    with services.database.write() as session:
        find(session, concept_id)
        _put(session, concept_id, files.name, read, room)


def _read(services: Services, files: Files, forms: tuple[str, ...], most: int) -> importing.Read:
    return importing.read(files, forms, services.limits, lambda picture: runs.keep(services, picture), most)


def _put(session: Session, concept_id: str, name: str, read: importing.Read, room: int = own.MAX_PROBES) -> None:
    there = own.probes(session, concept_id)
    known = {(row.picture_hash, row.question, row.answer, row.says) for row in there}
    name = formats.one_line(name)[:150] or "a file"
    for row in there:
        if not row.question and row.source.rpartition(", line ")[0] == name:
            session.delete(row)
    bad = list(read.bad)
    for line in read.taken:
        key = (line.picture_hash, line.question, line.answer, line.says)
        if key in known:
            continue
        if room <= 0:
            bad.append((line.line, f"A concept has at most {own.MAX_PROBES} probes. Remove some, or make another."))
            continue
        known.add(key)
        room -= 1
        session.add(
            ProbeRow(
                concept_id=concept_id,
                source=f"{name}, line {line.line}",
                picture_hash=line.picture_hash,
                question=line.question,
                answer=line.answer,
                says=line.says,
                box=list(line.box) if line.box else None,
            )
        )
    bad.sort()
    if len(bad) > MAX_REPORTED:
        rest = len(bad) - MAX_REPORTED
        bad[MAX_REPORTED:] = [(bad[MAX_REPORTED][0], f"This line and {rest - 1} after it could not be taken either.")]
    for number, reason in bad:
        session.add(_report(concept_id, f"{name}, line {number}", reason))


def _report(concept_id: str, source: str, reason: str) -> ProbeRow:
    return ProbeRow(concept_id=concept_id, source=source, question="", answer="", says="", refused=reason)


def add_run(services: Services, run_id: str, says: str, concept_id: str, name: str) -> str:
    """A run's picture, question and answer become a probe of an own concept, or of a new one of this name, and what of
    it is not built is queued; the concept's id."""
    info = loaded(services)
    said = formats.one_line(says)
    with services.database.write() as session:
        run = queries.run(session, run_id)
        if run is None:
            raise runs.NoSuchRun(f"There is no run “{run_id[:40]}”.")
        _check_run(run, info)
        answer = run.answer["text"] if run.answer else ""
        if concepts.probes.find_form(answer, said) is None:
            raise RequestError(
                f"The answer “{answer[:80]}” does not contain “{said[:80]}” as whole words. Type the part of it that "
                "says the concept."
            )
        if concept_id:
            row = find(session, concept_id)
        else:
            new = formats.one_line(name)
            check(new, own.KIND, (said,))
            row = _new(session, info, new, own.KIND, (said,))
        there = own.probes(session, row.id)
        probe = (run.picture_hash, run.question, answer, said)
        if probe not in {(p.picture_hash, p.question, p.answer, p.says) for p in there}:
            if len([p for p in there if p.question]) >= own.MAX_PROBES:
                raise RequestError(
                    f"“{row.name}” has {own.MAX_PROBES} probes, the most a concept may have. Remove one first."
                )
            session.add(
                ProbeRow(
                    concept_id=row.id,
                    source=f"run {run.id}",
                    picture_hash=run.picture_hash,
                    question=run.question,
                    answer=answer,
                    says=said,
                )
            )
            session.flush()
        _queue_build(session, services, row)
        made = row.id
    services.worker.wake()
    return made


def _check_run(run: Any, info: ModelInfo) -> None:
    if run.steering:
        raise RequestError("This answer was steered. A probe is what the model says by itself: add the original run.")
    if run.answer is None or not run.answer["text"]:
        raise RequestError("This run has no answer that could say a concept. Wait for it, or choose another run.")
    if run.model_revision != info.revision:
        raise RequestError("Another model answered this run, and a concept belongs to one model. Ask again first.")


def reword(services: Services, concept_id: str, forms: str) -> None:
    """Other surface forms: lines of files that are added from now on are searched for them. What probes say that are
    there already stays as it is, and so do memberships."""
    with services.database.write() as session:
        row = find(session, concept_id)
        if row.expression:
            raise RequestError("This concept is derived from others: it has no surface forms.")
        spelled = forms_of(forms)
        check(row.name, row.kind, spelled)
        row.forms = list(spelled)


def build(services: Services, concept_id: str) -> None:
    """Queue the building of what has no evidence yet, or go on with what was stopped."""
    loaded(services)
    with services.database.write() as session:
        row = find(session, concept_id)
        if row.expression:
            raise RequestError("This concept is derived from others: it has no probes to build.")
        job = _queue_build(session, services, row)
    services.worker.stop(job, wanted=False)
    services.worker.wake()
    services.broker.publish(f"job:{job}")


def _queue_build(session: Session, services: Services, row: OwnConcept, drawn: dict[str, Any] | None = None) -> str:
    """The job's id. One that is live goes on, and so does one that was stopped, with what it was asked for."""
    last = next(iter(own.builds(session, row.id)), None)
    params = {"model_revision": row.model_revision, "concept": row.id, **(drawn or {})}
    if last is not None and drawn is None:
        params = last.params if last.state != "done" else params
    spelled = longjobs.identity("build", None, params)
    before = session.scalars(select(JobRow).where(JobRow.identity == spelled)).first()
    if before is not None and before.state == "done":
        before.state = "cancelled"  # it is done with the probes of its time

    def room() -> None:
        runs.check_room(session, services)

    job = longjobs.request(session, "build", None, params, room)
    session.flush()
    return job.id


def cancel(services: Services, concept_id: str) -> None:
    """Stop the building; what is done is kept."""
    with services.database.write() as session:
        find(session, concept_id)
        stopped = [longjobs.cancel(session, job.id) for job in own.builds(session, concept_id) if job.live]
        jobs = [(job.id, job.stop_requested) for job in stopped if job is not None]
    for job_id, running in jobs:
        if running:
            services.worker.stop(job_id)
        services.broker.publish(f"job:{job_id}")


def remove_probe(services: Services, concept_id: str, probe_id: int) -> None:
    """Its evidence goes with it."""
    with services.database.write() as session:
        row, probe = find(session, concept_id), session.get(ProbeRow, probe_id)
        if probe is None or probe.concept_id != row.id:
            return
        counted = probe.shares is not None
        session.delete(probe)
        session.flush()
        if counted:
            _queue_adoption(session, services, row.model_revision, row.id)
    services.worker.wake()


def checked_map(phi: str, quantile: str, mode: str) -> float:
    """The quantile as a number. Raises RequestError for a map, quantile or mode that cannot be used."""
    try:
        part = float(quantile.strip().replace(",", "."))
    except ValueError:
        raise RequestError(f"The quantile is “{quantile[:20]}”; it must be a number between 0 and 1.") from None
    concepts.evidence.check_map(phi, part, mode)
    return part


def choose(services: Services, concept_id: str, phi: str, quantile: str, mode: str, contrast: list[str]) -> None:
    """How evidence becomes memberships: they are made anew, without the model."""
    part = checked_map(phi, quantile, mode)
    with services.database.write() as session:
        row = find(session, concept_id)
        if row.expression:
            raise RequestError("This concept is derived from others: it has no evidence to make memberships of.")
        known = contrasts(session, row)
        if mode == "specific" and not contrast:
            raise RequestError("Mode specific takes evidence away that others have too: tick one, or choose raw.")
        for name in contrast:
            if name not in known:
                raise UnknownName(f"There is no own concept “{name[:80]}” with probes to contrast with.")
        row.map, row.quantile, row.mode, row.contrast = phi, part, mode, sorted(set(contrast))
        _queue_adoption(session, services, row.model_revision, row.id)
    services.worker.wake()


def contrasts(session: Session, row: OwnConcept) -> list[str]:
    """The own concepts that this one can be contrasted with."""
    others = own.rows(session, row.model_revision)
    return sorted(other.name for other in others if other.id != row.id and not other.expression)


def remove(services: Services, concept_id: str) -> None:
    """Delete a concept with its probes; it leaves the library."""
    with services.database.write() as session:
        row = find(session, concept_id)
        stopped = [longjobs.cancel(session, job.id) for job in own.builds(session, concept_id) if job.live]
        running = [job.id for job in stopped if job is not None and job.stop_requested]
        revision = row.model_revision
        for other in own.rows(session, revision):
            if row.name in other.contrast:
                other.contrast = [name for name in other.contrast if name != row.name]
        session.delete(row)
        session.flush()
        _queue_adoption(session, services, revision, concept_id)
    for job_id in running:
        services.worker.stop(job_id)
    services.worker.wake()


def _queue_adoption(session: Session, services: Services, model_revision: str, concept_id: str) -> None:
    """Each change is a job of its own, whatever it is: one that runs may have read the rows before this change."""
    mine = (JobRow.kind == "adopt") & (JobRow.params["concept"].as_string() == concept_id)
    session.execute(delete(JobRow).where(mine, JobRow.state == "done").execution_options(synchronize_session=False))
    params = {"model_revision": model_revision, "concept": concept_id, "change": secrets.token_hex(4)}
    longjobs.request(session, "adopt", None, params, lambda: None)
