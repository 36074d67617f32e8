"""The use case of swapping: steer a run by another run's most influential latents (METHODS.md §4)."""

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy.orm import Session

from app import latentqueries, queries, runs, steerings
from app.latentjobs import SIZES, VALUES
from app.services import Services
from app.tables import JobRow
from engine.contract import RequestError, Steering, UnknownName, saes


def swap(services: Services, run_id: str, given: Mapping[str, str], panel: str) -> tuple[str, str]:
    """(the original run, the steered one): in the steering `steer` of this run, or its own, the turns of latents are
    replaced by those that swap. `given`: `mine` and `other`, the rankings of this run and another one; `k` one of
    latentjobs.SIZES; `value` one of VALUES. Raises RequestError."""
    k, value = given.get("k", ""), given.get("value") or next(iter(VALUES))
    if k not in map(str, SIZES):
        raise RequestError(f"“{k[:40]}” latents cannot be swapped. Choose {', '.join(map(str, SIZES))}.")
    if value not in VALUES:
        raise UnknownName(f"A latent cannot be set to its “{value[:40]}”. Choose {' or '.join(VALUES)}.")
    if not given.get("other"):
        raise RequestError("Choose the run whose latents are swapped in.")
    with services.database.read() as session:
        run = queries.run(session, run_id)
        if run is None:
            raise runs.NoSuchRun(f"There is no run “{run_id[:40]}”.")
        mine = _done(latentqueries.of_run(session, run_id, given.get("mine", "")))
        other = _done(latentqueries.ranking(session, given["other"]))
        if mine["sae"]["id"] != other["sae"]["id"]:
            names = f"“{mine['sae']['name']}” and of “{other['sae']['name']}”"
            more = ", two of one name" if mine["sae"]["name"] == other["sae"]["name"] else ""
            raise RequestError(
                f"Latents of one SAE can be swapped; these are of {names}{more}. Rank both runs by one of them."
            )
        present = _present(session, run_id, given.get("steer", "")) or run.steering
    turns = saes.swapped(mine["sae"]["id"], _ranked(mine, value), _ranked(other, value), int(k))
    asked = steerings.to_json(Steering(latents=turns), {mine["sae"]["id"]: _name(services, mine["sae"])})
    if steerings.empty(asked):
        raise RequestError("Neither run has a latent of any influence, so there is nothing to swap.")
    return runs.steer(services, run_id, {**(present or asked), "latents": asked["latents"]}, panel)


def _done(row: JobRow | None) -> Mapping[str, Any]:
    if row is None or row.state != "done" or not row.result:
        raise RequestError("The latents of both runs are ranked first. Rank them on their pages.")
    return row.result


def _present(session: Session, run_id: str, steered_id: str) -> dict[str, Any] | None:
    found = queries.run(session, steered_id) if steered_id else None
    if steered_id and (found is None or found.parent_id != run_id):
        raise UnknownName(f"There is no steered run “{steered_id[:40]}” of this run.")
    return found.steering if found is not None else None


def _ranked(result: Mapping[str, Any], value: str) -> Iterator[tuple[int, float, float]]:
    for one in result["latents"]:
        yield one["index"], one["influence"], one[value]


def _name(services: Services, sae: Mapping[str, Any]) -> str:
    """What the SAE is called now."""
    now = {one.id: one.name for one in services.worker.saes}
    return str(now.get(sae["id"], sae["name"]))
