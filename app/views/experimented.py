"""What came of an experiment with latents, in words, figures and tables."""

import math
from collections.abc import Sequence

from app import experimentchart
from app.contexts import FigureTable, FigureView
from engine.contract import saes

MASKED = (
    "Answers that are as before, word for word (exact match, EM), after K latents were zeroed wherever the SAE stands, "
    "by how the K were chosen. “half last” is half of the latents active at the prompt’s last position, “half” half of "
    "all that are active anywhere."
)
LEFT = "How often A’s answer is no longer right with B’s latents in place of its own."
BECAME = "How often A’s answer is B’s right answer then."
GAP = "Item by item, in points, with its 95 % interval, and McNemar’s exact p"


def percent(figure: saes.Share) -> str:
    """For example “51.2 % [44.0, 58.3]”."""
    if math.isnan(figure.mean):
        return "–"
    return f"{100 * figure.mean:.1f}\u00a0% [{100 * figure.low:.1f},\u00a0{100 * figure.high:.1f}]"


def number(figure: saes.Share) -> str:
    """For example “0.469 [0.421, 0.519]”."""
    if math.isnan(figure.mean):
        return "–"
    value, low, high = (f"{one:.3f}".replace("-", "−") for one in _ends(figure))
    return f"{value} [{low},\u00a0{high}]"


def points(gap: saes.Share, p: float) -> str:
    chance = "p\u00a0<\u00a00.001" if p < 0.001 else f"p\u00a0=\u00a0{p:.3f}"
    ends = (f"{100 * value:+.1f}".replace("-", "−") for value in (gap.mean, gap.low, gap.high))
    value, low, high = ends
    return f"{value} [{low},\u00a0{high}], {chance}"


def parts(report: saes.Report) -> tuple[FigureTable, ...]:
    made = [_masked(report), _words(report)]
    if report.swaps:
        made.append(_swapped(report))
    return (*made, _agreement(report), _overlaps(report))


def polarity(report: saes.Report) -> str:
    """'for' where influence loses more at some K and less at none, 'against' the other way round, else 'even'."""
    more, fewer = saes.clear_gaps(report.gaps)
    return "for" if more and not fewer else "against" if fewer and not more else "even"


def _masked(report: saes.Report) -> FigureTable:
    by = {(row.method, row.k): row for row in report.masked}
    sizes, methods = _names(report.masked)
    series = {method: [_ends(by[method, k].em) for k in sizes] for method in methods}
    gaps = {k: points(gap, p) for k, gap, p in report.gaps}
    figure = FigureView(
        "masked-figure",
        "Answers as before against K, by how latents were chosen",
        experimentchart.by_size(sizes, series, saes.CALLED, "answers as before, %"),
        f"{MASKED} Bars are Wilson’s 95 % intervals over {report.right} items. The table holds the same.",
    )
    columns = (*_columns(methods), ("lost by influence beyond mean activation", GAP))
    rows = tuple(
        (k, f"{by[methods[0], k].size:.0f}", *(percent(by[method, k].em) for method in methods), gaps[k]) for k in sizes
    )
    return FigureTable("Masking", "", (figure,), columns, rows)


def _words(report: saes.Report) -> FigureTable:
    by = {(row.method, row.k): row for row in report.masked}
    sizes, methods = _names(report.masked)
    rows = tuple(
        (k, f"{by[methods[0], k].size:.0f}", *(percent(by[method, k].f1) for method in methods)) for k in sizes
    )
    caption = "Token F1 of the answers after masking with those before: mean, with its bootstrap interval over items."
    return FigureTable("Words in common", caption, (), _columns(methods), rows)


def _columns(methods: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return (
        ("K", "Latents zeroed"),
        ("latents", "As many as K is, mean over items"),
        *((saes.CALLED[method], "By how the K were chosen") for method in methods),
    )


def _swapped(report: saes.Report) -> FigureTable:
    by = {(row.method, row.k): row for row in report.swaps}
    sizes, methods = _names(report.swaps)
    figures = tuple(
        FigureView(
            f"{name}-figure",
            f"{title} against K, by how latents were chosen",
            experimentchart.by_size(
                sizes, {m: [_ends(getattr(by[m, k], name)) for k in sizes] for m in methods}, saes.CALLED, axis
            ),
            f"{words} Bars are Wilson’s 95 % intervals over {report.pairs} pairs.",
        )
        for name, title, axis, words in (
            ("left", "Answers that leave their own", "leaves its own, %", LEFT),
            ("became", "Answers that become the other’s", "becomes the other’s, %", BECAME),
        )
    )
    columns = [("K", "Latents of A set to 0, and of B to B’s values")]
    for method in methods:
        columns += [(f"{saes.CALLED[method]}: leaves", LEFT), ("becomes", BECAME)]
    gaps = {k: points(gap, p) for k, gap, p in report.swap_gaps}
    rows = tuple(
        (k, *(text for m in methods for text in (percent(by[m, k].left), percent(by[m, k].became))), gaps[k])
        for k in sizes
    )
    caption = (
        f"{report.pairs} pairs of items A and B with different right answers; in {report.alike} both are the same "
        "question about two pictures."
    )
    last = ("becomes: influence less activation", GAP)
    return FigureTable("Swapping", caption, figures, (*columns, last), rows)


def _agreement(report: saes.Report) -> FigureTable:
    rows = tuple((name, number(figure), str(figure.n)) for name, figure in report.agreement.items())
    caption = (
        "Spearman’s correlation, over all latents active in an item, with what the answer loses when each one alone is "
        "zeroed: mean over items, with its bootstrap interval."
    )
    columns = (("ranking", ""), ("Spearman [95 %]", "−1 to 1"), ("items", "How many were compared"))
    return FigureTable("Agreement with exact ablation", caption, (), columns, rows)


def _overlaps(report: saes.Report) -> FigureTable:
    rows = tuple((name, percent(figure), str(figure.n)) for name, figure in report.overlaps.items())
    caption = "Share of the first latents that two rankings have in common: mean, with its bootstrap interval."
    columns = (("of", ""), ("in common [95 %]", "|A ∩ B| / K"), ("n", "Items, or pairs of items"))
    return FigureTable("Overlaps", caption, (), columns, rows)


def _names(rows: Sequence[saes.Masked | saes.Swapped]) -> tuple[list[str], list[str]]:
    """(K, methods), in order."""
    return list(dict.fromkeys(row.k for row in rows)), list(dict.fromkeys(row.method for row in rows))


def _ends(figure: saes.Share) -> tuple[float, float, float]:
    return figure.mean, figure.low, figure.high
