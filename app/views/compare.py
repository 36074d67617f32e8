"""The page of two states side by side."""

from app import exports, formats, steerings
from app.contexts import (
    CarriedGroup,
    CarriedRow,
    Choice,
    ComparedView,
    ComparePage,
    LikeRow,
    MembershipView,
    PlaceView,
    Shell,
)
from app.views import answer, heat, target
from app.views.comparison import Carried, Comparison, Place, unit_of
from app.views.heat_choice import SIDES
from app.views.load import Loaded
from app.views.sides import TOPS, Pair, url

CONCEPTS_AT_HAND = 3
CHIPS = 3
READABLE = 4
"""Scores of two sides are written in one power of ten up to this ratio of their largest."""
OVERLAP = {
    "shared": "How many of the strongest neurons of each side, by |score|, are the same",
    "Jaccard": "Shared neurons / all neurons of both lists: 1 = the same neurons",
    "rank correlation": "Spearman’s, of the scores on both sides, over all neurons of both lists",
    "similarity": "Σ min / Σ max of both sides’ evidence shares, over all neurons: 1 = carried alike, by degree",
}


def page(around: Shell, asked: Pair, pair: Comparison, error: str = "") -> ComparePage:
    """`error`: why this is not what was asked for."""
    one_scale = pair.maps_share
    mapped = any(found.heat is not None for found in pair.maps)
    own = [formats.plain(largest) if largest else "" for largest in pair.largest]
    power = _power(pair)
    return ComparePage(
        shell=around,
        a=_side(pair, 0, "" if one_scale else own[0]),
        b=_side(pair, 1, "" if one_scale else own[1]),
        waiting=pair.waiting,
        url=asked.url,
        swap=asked.but(a=asked.b, b=asked.a).url,
        other=url(a=asked.a.address),
        export=url(asked.a.address, asked.b.address, asked.heat, asked.top, path="/compare.json"),
        notes=_notes(pair),
        heats=_heats(asked, pair),
        switch=_switch(asked),
        layers=_layers(asked, pair),
        hidden=(
            ("a", asked.a.address),
            ("b", asked.b.address),
            ("top", str(asked.top)),
            ("scale", "own" if asked.own else "one"),
        ),
        scale=own[0] if one_scale and mapped else "",
        ends=next((found.ends for found in pair.maps if found.heat is not None), SIDES),
        scale_note=_scale_note(pair, mapped=mapped),
        unit=power[1] if power else "",
        scales=_scales(asked, pair, mapped=mapped),
        tops=tuple(Choice(f"top {count}", asked.but(top=count).url, count == asked.top, str(count)) for count in TOPS),
        groups=_groups(asked, pair),
        figures=_figures(pair),
        concepts=_concepts(asked, pair),
        no_neurons=_no_neurons(pair),
        error=error,
    )


def _side(pair: Comparison, which: int, scale: str) -> ComparedView:
    loaded, found = (pair.a, pair.b)[which], pair.maps[which]
    run, picture, told = loaded.run, loaded.picture, target.view(loaded)
    size = (picture.width, picture.height) if picture is not None else (0, 0)
    same_model = _model(pair.a) == _model(pair.b)
    return ComparedView(
        letter="AB"[which],
        href=loaded.url,
        question=run.question,
        answer=(run.answer or {}).get("text", "") if run.answer else "",
        steering=steerings.in_words(run.steering),
        target=target_in_words(loaded),
        value=told.value,
        method=method_label(loaded.state.method),
        model="" if same_model else _model(loaded),
        state=run.state,
        message=_message(loaded),
        waiting=loaded.waiting,
        src=heat.picture_src(run.picture_hash),
        width=size[0],
        height=size[1],
        cells=heat.cells(found.heat, found.grid, size, pair.largest[which]),
        caption=found.caption if picture is not None else "",
        scale=scale,
    )


def method_label(method: str) -> str:
    return answer.METHOD_LABELS.get(method, method)


def _model(loaded: Loaded) -> str:
    model = loaded.model
    if not model:
        return ""
    return f"{model['name']}, {loaded.run.model_revision[:12]}, {model['device']}, {model['dtype']}"


