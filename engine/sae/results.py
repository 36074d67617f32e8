"""What an experiment with latents found, as data, as text, JSON and CSV; see `engine.sae.masking`. Torch-free;
`engine.sae.contract` gives it on."""

import csv
import dataclasses
import io
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.contract import Question
    from engine.sae.contract import SaeInfo, Settings


@dataclasses.dataclass(frozen=True)
class Item:
    """A question with its right answers; `about` numbers the picture (or text) that it is about."""

    question: "Question"
    answers: tuple[str, ...]
    about: int


@dataclasses.dataclass(frozen=True)
class Share:
    """A mean over `n` items with its 95 % interval."""

    mean: float
    low: float
    high: float
    n: int


@dataclasses.dataclass(frozen=True)
class Masked:
    """What masking does: `em` and `f1` of the answers against those before; `size` = latents masked, mean."""

    method: str
    k: str
    size: float
    em: Share
    f1: Share


@dataclasses.dataclass(frozen=True)
class Swapped:
    """What it does to an answer to swap in another item's K latents (see `engine.sae.exchange`): `left` = it is not
    right any more; `became` = it is the other item's right answer; `size` = latents that were set, mean."""

    method: str
    k: str
    size: float
    left: Share
    became: Share


@dataclasses.dataclass(frozen=True)
class Report:
    """`asked` items, of which `right` were answered right with the SAE in place, and `refused` could not be asked:
    (number from 1, why). `gaps`: for each K what EM loses by influence beyond what it loses by mean activation, and
    McNemar's p. `agreement` and `overlaps` by name. `swaps` over `pairs` pairs, `alike` of which are one question about
    two pictures; `swap_gaps`: for each K how much more often an answer becomes the other's by influence than by mean
    activation, and McNemar's p."""

    sae: "SaeInfo"
    settings: "Settings"
    asked: int
    right: int
    masked: tuple[Masked, ...]
    gaps: tuple[tuple[str, Share, float], ...]
    agreement: dict[str, Share]
    overlaps: dict[str, Share]
    active: Share
    explained_variance: Share
    swaps: tuple[Swapped, ...] = ()
    swap_gaps: tuple[tuple[str, Share, float], ...] = ()
    pairs: int = 0
    alike: int = 0
    refused: tuple[tuple[int, str], ...] = ()


CALLED = {"influence": "influence", "activation": "mean activation", "bottom": "least influence", "random": "random"}
"""Ways to choose latents, in words."""


def _points(figure: Share) -> str:
    return f"{100 * figure.mean:.1f} % [{100 * figure.low:.1f}, {100 * figure.high:.1f}]"


def _number(figure: Share) -> str:
    return f"{figure.mean:.3f} [{figure.low:.3f}, {figure.high:.3f}]"


