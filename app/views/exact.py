"""The yardstick of a ranking of latents: what the answer loses when each of the first ones alone is zeroed."""

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from app import formats, latentqueries
from app.contexts import ExactView, LatentRow
from app.state import PageState
from app.tables import JobRow, now
from app.views import progress
from engine.contract import spearman


def view(
    state: PageState, run: str, job: JobRow, row: JobRow | None, at: dt.datetime | None = None, *, usable: bool
) -> ExactView | None:
    """Of the finished ranking `job` on the page of this state; `row` = the ablation that was asked for; `usable`: its
    SAE is there. None where there is nothing to ablate."""
    listed = (job.result or {}).get("latents", [])[: latentqueries.ABLATED]
    if not listed:
        return None
    first = f"the first {len(listed)}" if len(listed) > 1 else "the one latent"
    blank = ExactView(f"/runs/{run}/latents/exact", state.but(latents=job.id).pairs())
    if row is not None and row.live:
        cancel = "" if row.stop_requested else f"/measurements/{row.id}/cancel"
        message = f"Ablating {first}: {progress.message(row, 1, at or now())}"
        return dataclasses.replace(blank, live=True, message=message, cancel=cancel)
    lost = latentqueries.lost(row)
    if lost:
        return dataclasses.replace(blank, done=True, verdict=_verdict(listed, lost))
    return dataclasses.replace(
        blank,
        button=f"Check {first} by exact ablation" if usable else "",
        error=row.error if row is not None and row.state == "failed" else "",
        message="Cancelled; nothing was kept." if row is not None and row.state == "cancelled" else "",
    )


def _verdict(listed: Sequence[Mapping[str, Any]], lost: Mapping[int, float | None]) -> str:
    """How far influence orders latents as their exact losses do."""
    pairs = [(one["influence"], loss) for one in listed if (loss := lost.get(one["index"])) is not None]
    if len(pairs) < 3:
        return "Fewer than three latents were ablated: that is too few to compare orders."
    rho = spearman([influence for influence, _ in pairs], [loss for _, loss in pairs])
    said = f"{rho:.2f}".replace("-", "−")
    return (
        f"Spearman’s ρ of influence and exact loss over these {len(pairs)}: {said}. Influence is a first-order "
        "estimate of the positive part, and a mean over positions; the loss is exact, signed, and of all positions "
        "together."
    )


def with_losses(rows: tuple[LatentRow, ...], lost: Mapping[int, float | None]) -> tuple[LatentRow, ...]:
    """These rows with what the answer loses without each."""
    return tuple(dataclasses.replace(row, exact=said(lost, int(row.latent.rpartition(".")[2]))) for row in rows)


def said(lost: Mapping[int, float | None], index: int) -> str:
    """'' where it is not known."""
    if index not in lost:
        return ""
    value = lost[index]
    return "not finite" if value is None else formats.signed(value)