def target_in_words(loaded: Loaded) -> str:
    """The target in words."""
    if loaded.choice is None:
        return ""
    goal = loaded.choice.target
    words = f"“{loaded.target_text}”"
    if goal.text is None and goal.against is None:
        (start, end), count = loaded.choice.span, len(loaded.tokens)
        where = "the whole answer" if (start, end) == (0, count) else f"{end - start} of {count} tokens"
        words = f"{words}, {where}"
    elif goal.text is not None:
        words = f"{words}, {target.view(loaded).aside}".removesuffix(", ")
    return f"{words}, without {' and '.join(goal.leave_out)} positions" if goal.leave_out else words


def _message(loaded: Loaded) -> str:
    run, row = loaded.run, loaded.attribution
    if loaded.waiting:
        return "Its neurons are being found." if run.answer else f"This run is {run.state}: its answer follows."
    if row is not None and row.state == "failed":
        return row.error
    if row is None:
        ended = f"This run {'was cancelled' if run.state == 'cancelled' else 'failed'}"
        return (
            f"{ended}, so its neurons were not found. {run.error} {run.remedy}".strip() if run.state != "done" else ""
        )
    return ""


def _notes(pair: Comparison) -> tuple[str, ...]:
    a, b = pair.a, pair.b
    notes = []
    if pair.same:
        notes.append("Both sides are the same state of the same run: everything below agrees. Change one side.")
    if a.run.model_revision and b.run.model_revision and not pair.one_model:
        notes.append(
            "The sides were answered by different models. A neuron’s name means another unit in each, so neurons are "
            "not compared; answers, heat maps and concepts of the same name are."
        )
    if pair.ready and not pair.comparable:
        notes.append(
            f"The scores are not comparable: side A has {_measure(a)}, side B {_measure(b)}. Each side has a scale of "
            "its own; ranks and overlap have no unit."
        )
    for letter, side in (("A", a), ("B", b)):
        if side.outdated:
            notes.append(f"Side {letter}’s concepts were weighed with an earlier concept library.")
    return tuple(notes)


def _measure(side: Loaded) -> str:
    return f"{method_label(side.state.method)} of a {unit_of(side)}"


def _scale_note(pair: Comparison, *, mapped: bool) -> str:
    return "each side has its own scale" if mapped and not pair.maps_comparable else ""


def _scales(asked: Pair, pair: Comparison, *, mapped: bool) -> tuple[Choice, ...]:
    if not mapped or not pair.maps_comparable:
        return ()
    labels = ((False, "one scale"), (True, "each its own"))
    return tuple(Choice(label, asked.but(own=own).url, asked.own == own) for own, label in labels)


def _heats(asked: Pair, pair: Comparison) -> tuple[Choice, ...]:
    """What carried it, concepts that lead, whatever else is shown, all neurons."""
    if pair.a.picture is None and pair.b.picture is None:
        return ()
    offered = [(heat.EVIDENCE, "")]
    offered += [(name, f"concept:{name}") for name, *_ in pair.concepts[:CONCEPTS_AT_HAND]]
    offered.append(("all neurons", "all"))
    kind, _, name = asked.heat.partition(":")
    if kind != "layer" and asked.heat not in (value for _, value in offered):
        offered.insert(1, (name, asked.heat))
    return tuple(Choice(label, asked.but(heat=value).url, asked.heat == value, value) for label, value in offered)


def _switch(asked: Pair) -> tuple[Choice, ...]:
    kind, _, name = asked.heat.partition(":")
    if kind not in ("neuron", "activation"):
        return ()
    return tuple(
        Choice(label, asked.but(heat=f"{value}:{name}").url, kind == value, value)
        for label, value in (("contribution", "neuron"), ("activation", "activation"))
    )


def _layers(asked: Pair, pair: Comparison) -> tuple[Choice, ...]:
    if pair.a.picture is None and pair.b.picture is None:
        return ()
    count = max(side.model.get("n_layers", 0) for side in (pair.a, pair.b))
    values = [f"layer:{layer}" for layer in range(count)]
    return tuple(
        Choice(value.replace(":", " "), asked.but(heat=value).url, asked.heat == value, value) for value in values
    )


