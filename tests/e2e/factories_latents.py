"""Contexts of the card of a run's latents, of a latent's page, and of the list of sparse autoencoders."""

import dataclasses
import math
from typing import Any

import numpy as np

from app import contexts as c
from app import figures_latents
from tests.e2e.factories import STATE, choice, heat_cells, picture_uri, shell

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
        rank, f"sae.world-mlp-4.{rank * 37}", "/latents/ab/sae.world-mlp-4.37", f"{300 / rank:.3g}", 1 / rank,
        f"{1.4 / rank:.3f}", share, f"{share:.0%}", f"{5 / rank:.2f}", STATE, rank == 2,
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


def ranked(**changes: Any) -> c.LatentsView:
    lines = tuple(c.LatentLine(f"sae.world-mlp-4.{k}", "/latents/ab/x", "0.1", f"{2 - k / 9:.2f}") for k in range(5))
    done: dict[str, Any] = {
        "ranked": True, "button": "Rank again", "sub": "world-mlp-4 · log-probability of the whole answer, error kept",
        "fit": tuple((term, value, "What it is") for term, value in FIT), "figure": cloud(), "unit": "10⁻³",
        "verdict": "Of the 24 latents that fire most, 5 are among those that matter most (21 %).",
        "rows": tuple(row(rank) for rank in range(1, 11)), "folded": tuple(row(rank) for rank in range(11, 61)),
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
    ranked(figure=None, rows=(), folded=(), drawn=None, verdict="No latent is active.", button=""),
)


def latent_page(**changes: Any) -> c.LatentPage:
    tokens = tuple(c.TokenBar(f"·token{k}" if k else XSS, f"+{3 - k / 5:.3f}", 1 - k / 12) for k in range(10))
    near = tuple(
        c.AlikeNeuron(f"text.{k % 5}.{k * 70}", "/neurons/ab/text.1.70", f"{0.6 * math.exp(-k / 6):.2f}", 0.6, "")
        for k in range(10)
    )
    run = c.LatentRun(
        STATE, picture_uri(126, 126), 126, 126, heat_cells(126, 126), f"What is {XSS}?", "traffic light", "3 of 241",
        "0.213", "1.480", "92 %", "log-probability of the whole answer, error term kept",
    )  # fmt: skip
    page = c.LatentPage(
        shell(title="sae.world-mlp-4.74", active="model"), "sae.world-mlp-4.74",
        "latent 74 of 2,048 at the MLP of layer 4", "/latents/ab/sae.world-mlp-4.74", "", False, "", "", tokens, tokens,
        near, near,
        (run, dataclasses.replace(run, src="", cells=(), width=0, height=0)), "Looked for in the newest 100 rankings.",
    )  # fmt: skip
    return dataclasses.replace(page, **changes)


def saes_page(**changes: Any) -> c.SaesPage:
    facts = (("latents", "2,048 over 256 dimensions"), ("explained variance", "0.93"), ("source", "built in"))
    sae = c.SaeCard("world-mlp-4", "TopK, k = 32, at the MLP of layer 4", facts, "", "sfumato sae train --layer 4")
    other = c.SaeCard(XSS, "JumpReLU, at the stream after layer 9", facts, "it is 4,096 wide; the model 256.", "")
    page = c.SaesPage(shell(title="Sparse autoencoders", active="model"), (sae, other), "")
    return dataclasses.replace(page, **changes)


BARE: dict[str, Any] = {"promoted": (), "suppressed": (), "written_by": (), "alike": (), "runs": ()}


def pages() -> dict[str, tuple[Any, ...]]:
    return {
        "latents/show.html": (
            latent_page(),
            latent_page(**BARE, message="Reading the weights …"),
            latent_page(**BARE, message="It was not computed.", again="/look", other="Another model is loaded."),
        ),
        "latents/saes.html": (saes_page(), saes_page(saes=(), empty="No SAE is attached to the loaded model.")),
    }
