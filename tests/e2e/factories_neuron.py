"""Contexts of the neuron page, the search and the page of a box, filled with plausible values."""

import dataclasses
from typing import Any

from app import contexts as c
from app import figures
from engine.contract import neurons
from tests.e2e.factories import STATE, choice, heat_cells, picture_uri, shell
from tests.e2e.factories_trust import measurement

HERE = "/neurons/ab12/text.4.212"
XSS = "<script>alert(1)</script>"
FACTS = (("positions", "16,200", "1,438"), ("mean", "−0.049", "0.014"), ("above 0", "42 %", "49 %"))


def belongs(count: int) -> tuple[c.BelongsTo, ...]:
    names = ("traffic light", "red", "vehicle", XSS)
    return tuple(
        c.BelongsTo(names[k % 4], "object", "/concepts/red", 1 / (k + 1), f"{1 / (k + 1):.2f}", k % 3 == 2)
        for k in range(count)
    )


def lens(**changes: Any) -> c.LensView:
    tokens = tuple(c.TokenBar(f"·token{k}" if k else XSS, f"+{3 - k / 5:.3f}", 1 - k / 12) for k in range(12))
    alike = tuple(
        c.AlikeNeuron(f"text.{k}.{k * 70}", HERE, f"0.{90 - k}", 0.9 - k / 100, "wheels" if k == 1 else "")
        for k in range(10)
    )
    view = c.LensView("", "", tokens, tokens, alike, ("A norm stands behind this layer’s MLP.",))
    return dataclasses.replace(view, **changes)


def seen(**changes: Any) -> c.SeenView:
    counts = [[k * (33 - k) for k in range(neurons.BINS)], list(range(neurons.BINS))]
    figure = c.FigureView(
        "activations-figure", "How often each activation occurs", figures.activations(counts, neurons.EDGES.tolist()),
        "Share of positions by activation.",
    )  # fmt: skip
    pictures = tuple(
        c.SeenPicture(
            picture_uri(), 126, 126, "what is on the left?", "−4.913", STATE if k % 2 else "", heat_cells(126, 126)
        )
        for k in range(9)
    )
    snippets = tuple(
        c.Snippet("<s>USER:▢ what is on", " the", " left?", "+5.883", STATE if k else "") for k in range(4)
    )
    view = c.SeenView(
        "Over 200 scenes of the little world.", FACTS, figure, (("0.25 … 0.5", "4 %", "7 %"),), pictures, snippets, "",
        measurement("survey", state="done", teach="", button=""), f"{HERE}/survey",
    )  # fmt: skip
    return dataclasses.replace(view, **changes)


def unseen(work: c.MeasurementView) -> c.SeenView:
    return seen(of="", facts=(), bins=(), pictures=(), snippets=(), work=work)


READERS = (
    c.ReaderGroup(
        "world-residual-2", "the stream after layer 2",
        tuple(c.AlikeNeuron(f"sae.world-residual-2.{k}", HERE, "0.41", 0.41, XSS if k else "") for k in range(5)),
    ),
    c.ReaderGroup("early", "the MLP of layer 0", ()),
)  # fmt: skip


def neuron_page(**changes: Any) -> c.NeuronPage:
    run = c.RankedRun(
        STATE, picture_uri(), "What is this?", "traffic light", 3, "−0.183", "against", "gradient", "92 %"
    )
    page = c.NeuronPage(
        shell(title="text.4.212", active="concepts"), "text.4.212", "layer 4, index 212 · builtin", HERE, "",
        (choice("← index"), c.Choice("index →", "", selected=False, value="text.4.213")), "traffic lights",
        f"Fires {XSS}",
        (80, 4000), belongs(12), belongs(5), "17 of 230 concepts", lens(), seen(), False, (run, run), READERS,
    )  # fmt: skip
    return dataclasses.replace(page, **changes)


def search_page(**changes: Any) -> c.SearchPage:
    hit = c.Hit("text.4.212", HERE, XSS, "promotes ·penguin, number 2 of its tokens")
    page = c.SearchPage(
        shell(title="Search", active="concepts"), "penguin", (choice("penguin", value="object"),),
        (("Labels and notes", (hit,)), ("Neurons that promote it", (hit, hit))),
        measurement("promotions", state="done", teach="", button=""), "/neurons/ab12/promotions", False,
        "/search?q=penguin", "",
    )  # fmt: skip
    return dataclasses.replace(page, **changes)


def fires_page(**changes: Any) -> c.FiresPage:
    row = c.FiredRow("text.4.212", HERE, "wheels", "29.760", "5.363", 0.8, heat_cells(126, 126))
    edges = tuple((name, name, "30", 126) for name in ("left", "top", "right", "bottom"))
    page = c.FiresPage(
        shell(title="Which neurons fire here?", active="runs"), STATE, "What is this?", picture_uri(), 126, 126, edges,
        (20, 20, 40, 50), "", False, f"{STATE}/fires", "Mean |activation| over 6 patches in the box.", (row,) * 12,
    )  # fmt: skip
    return dataclasses.replace(page, **changes)


RUNNING = measurement("survey", state="running", live=True, message="80 of 200 · about 7 s left", button="",
                      cancel="/neurons/jobs/ab/cancel", share=0.4)  # fmt: skip
PAGES = (
    neuron_page(),
    neuron_page(
        seen=unseen(measurement("survey", button="Survey 200 questions")), memberships=(), folded=(), runs=(),
        readers=(), reading="Reading the encoders …",
        lens=lens(message="Reading the weights …", promoted=(), suppressed=(), alike=()), live=True, label="", note="",
    ),
    neuron_page(
        seen=unseen(RUNNING), live=True, other="This neuron belongs to a model that is not loaded now.",
        lens=lens(message="It was not computed. Out of memory.", again=f"{HERE}/look"),
    ),
    neuron_page(seen=unseen(measurement("survey", state="failed", error="Out of memory.", button="Survey"))),
)  # fmt: skip
SEARCHES = (
    search_page(),
    search_page(
        concepts=(), groups=(), empty="Nothing is called that.",
        tokens=measurement("promotions", button="Read all neurons’ tokens"),
    ),
    search_page(tokens=dataclasses.replace(RUNNING, kind="promotions"), live=True),
)  # fmt: skip
BOXES = (
    fires_page(),
    fires_page(rows=(), box=None, summary=""),
    fires_page(rows=(), message="Looking …", live=True),
)
