"""The use cases of latents: have a run's ranked, give the ranking away, and find one by its name."""

from typing import Any

from app import latentjobs, latentqueries, longjobs, queries, records, runs
from app.arrays import unpack
from app.services import Services
from app.targets import TargetChoice
from engine.contract import MODALITIES, RequestError, Target, UnknownName, saes


def usable(services: Services) -> tuple[saes.SaeInfo, ...]:
    """The attached SAEs that can stand on the loaded model."""
    return tuple(sae for sae in services.worker.saes if not sae.fits)


def chosen(services: Services, wanted: str) -> saes.SaeInfo:
    """The SAE of this name or id, the first one for ''. Raises UnknownName."""
    mine = usable(services)
    found = next((sae for sae in mine if wanted in ("", sae.id, sae.name)), None)
    if found is None:
        names = ", ".join(sae.name for sae in mine)
        raise UnknownName(
            f"There is no SAE “{wanted[:40]}”. Choose one of {names}." if names else
            "No SAE is attached to the loaded model, so there are no latents to rank."
        )  # fmt: skip
    return found


def rank(services: Services, run_id: str, wanted: str, settings: saes.Settings) -> str:
    """Queue the ranking of a run's latents unless it is there already; the job's id."""
    sae = chosen(services, wanted)

    def room() -> None:
        runs.check_model(services)
        runs.check_room(session, services)

    with services.database.write() as session:
        run = queries.run(session, run_id)
        if run is None:
            raise runs.NoSuchRun(f"There is no run “{run_id[:40]}”.")
        if run.answer is None or not run.answer["tokens"]:
            raise RequestError("This run has no answer whose latents could be ranked. Wait for the answer.")
        choice = TargetChoice(Target(0, len(records.ids(run.answer))))
        params = {
            **longjobs.params_of(longjobs.LATENTS, choice, "gradient"), **latentjobs.params_of(sae, settings)
        }  # fmt: skip
        job_id = longjobs.request(session, longjobs.LATENTS, run_id, params, room).id
    services.worker.stop(job_id, wanted=False)
    services.worker.wake()
    services.broker.publish(run_id)
    return job_id


def exported(services: Services, run_id: str, job_id: str) -> tuple[dict[str, Any], bool]:
    """(a ranking as JSON, the newest one for ''; whether it has ended). Raises NoSuchRun, UnknownName."""
    with services.database.read() as session:
        run = queries.run(session, run_id)
        if run is None:
            raise runs.NoSuchRun(f"There is no run “{run_id[:40]}”.")
        row = latentqueries.of_run(session, run_id, job_id)
        if row is None:
            raise UnknownName("No latents of this run were ranked yet. Rank them on its page.")
        data: dict[str, Any] = {}
        if row.state == "done" and row.result is not None:
            result = row.result
            name, fit = result["sae"]["name"], result["fit"]
            lost = latentqueries.lost(latentqueries.exact(session, [row]).get(row.id))
            points = unpack(row.arrays)["points"].tolist() if row.arrays else [[], [], []]
            data = {
                "sae": result["sae"],
                **{term: fit[term] for term in ("explained_variance", "l0", "dead_share", "warnings")},
                "value": result["value"],
                "latents": [_latent(name, one, lost) for one in result["latents"]],
                "active": {
                    "index": [int(index) for index in points[0]], "influence": points[1], "mean_activation": points[2],
                },
            }  # fmt: skip
        data["provenance"] = {
            "job": row.id,
            "run": run.id,
            "state": row.state,
            "error": row.error or None,
            "question": run.question,
            "answer": run.answer["text"] if run.answer else None,
            "picture": run.picture_hash,
            "model": dict(run.model or {}),
            "steering": run.steering,
            "settings": row.params["settings"],
        }
        return data, not row.live


def _latent(name: str, one: dict[str, Any], lost: dict[int, float | None]) -> dict[str, Any]:
    """`lost`: what is known of exact ablations."""
    parts = one["by_modality"]
    return {
        "id": f"sae.{name}.{one['index']}",
        **one,
        "by_modality": dict(zip(MODALITIES, parts, strict=True)),
        "image_share": latentjobs.image_share(parts),
        **({"exact_loss": lost[one["index"]]} if one["index"] in lost else {}),
    }