def _chance(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def clear_gaps(gaps: Iterable[tuple[str, Share, float]]) -> tuple[list[str], list[str]]:
    """The K at which the gap is above, and below, zero: its interval leaves zero out, and McNemar's p is below 0.05
    over the number of K (Bonferroni)."""
    every = list(gaps)
    sure = [(k, gap) for k, gap, p in every if p < 0.05 / len(every)]
    return [k for k, gap in sure if gap.low > 0], [k for k, gap in sure if gap.high < 0]


def _masking_in_words(report: Report) -> Iterable[str]:
    by = {(row.method, row.k): row.em for row in report.masked}
    p_of = {k: p for k, _, p in report.gaps}

    def at(k: str) -> str:
        kept = (f"{100 * by[method, k].mean:.1f} %" for method in ("influence", "activation"))
        return f"K = {k} ({' against '.join(kept)} of answers kept, {_chance(p_of[k])})"

    more, fewer = clear_gaps(report.gaps)
    if more:
        yield f"Influence loses more than mean activation at {', '.join(map(at, more))}."
    if fewer:
        yield f"Influence loses less than mean activation at {', '.join(map(at, fewer))}."
    unclear = [k for k, _, _ in report.gaps if k not in (*more, *fewer)]
    if unclear:
        none = (
            "At no K do these {} items show" if len(unclear) == len(report.gaps) else "At {} these {} items do not show"
        )
        where = [] if len(unclear) == len(report.gaps) else [", ".join(f"K = {k}" for k in unclear)]
        yield (
            f"{none.format(*where, report.right)} which of the two loses more: the interval holds zero, or p is not "
            f"below {0.05 / len(report.gaps):.3f} (0.05 over {len(report.gaps)} K)."
        )
    for method, words in (("bottom", "The least influential latents"), ("random", "As many random active ones")):
        lowest = min((row for row in report.masked if row.method == method), key=lambda row: row.em.mean)
        yield f"{words} leave at least {100 * lowest.em.mean:.1f} % of answers as they were (K = {lowest.k})."


def _swapping_in_words(report: Report) -> Iterable[str]:
    if not report.swaps:
        yield "No swap was tried: none was asked for, or no two items with different right answers were answered right."
        return
    methods = dict.fromkeys(row.method for row in report.swaps)
    best = {m: max((r for r in report.swaps if r.method == m), key=lambda r: r.became.mean) for m in methods}
    told = [
        f"{100 * row.became.mean:.1f} % by {CALLED[method]} (K = {row.k}; it leaves its own in "
        f"{100 * row.left.mean:.1f} %)"
        for method, row in best.items()
    ]
    yield f"With another item's latents swapped in, an answer becomes that item's in at most {', '.join(told)}."
    more, fewer = clear_gaps(report.swap_gaps)
    for some, words in ((more, "more often"), (fewer, "less often")):
        if some:
            yield f"It does so {words} by influence than by mean activation at K = {', '.join(some)}."
    if not more and not fewer:
        yield f"Over {report.pairs} pairs no K shows that influence and mean activation differ in this."


def conclusions(report: Report) -> tuple[str, ...]:
    """What the figures say, in sentences made of them; a difference is claimed only where `clear_gaps` finds one."""
    said = [*_masking_in_words(report)]
    influence, activation = report.agreement["influence"], report.agreement["mean activation"]
    if influence.n:
        said.append(
            f"Over {influence.n} items Spearman's correlation with exact single-latent ablation is "
            f"{influence.mean:.2f} of influence and {activation.mean:.2f} of mean activation."
        )
    return (*said, *_swapping_in_words(report))


def experiment_table(report: Report) -> str:
    """The report as text (Markdown)."""
    error = "kept" if report.settings.keep_error else "dropped"
    lines = [
        f"SAE {report.sae.name} ({report.sae.site} of layer {report.sae.layer}), error {error}",
        " ".join(
            [
                f"{report.right} of {report.asked} items right with it in place;",
                f"{report.active.mean:.0f} latents active in an item;",
                f"explained variance {_number(report.explained_variance)}",
            ]
        ),
        "",
        "| K | masked by | latents | EM as before | token F1 |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {m.k} | {m.method} | {m.size:.0f} | {_points(m.em)} | {_points(m.f1)} |" for m in report.masked]
    lines += ["", "EM lost by influence beyond mean activation (McNemar's p):"]
    lines += [f"- K = {k}: {_number(gap)} (p = {p:.2g})" for k, gap, p in report.gaps]
    lines += ["", f"Spearman with exact ablation over active latents ({report.agreement['influence'].n} items):"]
    lines += [f"- {name}: {_number(figure)}" for name, figure in report.agreement.items()]
    lines += ["", "Overlaps:"]
    lines += [f"- {name}: {_number(figure)} (n = {figure.n})" for name, figure in report.overlaps.items()]
    lines += ["", f"Another item's latents swapped in: {report.pairs} pairs, {report.alike} with the same question"]
    if report.swaps:
        lines += ["", "| K | swapped by | latents | leaves its own | becomes the other's |", "|---|---|---|---|---|"]
        lines += [
            f"| {s.k} | {s.method} | {s.size:.0f} | {_points(s.left)} | {_points(s.became)} |" for s in report.swaps
        ]
        lines += ["", "More often the other's by influence than by mean activation (McNemar's p):"]
        lines += [f"- K = {k}: {_number(gap)} (p = {p:.2g})" for k, gap, p in report.swap_gaps]
    if report.refused:
        lines += ["", *(f"Item {number} could not be asked: {why}" for number, why in report.refused)]
    return "\n".join([*lines, "", *conclusions(report)])


def experiment_as_json(report: Report) -> dict[str, Any]:
    """The report as JSON, a NaN as null."""

    def ready(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: ready(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [ready(one) for one in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    told: dict[str, Any] = ready(dataclasses.asdict(report))
    return told


def _share(told: Mapping[str, Any]) -> Share:
    mean, low, high = (math.nan if told[name] is None else float(told[name]) for name in ("mean", "low", "high"))
    return Share(mean, low, high, told["n"])


def experiment_from_json(told: Mapping[str, Any]) -> Report:
    """A report of `experiment_as_json`."""
    from engine.sae.contract import SaeInfo, Settings  # it gives this module on

    def rows(kind: type[Any], some: Iterable[Mapping[str, Any]]) -> tuple[Any, ...]:
        return tuple(
            kind(**{name: _share(value) if isinstance(value, dict) else value for name, value in row.items()})
            for row in some
        )

    def gaps(name: str) -> tuple[tuple[str, Share, float], ...]:
        return tuple((k, _share(gap), p) for k, gap, p in told[name])

    def shares(name: str) -> dict[str, Share]:
        return {key: _share(value) for key, value in told[name].items()}

    return Report(
        sae=SaeInfo(**told["sae"]),
        settings=Settings(**told["settings"]),
        asked=told["asked"],
        right=told["right"],
        masked=rows(Masked, told["masked"]),
        gaps=gaps("gaps"),
        agreement=shares("agreement"),
        overlaps=shares("overlaps"),
        active=_share(told["active"]),
        explained_variance=_share(told["explained_variance"]),
        swaps=rows(Swapped, told["swaps"]),
        swap_gaps=gaps("swap_gaps"),
        pairs=told["pairs"],
        alike=told["alike"],
        refused=tuple((number, why) for number, why in told["refused"]),
    )


def experiment_csv(report: Report) -> str:
    """The report's figures as CSV, a line each: test, method, k, latents, figure, mean, low, high, n."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("test", "method", "k", "latents", "figure", "mean", "low", "high", "n"))

    def row(test: str, method: str, k: str, size: float | str, figure: str, share: Share) -> None:
        numbers = ["" if math.isnan(one) else one for one in (share.mean, share.low, share.high)]
        writer.writerow((test, method, k, size, figure, *numbers, share.n))

    for one in report.masked:
        row("masked", one.method, one.k, one.size, "em", one.em)
        row("masked", one.method, one.k, one.size, "f1", one.f1)
    for k, gap, _ in report.gaps:
        row("masked", "influence against activation", k, "", "em lost", gap)
    for swap in report.swaps:
        row("swapped", swap.method, swap.k, swap.size, "left", swap.left)
        row("swapped", swap.method, swap.k, swap.size, "became", swap.became)
    for k, gap, _ in report.swap_gaps:
        row("swapped", "influence against activation", k, "", "became", gap)
    for test, figures in (("agreement", report.agreement), ("overlap", report.overlaps)):
        for name, share in figures.items():
            row(test, name, "", "", "spearman" if test == "agreement" else "share", share)
    return out.getvalue()
