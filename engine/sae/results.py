"""What an experiment with latents found, as data, as text and as JSON; see `engine.sae.masking`. Torch-free;
`engine.sae.contract` gives it on."""

import dataclasses
import math
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
class Report:
    """`asked` items, of which `right` were answered right with the SAE in place. `gaps`: for each K what EM loses by
    influence beyond what it loses by mean activation, and McNemar's p. `agreement` and `overlaps` by name."""

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


def experiment_table(report: Report) -> str:
    """The report as text (Markdown)."""

    def share(figure: Share) -> str:
        return f"{figure.mean:.1%} [{figure.low:.1%}, {figure.high:.1%}]".replace("%", " %")

    def number(figure: Share) -> str:
        return f"{figure.mean:.3f} [{figure.low:.3f}, {figure.high:.3f}]"

    error = "kept" if report.settings.keep_error else "dropped"
    lines = [
        f"SAE {report.sae.name} ({report.sae.site} of layer {report.sae.layer}), error {error}",
        " ".join(
            [
                f"{report.right} of {report.asked} items right with it in place;",
                f"{report.active.mean:.0f} latents active in an item;",
                f"explained variance {number(report.explained_variance)}",
            ]
        ),
        "",
        "| K | masked by | latents | EM as before | token F1 |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {m.k} | {m.method} | {m.size:.0f} | {share(m.em)} | {100 * m.f1.mean:.1f} % "
        f"[{100 * m.f1.low:.1f}, {100 * m.f1.high:.1f}] |"
        for m in report.masked
    ]
    lines += ["", "EM lost by influence beyond mean activation (McNemar's p):"]
    lines += [f"- K = {k}: {number(gap)} (p = {p:.2g})" for k, gap, p in report.gaps]
    lines += ["", f"Spearman with exact ablation over active latents ({report.agreement['influence'].n} items):"]
    lines += [f"- {name}: {number(figure)}" for name, figure in report.agreement.items()]
    lines += ["", "Overlaps:"]
    lines += [f"- {name}: {number(figure)} (n = {figure.n})" for name, figure in report.overlaps.items()]
    return "\n".join(lines)


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
