"""Contexts of the card of a run's latents, and of a latent's page."""

import dataclasses
import math
from typing import Any

import numpy as np

from app import contexts as c
from app import figures_latents
from tests.e2e import factories_making
from tests.e2e.factories import STATE, choice, heat_cells, picture_uri, shell
from tests.e2e.factories_neuron import seen, unseen
from tests.e2e.factories_trust import measurement

XSS = "<script>alert(1)</script>"
NO_LATENTS = c.LatentsView(present=False)
OPTIONS = {
    "SAE": ("layer 4", "layer 2 of the attention"),
    "answer": ("the whole answer", "its first token"),
    "quantity": ("log-probability", "probability"),
    "error term": ("kept", "dropped"),
    "special positions": ("left out", "counted"),
    "positive part": ("of each entry", "of the mean"),
}
FIT = (("explained variance", "0.93"), ("L0", "31.6"), ("dead here", "88 %"), ("active", "241 of 2,048"))
UNMEASURED = tuple((term, "…", "What it is") for term, _ in FIT)


def fields() -> tuple[c.LatentField, ...]:
    return tuple(
        c.LatentField(f"latents-{label}", label, tuple(c.Choice(o, "", k == 0, o) for k, o in enumerate(options)))
        for label, options in OPTIONS.items()
    )


def row(rank: int) -> c.LatentRow:
    share = 0.9 - rank / 70
    return c.LatentRow(
        rank, f"sae.world-mlp-4.{rank * 37}", rank * 37, "/latents/ab/sae.world-mlp-4.37",
        f"{300 / rank:.3g}", 1 / rank,
        f"{1.4 / rank:.3f}", share, f"{share:.0%}", f"{5 / rank:.2f}", STATE, rank == 2, STATE,
        f"round {XSS}" if rank % 4 == 1 else "",
    )  # fmt: skip


def cloud(active: int = 240) -> c.FigureView:
    steps = np.arange(active, dtype=np.float32)
    influence = np.exp(-steps / 30) * 0.3 * (steps % 9 > 0)
    activation = np.exp(-((steps * 7) % active) / 60) * 2
    names = [f"sae.world-mlp-4.{k}" for k in range(active)]
    drawn = figures_latents.cloud(influence, activation, names, (0.15, 1.2), 1, " (nats)")
    return c.FigureView("latents-figure", "Influence against mean activation", drawn, "Each point is an active latent.")


def heat(**changes: Any) -> c.LatentHeat:
    view = c.LatentHeat(
        "sae.world-mlp-4.74", picture_uri(126, 126), 126, 126, "The picture asked about", heat_cells(126, 126),
        (choice("influence", selected=True), choice("activation")), "0.214",
        "Signed influence of sae.world-mlp-4.74 on the patches. Strongest patch: row 4, column 3 (+0.214).",
    )  # fmt: skip
    return dataclasses.replace(view, **changes)


def unranked(**changes: Any) -> c.LatentsView:
    view = c.LatentsView(
        present=True, teach="A sparse autoencoder rewrites one layer. Ranking asks which latents matter.",
        why="The default: the log-probability of the whole answer.", action=f"{STATE}/latents",
        hidden=(("heat", "all"),), fields=fields(), button="Rank latents", fit=UNMEASURED,
    )  # fmt: skip
    return dataclasses.replace(view, **changes)


EXACT = c.ExactView(f"{STATE}/latents/exact", (("heat", "all"),), "Check the first 20 by exact ablation")


SWAP = c.SwapView(
    f"{STATE}/swap", (("mine", "ab"),),
    (
        c.SwapRun("r1", "/runs/b1", f"What is {XSS}?", "a penguin.", picture_uri(64, 48)),
        c.SwapRun("r2", "/runs/b2", "And a question that is much longer than all the others, is it not?", "yes", ""),
    ),
    (c.Choice("1", "", selected=True, value="1"), c.Choice("5", "", selected=False, value="5")),
    (c.Choice("mean activation", "", selected=True, value="mean_activation"),), "Its first latents are set to 0.", "",
)  # fmt: skip


def ranked(**changes: Any) -> c.LatentsView:
    lines = tuple(c.LatentLine(f"sae.world-mlp-4.{k}", "/latents/ab/x", "0.1", f"{2 - k / 9:.2f}") for k in range(5))
    done: dict[str, Any] = {
        "ranked": True, "button": "Rank again", "sub": "world-mlp-4 · log-probability of the whole answer, error kept",
        "fit": tuple((term, value, "What it is") for term, value in FIT), "figure": cloud(), "unit": "10⁻³",
        "verdict": "Of the 24 latents that fire most, 5 are among those that matter most (21 %).",
        "rows": tuple(row(rank) for rank in range(1, 11)), "exact": EXACT, "swap": SWAP,
        "folded": tuple(row(rank) for rank in range(11, 61)),
        "quiet": lines, "loud": (), "drawn": heat(), "export": f"{STATE}/latents.json",
    }  # fmt: skip
    return dataclasses.replace(unranked(), **(done | changes))


