"""Concepts in latents: a latent's concepts, a concept's latents, and how their memberships are made."""

from sqlalchemy.orm import Session

from app import formats, latentbuilding, latentconcepts, longjobs
from app.contexts import ConceptLatentsView, LatentConceptsView, MakingView, MembershipRow, SaeConceptsView
from app.latentconcepts import Made
from app.tables import ConceptRow, JobRow, OwnConcept, now
from app.views import progress, sets
from app.views.concepts import href
from app.worker import Worker
from engine.contract import saes

SHOWN, LISTED = 8, 12
"""Concepts of a latent before the folded ones, and latents of a concept."""
STOPPED = "Cancelled. The evidence that it has is kept: started again, it goes on from there."
NOTHING = latentbuilding.Plan((), (), None)


def latentconcepts_view(session: Session, sae_id: str, index: int) -> LatentConceptsView:
    """The concepts of one latent."""
    known = latentconcepts.counts(session, [sae_id]).get(sae_id, 0)
    rows = tuple(_row(name, href(name), mu) for name, mu in latentconcepts.of_latent(session, sae_id, index))
    empty = ""
    if not known:
        empty = "No memberships of this SAE’s latents are made yet. Make them on the page of SAEs."
    elif not rows:
        empty = f"It belongs to none of the {_concepts(known)} that this SAE has memberships for."
    about = f"It belongs to {len(rows)} of {_concepts(known)}." if rows else ""
    return LatentConceptsView(rows[:SHOWN], rows[SHOWN:], about, empty)


def _row(name: str, link: str, mu: float) -> MembershipRow:
    return MembershipRow(name, link, min(1.0, max(0.0, mu)), formats.membership(mu))


def of_concept(
    session: Session, worker: Worker, row: ConceptRow, own: OwnConcept | None
) -> tuple[ConceptLatentsView, ...]:
    """The concept's latents of each attached SAE; `own`: its row where a person made it. What would have to be made is
    looked for only where they are not there."""
    attached = usable(worker)
    if not attached or worker.info is None or worker.info.revision != row.model_revision:
        return ()
    ids = [sae.id for sae in attached]
    made, jobs = latentconcepts.of_concept(session, ids, row.name), latentbuilding.newest(session, ids)
    probed = worker.info.builtin if own is None else not own.expression
    found = []
    for sae in attached:
        mine = made.get(sae.id)
        there = mine is not None and mine.fingerprint == row.fingerprint
        plan = NOTHING if there or not probed else latentbuilding.plan(session, worker.info, sae.id, concept=row.name)
        making = _making(session, sae, plan, jobs.get(sae.id), row.name)
        found.append(_of_concept(row, sae, mine, making, stale=not there))
    return tuple(found)


def _of_concept(
    row: ConceptRow, sae: saes.SaeInfo, made: Made | None, making: MakingView, *, stale: bool
) -> ConceptLatentsView:
    if made is None:
        empty = "Its memberships of this SAE’s latents are not made yet."
        if not making.button and not making.live:
            empty = "No latents can be found for it: that takes probes, and a derived concept has none."
        return ConceptLatentsView(sae.name, (), "", "", empty, making)
    rows = tuple(
        _row(f"latent {index}", f"/latents/{row.model_revision}/sae.{sae.name}.{index}", mu)
        for index, mu in made.latents[:LISTED]
    )
    half = sum(mu >= sets.ALPHA for _, mu in made.latents)
    about = (
        f"{formats.thousands(len(made.latents))} of {formats.thousands(sae.n_latents)} latents belong to it, {half} of "
        f"them by at least {sets.ALPHA:g}. Made of {made.recipe['probes']} probes in mode {made.recipe['mode']}."
    )
    words = "The concept has changed since these were made." if stale else ""
    return ConceptLatentsView(sae.name, rows, about, words, "" if rows else "No latent belongs to it.", making)


def of_saes(session: Session, worker: Worker) -> tuple[SaeConceptsView, ...]:
    """For how many concepts each attached SAE has memberships, and what is missing."""
    attached = usable(worker)
    if worker.info is None:
        return ()
    ids = [sae.id for sae in attached]
    counts, jobs, found = latentconcepts.counts(session, ids), latentbuilding.newest(session, ids), []
    for sae in attached:
        plan = latentbuilding.plan(session, worker.info, sae.id)
        about = f"Memberships in {_concepts(counts.get(sae.id, 0))}."
        if plan.targets:
            about += f" {_concepts(len(plan.targets))} with probes lack them, or changed since."
        found.append(SaeConceptsView(sae.name, about, _making(session, sae, plan, jobs.get(sae.id), "")))
    return tuple(found)


def usable(worker: Worker) -> list[saes.SaeInfo]:
    return [sae for sae in worker.saes if not sae.fits]


def _making(
    session: Session, sae: saes.SaeInfo, plan: latentbuilding.Plan, job: JobRow | None, concept: str
) -> MakingView:
    live = job is not None and job.live
    button, about, message, error = "", "", "", ""
    if plan.targets and not live:
        button = "Find its latents" if concept else "Make memberships"
        time = "" if plan.seconds is None else f", {formats.about(plan.seconds)}"
        about = f"{formats.thousands(plan.probes)} probes of {_concepts(len(plan.sources))}{time}."
    if job is not None and live:
        message = progress.message(job, longjobs.place(session, job), now(), "probes")
    elif job is not None and plan.targets:
        message = STOPPED if job.state == "cancelled" else ""
        error = job.error if job.state == "failed" else ""
    world = any(not source.own for source in plan.sources)
    stop = job is not None and live and not job.stop_requested
    return MakingView(
        live=live,
        share=job.done / job.total if job is not None and live and job.total else 0.0,
        message=message,
        error=error,
        action=f"/saes/{sae.id}/concepts",
        hidden=(("concept", concept),) if concept else (),
        button=button,
        about=about,
        cancel=f"/saes/{sae.id}/concepts/{job.id}/cancel" if job is not None and stop else "",
        probes=str(latentbuilding.PROBES) if world and not concept and button else "",
    )


def _concepts(n: int) -> str:
    return f"{formats.thousands(n)} concept{'' if n == 1 else 's'}"
