"""The ranked neurons with their memberships and filters."""

from app import exports, formats
from app.contexts import Choice, MembershipView, NeuronRow, NeuronsView
from app.state import SORTS, address
from app.tables import NeuronRow as Row
from app.views import bookkeeping
from app.views.load import Loaded
from engine.contract import MODALITIES

CHIPS = 4
SORT_LABELS = {"score": "score", "image": "share of the image", "layer": "layer"}


def view(loaded: Loaded) -> NeuronsView:
    state, run = loaded.state, loaded.run
    kept = _kept(loaded)
    largest = max((abs(row.score) for row in loaded.neurons), default=0.0)
    ready = bool(loaded.neurons)
    return NeuronsView(
        waiting=loaded.waiting,
        method=state.method,
        unit=formats.unit(largest)[1],
        shown=len(kept[: state.rows]),
        all_neurons=formats.thousands(loaded.model["n_layers"] * loaded.model["d_mlp"]) if loaded.model else "0",
        rows=tuple(_row(loaded, row, largest) for row in kept[: state.rows]),
        layers=_layers(loaded),
        modalities=_choices(loaded, "modality", state.modality, [("", "all"), *((name, name) for name in MODALITIES)]),
        concepts=_concepts(loaded),
        sorts=_choices(loaded, "sort", state.sort, [(name, SORT_LABELS[name]) for name in SORTS]),
        hidden=state.but(layer=None, modality="", concept="", sort="score").pairs(),
        shares=bookkeeping.shares(loaded),
        checks=bookkeeping.checks(loaded),
        empty=_empty(loaded, shown=len(kept)),
        python=exports.python(loaded) if ready else "",
        export=address(f"/runs/{run.id}.json", state.pairs()) if run.answer else "",
        more=state.url(run.id, rows=len(loaded.neurons)) if len(kept) > state.rows else "",
        retry=f"/runs/{run.id}/attributions" if _retry(loaded) else "",
        retry_fields=_retry(loaded),
        back=bookkeeping.ways_back(loaded),
        listed=len(loaded.neurons),
        sums=bookkeeping.sums(loaded),
        apart=bookkeeping.apart(loaded) if loaded.tokens or loaded.waiting else (),
        left_out=bookkeeping.left_out(loaded),
    )


def image_share(row: Row) -> float:
    whole = sum(abs(part) for part in (row.image, row.question, row.template, row.answer))
    return abs(row.image) / whole if whole else 0.0


def _kept(loaded: Loaded) -> list[Row]:
    state = loaded.state
    kept = [
        row
        for row in loaded.neurons
        if (state.layer is None or row.layer == state.layer)
        and (not state.modality or _leading(row) == state.modality)
        and (not state.concept or state.concept in (name for name, _ in _of(loaded, row)))
    ]
    if state.sort == "image":
        return sorted(kept, key=lambda row: (-abs(row.image), row.rank))
    return sorted(kept, key=lambda row: (row.layer, row.rank)) if state.sort == "layer" else kept


def _leading(row: Row) -> str:
    """The modality that most of the score came from."""
    parts = {name: abs(getattr(row, name)) for name in MODALITIES}
    return max(parts, key=parts.__getitem__)


def _of(loaded: Loaded, row: Row) -> list[tuple[str, float]]:
    return loaded.memberships.get((row.layer, row.index), [])


def _foremost(loaded: Loaded, row: Row) -> list[tuple[str, float]]:
    """The concepts that it belongs to most, weak ones last; among equals those that this answer is most like."""
    summary = loaded.attribution.summary if loaded.attribution is not None else None
    place = {name: k for k, (name, *_) in enumerate(summary["concepts"])} if summary else {}
    facts = loaded.concepts
    return sorted(_of(loaded, row), key=lambda of: (facts[of[0]].weak, -of[1], place.get(of[0], len(place)), of[0]))[
        :CHIPS
    ]


def _row(loaded: Loaded, row: Row, largest: float) -> NeuronRow:
    state, run_id = loaded.state, loaded.run.id
    neuron = f"text.{row.layer}.{row.index}"
    share = image_share(row)
    selected = state.heat in (f"neuron:{neuron}", f"activation:{neuron}")
    return NeuronRow(
        rank=row.rank,
        neuron=neuron,
        layer=row.layer,
        score=formats.in_unit(row.score, formats.unit(largest)[0]),
        bar=abs(row.score) / largest if largest else 0.0,
        polarity=formats.polarity(row.score),
        image_share=share,
        image_percent=formats.percent(share),
        memberships=tuple(
            MembershipView(
                name, mu, formats.membership(mu), f"/concepts/{exports.quoted(name)}", loaded.concepts[name].weak
            )
            for name, mu in _foremost(loaded, row)
        ),
        heat=state.url(run_id, heat="" if selected else f"neuron:{neuron}"),
        selected=selected,
        steer=state.url(run_id, add=(*(name for name in state.add if name != neuron), neuron)),
        page=f"/neurons/{loaded.run.model_revision}/{neuron}" if loaded.run.model_revision else "",
        label=loaded.labels.get(neuron, ""),
    )


def _choices(loaded: Loaded, field: str, selected: str, options: list[tuple[str, str]]) -> tuple[Choice, ...]:
    run_id, state = loaded.run.id, loaded.state
    return tuple(
        Choice(label, state.url(run_id, **{field: value}), value == selected, value) for value, label in options
    )


def _layers(loaded: Loaded) -> tuple[Choice, ...]:
    state = loaded.state
    options: list[tuple[str, str, int | None]] = [("", "all", None)]
    options += [(str(layer), str(layer), layer) for layer in range(loaded.model.get("n_layers", 0))]
    return tuple(
        Choice(label, state.url(loaded.run.id, layer=layer), layer == state.layer, value)
        for value, label, layer in options
    )


def _concepts(loaded: Loaded) -> tuple[Choice, ...]:
    """Only concepts that some ranked neuron belongs to can filter anything."""
    present = {name for row in loaded.neurons for name, _ in _of(loaded, row)} | {loaded.state.concept} - {""}
    return _choices(loaded, "concept", loaded.state.concept, [("", "any"), *((name, name) for name in sorted(present))])


def _retry(loaded: Loaded) -> tuple[tuple[str, str], ...]:
    """Fields of the form that has a failed attribution computed again."""
    if loaded.attribution is None or loaded.attribution.state != "failed":
        return ()
    return loaded.state.pairs()


def _empty(loaded: Loaded, *, shown: int) -> str:
    if loaded.waiting or shown:
        return ""
    if loaded.attribution is not None and loaded.attribution.state == "failed":
        return loaded.attribution.error
    if loaded.neurons:
        return "None of the ranked neurons passes the filters. Choose “all” for layer and modality."
    if loaded.run.answer is not None and not loaded.tokens:
        return "The answer is empty, so there is nothing to explain."
    return "This run ended before its neurons were found. Ask it again."