LIVE = {"live": True, "button": "", "events": f"{STATE}/events", "sub": "world-mlp-4 · log-probability"}
VIEWS = (
    NO_LATENTS,
    unranked(),
    unranked(waiting=True),
    unranked(**LIVE, message="number 2 in the queue", share=0.0, cancel="/measurements/ab/cancel"),
    unranked(**LIVE, message="measuring"),
    unranked(error=f"{XSS} broke.", button="Rank again"),
    unranked(message="Cancelled; nothing was kept.", button="Rank again"),
    ranked(),
    ranked(drawn=None, folded=(), warnings=(f"The explained variance {XSS} is −0.20: this SAE does not read it.",)),
    ranked(
        rows=tuple(dataclasses.replace(row(rank), exact=f"+{1 / rank:.3f}") for rank in range(1, 11)),
        exact=dataclasses.replace(
            EXACT, button="", done=True, verdict="Spearman’s ρ of influence and exact loss: 0.84."
        ),
    ),
    ranked(
        exact=dataclasses.replace(
            EXACT, button="", live=True, message="Ablating the first 20: 8 of 20", cancel="/measurements/ab/cancel"
        )
    ),
    ranked(exact=dataclasses.replace(EXACT, error=f"{XSS} broke.")),
    ranked(swap=dataclasses.replace(SWAP, runs=(), empty="No other run’s latents were ranked yet.")),
    ranked(figure=None, rows=(), folded=(), drawn=None, verdict="No latent is active.", button=""),
)


def history() -> c.HistoryView:
    names, influence, activation = [f"{k}. {XSS}" for k in range(1, 6)], [0.1, 0.02, 0.0, 0.3, 0.2], [1.0, 2, 0, 1.5, 3]
    drawn = figures_latents.history(names, influence, activation, "10⁻³")
    rows = tuple((name, f"{a:.3f}", f"{b:.3f}") for name, a, b in zip(names, influence, activation, strict=True))
    return c.HistoryView(c.FigureView("history-figure", "Over runs", drawn, "Both axes begin at zero."), rows)


def latent_page(**changes: Any) -> c.LatentPage:
    tokens = tuple(c.TokenBar(f"·token{k}" if k else XSS, f"+{3 - k / 5:.3f}", 1 - k / 12) for k in range(10))
    near = tuple(
        c.AlikeNeuron(f"text.{k % 5}.{k * 70}", "/neurons/ab/text.1.70", f"{0.6 * math.exp(-k / 6):.2f}", 0.6, "")
        for k in range(10)
    )
    run = c.LatentRun(
        STATE, picture_uri(126, 126), 126, 126, heat_cells(126, 126), f"What is {XSS}?", "traffic light", "3 of 241",
        "0.213", "1.480", "92 %", "log-probability of the whole answer, error term kept", "+0.187",
        (choice("more influential", value="round things"), choice("less influential")),
    )  # fmt: skip
    page = c.LatentPage(
        shell(title="sae.world-mlp-4.74", active="model"), "sae.world-mlp-4.74",
        "latent 74 of 2,048 at the MLP of layer 4", "/latents/ab/sae.world-mlp-4.74", "", False, "", "", tokens, tokens,
        near, near,
        (run, dataclasses.replace(run, src="", cells=(), width=0, height=0)), "Looked for in the newest 100 rankings.",
        seen(), (choice("← latent"), c.Choice("latent →", "", selected=False, value="sae.world-mlp-4.75")),
        "round things", f"Fires {XSS}", (80, 4000), history(), factories_making.OF_LATENT[0],
    )  # fmt: skip
    return dataclasses.replace(page, **changes)


BARE: dict[str, Any] = {
    "promoted": (), "suppressed": (), "written_by": (), "alike": (), "runs": (), "label": "", "note": "",
    "seen": unseen(measurement("survey", button="Survey 200 questions")), "history": None, "live": True,
    "concepts": factories_making.OF_LATENT[1],
}  # fmt: skip


def pages() -> dict[str, tuple[Any, ...]]:
    return {
        "latents/show.html": (
            latent_page(),
            latent_page(**BARE, message="Reading the weights …"),
            latent_page(**BARE, message="It was not computed.", again="/look", other="Another model is loaded."),
        ),
    }
