"""The search over concepts and neurons, and the page that says which neurons fire inside a box of a run's picture."""

from collections.abc import Mapping, Sequence

from app import exports, formats
from app.arrays import unpack
from app.conceptqueries import ConceptHead
from app.contexts import Choice, FiredRow, FiresPage, Hit, MeasurementView, SearchPage, Shell
from app.neuronqueries import Promoted, parse
from app.state import address
from app.tables import JobRow, LatentNote, NeuronNote, Picture, Run
from app.views import heat
from app.views.seen import progress_of
from app.views.strip import visible

ENOUGH = 40
"""Concepts that a search lists at most."""
EDGES = (("left", "left"), ("top", "top"), ("right", "right"), ("bottom", "bottom"))


def page(
    around: Shell,
    revision: str,
    query: str,
    concepts: Sequence[ConceptHead],
    noted: Sequence[NeuronNote],
    promoted: Sequence[Promoted],
    lenses: JobRow | None,
    labels: Mapping[str, str],
    latents: tuple[tuple[str, Sequence[Hit]], ...],
    *,
    exists: bool,
) -> SearchPage:
    """`exists`: where the query spells a neuron, the loaded model has it. `latents`: see `of_latents`."""
    place = parse(query)
    groups: list[tuple[str, tuple[Hit, ...]]] = []
    if place is not None and exists:
        groups.append(("This neuron", (_hit(revision, query.strip(), labels, "by its name"),)))
    if noted:
        hits = [(f"text.{row.layer}.{row.index}", row.note[:160] or "by its label") for row in noted]
        found = {f"text.{row.layer}.{row.index}": row.label for row in noted}
        groups.append(("Labels and notes", tuple(_hit(revision, name, found, why) for name, why in hits)))
    if promoted:
        hits = [(one.neuron, f"promotes {visible(one.token)}, number {one.rank} of its tokens") for one in promoted]
        groups.append(("Neurons that promote it", tuple(_hit(revision, name, labels, why) for name, why in hits)))
    groups += [(title, tuple(hits)) for title, hits in latents if hits]
    empty = ""
    if query and not groups and not concepts:
        empty = (
            "Nothing is called that. Search for a part of a concept’s name, a label, a token, text.LAYER.INDEX, or "
            "sae.SAE.INDEX."
        )
    return SearchPage(
        shell=around,
        query=query,
        concepts=tuple(
            Choice(row.name, f"/concepts/{exports.quoted(row.name)}", selected=False, value=row.kind)
            for row in concepts[:ENOUGH]
        ),
        groups=tuple(groups),
        tokens=_tokens(revision, lenses),
        action=f"/neurons/{revision}/promotions" if revision else "",
        live=lenses is not None and lenses.live,
        here=address_of(query),
        empty=empty,
    )


def of_latents(
    revision: str, named: str, noted: Sequence[tuple[str, LatentNote]]
) -> tuple[tuple[str, Sequence[Hit]], ...]:
    """`named` = the latent that the query spells, '' = none; `noted` with each one's name."""
    found = {name: row.label for name, row in noted}
    path = f"/latents/{revision}/"
    labels = [Hit(name, f"{path}{name}", row.label, row.note[:160] or "by its label") for name, row in noted]
    own = [Hit(named, f"{path}{named}", found.get(named, ""), "by its name")] if named else []
    return ("This latent", own), ("Labels and notes of latents", labels)


def _hit(revision: str, neuron: str, labels: Mapping[str, str], why: str) -> Hit:
    return Hit(neuron, f"/neurons/{revision}/{neuron}", labels.get(neuron, ""), why)


def _tokens(revision: str, row: JobRow | None) -> MeasurementView:
    """The lens of all neurons, as far as it is there."""
    title = "Promoted tokens"
    teach = "A search by token needs the lens of all neurons: one matrix product a layer, computed once for a model."
    if not revision:
        return MeasurementView("promotions", title, "", False, "Neurons can be searched when the model is loaded.")
    if row is not None and row.state == "done":
        return MeasurementView("promotions", title, "done", False, "")
    if row is not None and row.live:
        return MeasurementView(
            "promotions", title, row.state, True, teach, progress_of(row, "reading the weights"),
            cancel=f"/neurons/jobs/{row.id}/cancel", share=row.done / row.total if row.total else 0.0,
        )  # fmt: skip
    error = row.error if row is not None and row.state == "failed" else ""
    return MeasurementView("promotions", title, "", False, teach, "", error, "Read all neurons’ tokens")


def fires(
    around: Shell,
    run: Run,
    picture: Picture,
    box: tuple[int, int, int, int] | None,
    row: JobRow | None,
    labels: Mapping[str, str],
    message: str,
    here: str,
) -> FiresPage:
    """`row` = the job that looks into `box` (pixels of the picture)."""
    result = row.result if row is not None and row.state == "done" else None
    rows: tuple[FiredRow, ...] = ()
    summary = ""
    if result is not None and row is not None and row.arrays is not None:
        maps, size = unpack(row.arrays)["maps"], (picture.width, picture.height)
        largest = max((inside for _, inside, _ in result["neurons"]), default=0.0) or 1.0
        rows = tuple(
            FiredRow(
                neuron, f"/neurons/{run.model_revision}/{neuron}", labels.get(neuron, ""), formats.plain(inside),
                formats.plain(outside), inside / largest,
                heat.cells(maps[k], result["grid"], size, float(abs(maps[k]).max())),
            )
            for k, (neuron, inside, outside) in enumerate(result["neurons"])
        )  # fmt: skip
        patches = "1 patch" if result["cells"] == 1 else f"{result['cells']} patches"
        summary = f"Mean |activation| over {patches} in the box, and over the rest of the picture."
    left, top, right, bottom = box or (0, 0, 0, 0)
    limits = (picture.width, picture.height, picture.width, picture.height)
    values = [str(edge) for edge in box] if box else [""] * 4
    live = row is not None and row.live
    if row is not None and row.state in ("failed", "cancelled"):
        message = row.error or "That was cancelled. Look again."
    return FiresPage(
        shell=around,
        run=f"/runs/{run.id}",
        question=run.question,
        src=heat.picture_src(picture.hash),
        width=picture.width,
        height=picture.height,
        fields=tuple(
            (name, label, value, limit) for (name, label), value, limit in zip(EDGES, values, limits, strict=True)
        ),
        box=(left, top, right - left, bottom - top) if box else None,
        message="Looking …" if live else message,
        live=live,
        here=here,
        summary=summary,
        rows=rows,
    )


def address_of(query: str) -> str:
    return address("/search", [("q", query)] if query else [])


def fires_address(run_id: str, edges: Sequence[str]) -> str:
    pairs = [(name, edge) for (name, _), edge in zip(EDGES, edges, strict=True) if edge]
    return address(f"/runs/{run_id}/fires", pairs)


def box_of(edges: Sequence[str], width: int, height: int) -> tuple[tuple[int, int, int, int] | None, str]:
    """(left, top, right, bottom) clipped to the picture, or None and what is wrong with it."""
    if not any(edges):
        return None, ""
    try:
        left, top, right, bottom = (round(float(edge)) for edge in edges)
    except (ValueError, OverflowError):
        return None, "A box has four edges, each a number of pixels."
    left, right = (min(max(edge, 0), width) for edge in sorted((left, right)))
    top, bottom = (min(max(edge, 0), height) for edge in sorted((top, bottom)))
    if left >= right or top >= bottom:
        return None, f"The box holds no pixel of the picture, which is {width} × {height}. Draw it inside."
    return (left, top, right, bottom), ""