def _power(pair: Comparison) -> tuple[int, str] | None:
    """The power of ten that both sides' scores are written in; None where each says its own."""
    own = _largest(pair)
    return formats.unit(max(own)) if pair.comparable and max(own) <= READABLE * min(own) else None


def _largest(pair: Comparison) -> tuple[float, float]:
    a, b = (max((abs(row.score) for row in side.neurons), default=0.0) for side in (pair.a, pair.b))
    return a, b


def _groups(asked: Pair, pair: Comparison) -> tuple[CarriedGroup, ...]:
    overlap = pair.overlap
    if overlap is None:
        return ()
    named = (
        ("both", "Carried both", overlap.both, "No neuron is among the strongest of both sides."),
        ("only_a", "Only A", overlap.only_a, "Every one of A’s strongest neurons is among B’s."),
        ("only_b", "Only B", overlap.only_b, "Every one of B’s strongest neurons is among A’s."),
    )
    own, power = _largest(pair), _power(pair)
    largest = (max(own), max(own)) if pair.one_scale else own
    belongs = {**pair.b.memberships, **pair.a.memberships}
    alike = {name: max(a or 0.0, b or 0.0) for name, a, b in pair.similarities}

    def placed(place: Place, side: int) -> PlaceView:
        score = formats.in_unit(place.score, power[0]) if power else formats.signed(place.score)
        bar = abs(place.score) / largest[side] if largest[side] else 0.0
        return PlaceView(
            score if place.score else "0",
            min(1.0, bar),
            formats.polarity(place.score),
            str(place.rank) if place.rank else "–",
        )

    def row(one: Carried) -> CarriedRow:
        selected = asked.heat == f"neuron:{one.neuron}"
        return CarriedRow(
            neuron=one.neuron,
            a=placed(one.a, 0),
            b=placed(one.b, 1),
            memberships=tuple(
                MembershipView(name, mu, formats.membership(mu), f"/concepts/{exports.quoted(name)}")
                for name, mu in sorted(
                    belongs.get(one.name, []), key=lambda of: (-of[1], -alike.get(of[0], 0.0), of[0])
                )[:CHIPS]
            ),
            heat=asked.but(heat="" if selected else f"neuron:{one.neuron}").url,
            selected=selected,
            steer_a=pair.a.state.url(pair.a.run.id, add=(one.neuron,)),
            steer_b=pair.b.state.url(pair.b.run.id, add=(one.neuron,)),
        )

    return tuple(
        CarriedGroup(name, f"{title}: {len(found)}", tuple(map(row, found)), "" if found else empty)
        for name, title, found, empty in named
    )


def _figures(pair: Comparison) -> tuple[tuple[str, str, str], ...]:
    overlap = pair.overlap
    if overlap is None:
        return ()
    values = (
        f"{len(overlap.both)} of {min(overlap.top, len(overlap.both) + len(overlap.only_a))}",
        formats.membership(overlap.jaccard),
        formats.membership(overlap.spearman).replace("-", "−"),
        formats.membership(overlap.similarity),
    )
    return tuple((name, value, about) for (name, about), value in zip(OVERLAP.items(), values, strict=True))


def _concepts(asked: Pair, pair: Comparison) -> tuple[LikeRow, ...]:
    largest = max((alike or 0.0 for _, *both in pair.concepts for alike in both), default=0.0) or 1.0
    rows = []
    for name, a, b in pair.concepts:
        selected = asked.heat == f"concept:{name}"
        a_text, b_text = ("–" if alike is None else formats.membership(alike) for alike in (a, b))
        href = asked.but(heat="" if selected else f"concept:{name}").url
        rows.append(LikeRow(name, a_text, (a or 0.0) / largest, b_text, (b or 0.0) / largest, href, selected))
    return tuple(rows)


def _no_neurons(pair: Comparison) -> str:
    if pair.overlap is not None or pair.waiting:
        return ""
    if pair.ready:
        return "These models do not share their neurons, so there is no list of them."
    return "Neurons are compared once both sides have them; above it says what one of them lacks."
