"""The memberships of latents in concepts as rows: what ships with an SAE is copied, what a job makes is stored, and the
SELECTs of the pages that show them.

A row is there where a membership is at least library.SMALLEST. `fingerprint` tells of which state of the concept they
were made: where it is not the concept's own any more, they are out of date.
"""

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from app.library import SMALLEST
from app.tables import Base, ConceptRow, LatentConcept, LatentMembership
from engine.contract import Engine, Floats, Library, ModelRefused, saes

log = logging.getLogger("sfumato.latents")


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """A concept's memberships of an SAE's latents: of which state of the concept, how, and the `latents` (index, μ)
    by falling μ, ties by index."""

    fingerprint: str
    recipe: Mapping[str, Any]
    latents: tuple[tuple[int, float], ...]


def copy_shipped(session: Session, model_revision: str, engine: Engine, attached: Sequence[saes.SaeInfo]) -> None:
    """Copy what ships with these SAEs. What was made for other weights is passed over, and told in the log."""
    for sae in attached:
        try:
            known = Library("", ()) if sae.fits else engine.latent_library(sae.id)
        except ModelRefused as refused:
            log.warning("the concepts of the latents of %s: %s", sae.name, refused)
            continue
        copy(session, model_revision, sae.id, known)


def copy(session: Session, model_revision: str, sae_id: str, known: Library) -> bool:
    """Store the memberships (1, n_latents) of `known` for the concepts of this model's library. False where they are
    there already."""
    prints = fingerprints(session, model_revision)
    here = [concept for concept in known.concepts if concept.name in prints]
    mine = select(LatentConcept).where(LatentConcept.sae_id == sae_id)
    there = {row.concept: (row.fingerprint, row.recipe.get("library")) for row in session.scalars(mine)}
    changed = [one for one in here if there.get(one.name) != (prints[one.name], known.revision)]
    for concept in changed:
        recipe = {**known.recipe, "probes": concept.probes, "library": known.revision}
        store(session, sae_id, concept.name, prints[concept.name], recipe, concept.memberships)
    return bool(changed)


def fingerprints(session: Session, model_revision: str) -> dict[str, str]:
    """Of the concepts in this model's library, by name."""
    chosen = select(ConceptRow.name, ConceptRow.fingerprint).where(ConceptRow.model_revision == model_revision)
    return {row.name: row.fingerprint for row in session.execute(chosen)}


def store(
    session: Session, sae_id: str, concept: str, fingerprint: str, recipe: Mapping[str, Any], memberships: Floats
) -> None:
    """In the place of what was there. `memberships` (n_latents,) or (1, n_latents)."""
    row = session.get(LatentConcept, (sae_id, concept))
    if row is None:
        row = LatentConcept(sae_id=sae_id, concept=concept)
        session.add(row)
    row.fingerprint, row.recipe = fingerprint, dict(recipe)
    mine = (LatentMembership.sae_id == sae_id) & (LatentMembership.concept == concept)
    session.execute(delete(LatentMembership).where(mine))
    flat = memberships.ravel()
    values = [
        {"sae_id": sae_id, "concept": concept, "index": int(index), "mu": float(flat[index])}
        for index in np.flatnonzero(flat >= SMALLEST)
    ]
    if values:
        session.execute(insert(Base.metadata.tables["latent_memberships"]), values)


def made(session: Session, sae_id: str) -> dict[str, str]:
    """Concept → fingerprint of all that this SAE has memberships for."""
    chosen = select(LatentConcept.concept, LatentConcept.fingerprint).where(LatentConcept.sae_id == sae_id)
    return {row.concept: row.fingerprint for row in session.execute(chosen)}


def counts(session: Session, sae_ids: Collection[str]) -> dict[str, int]:
    """How many concepts each of these SAEs has memberships for."""
    chosen = select(LatentConcept.sae_id, func.count()).where(LatentConcept.sae_id.in_(sae_ids))
    return {row[0]: row[1] for row in session.execute(chosen.group_by(LatentConcept.sae_id))}


def of_latent(session: Session, sae_id: str, index: int) -> list[tuple[str, float]]:
    """(concept, μ) of one latent by falling μ, ties by name."""
    mine = (LatentMembership.sae_id == sae_id) & (LatentMembership.index == index)
    chosen = select(LatentMembership.concept, LatentMembership.mu).where(mine)
    ordered = chosen.order_by(LatentMembership.mu.desc(), LatentMembership.concept)
    return [(row.concept, row.mu) for row in session.execute(ordered)]


def strongest(
    session: Session, sae_id: str, indices: Collection[int], like: Sequence[str] = ()
) -> dict[int, tuple[str, float, int]]:
    """Of each of these latents the concept in which it is most, its μ, and in how many others it is as much: of those
    (memberships reach 1 in many) the first in `like` is taken, else by name. Latents in none are left out."""
    mine = (LatentMembership.sae_id == sae_id) & LatentMembership.index.in_(indices)
    rows = select(LatentMembership.index, LatentMembership.concept, LatentMembership.mu).where(mine)
    places = {concept: place for place, concept in enumerate(like)}
    tied: dict[int, list[tuple[int, str, float]]] = {}
    for index, concept, mu in session.execute(rows.order_by(LatentMembership.mu.desc(), LatentMembership.concept)):
        best = tied.setdefault(index, [])
        if not best or best[0][2] == mu:
            best.append((places.get(concept, len(places)), concept, mu))
    first = {index: min(best) for index, best in tied.items()}
    return {index: (concept, mu, len(tied[index]) - 1) for index, (_, concept, mu) in first.items()}


def of_concept(session: Session, sae_ids: Collection[str], concept: str) -> dict[str, Made]:
    """By SAE; those that have no memberships for it are left out."""
    rows = select(LatentConcept).where(LatentConcept.sae_id.in_(sae_ids), LatentConcept.concept == concept)
    members = select(LatentMembership.sae_id, LatentMembership.index, LatentMembership.mu).where(
        LatentMembership.sae_id.in_(sae_ids), LatentMembership.concept == concept
    )
    latents: dict[str, list[tuple[int, float]]] = {}
    for sae_id, index, mu in session.execute(members.order_by(LatentMembership.mu.desc(), LatentMembership.index)):
        latents.setdefault(sae_id, []).append((index, mu))
    return {
        row.sae_id: Made(row.fingerprint, row.recipe, tuple(latents.get(row.sae_id, ())))
        for row in session.scalars(rows)
    }
