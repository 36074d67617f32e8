"""Every template with contexts that show its states: PAGES by template, FRAGMENTS by template with the root's id; PARTS
are filled by the pages that hold them."""

from app import contexts as c
from tests.e2e import (
    factories_concepts,
    factories_evaluation,
    factories_experiment,
    factories_latents,
    factories_own,
    factories_presets,
    factories_saes,
    factories_sweep,
    factories_trust,
    factories_validation,
)
from tests.e2e.factories import (
    LONG,
    LONG_STEERED,
    RUN_LINES,
    STATE,
    answer,
    ask_form,
    ask_page,
    choice,
    error_page,
    model_page,
    neuron_turn,
    neurons,
    picture,
    picture_uri,
    presets_menu,
    run_page,
    shell,
    status,
    steer,
    steered,
    waiting_run_page,
    where,
)
from tests.e2e.factories_compare import CHOOSING, COMPARED
from tests.e2e.factories_neuron import BOXES, SEARCHES
from tests.e2e.factories_neuron import PAGES as NEURONS
from tests.e2e.factories_target import contrast_target, side, target

FAILED = neurons(rows=(), empty="It failed.", retry=STATE, back=(choice("Use gradient"),))
PAGES = {
    "ask/index.html": (
        ask_page(),
        ask_page(
            samples=(),
            recent=(),
            form=ask_form(
                error="The file is empty.", question="<b>what?</b>", picture_hash="ab", picture_src=picture_uri()
            ),
        ),
    ),
    "runs/index.html": (
        c.RunsPage(shell(title="Runs", active="runs"), RUN_LINES, "/runs?before=9", ""),
        c.RunsPage(shell(title="Runs", active="runs"), (), "", ""),
    ),
    "runs/show.html": (
        run_page(),
        waiting_run_page(),
        run_page(
            builtin_note="The built-in model only knows its own small world.",
            parent=STATE,
            sweep=factories_sweep.sweep(),
            steered=steered(**LONG_STEERED, live=True, control="", duration=""),
        ),
        run_page(
            answer=answer(tokens=LONG, target=contrast_target()),
            picture=picture(src="", cells=()),
            status=status(state="failed", error="Out of memory.", remedy="Use a smaller picture.", again=STATE),
        ),
    ),
    **factories_concepts.PAGES,
    "compare/show.html": COMPARED,
    "compare/choose.html": CHOOSING,
    "neuron/show.html": NEURONS,
    "neuron/search.html": SEARCHES,
    "neuron/fires.html": BOXES,
    "presets/index.html": factories_presets.PAGES,
    **factories_latents.pages(),
    **factories_saes.pages(),
    "model/show.html": (model_page(), model_page(checks=(), builtin=False, holds=False)),
    **factories_evaluation.PAGES,
    **factories_experiment.PAGES,
    **factories_own.PAGES,
    **factories_validation.PAGES,
    "error.html": (error_page(), error_page(status=404, href="", remedy="")),
    "_error.html": (error_page(),),
}
PARTS = (
    "concepts/_latents.html", "latents/_concepts.html", "latents/_making.html", "latents/_memberships.html",
    "latents/_parts.html", "neuron/_parts.html", "runs/_exact.html",
)  # fmt: skip
FRAGMENTS = {
    **factories_evaluation.FRAGMENTS,
    **factories_experiment.FRAGMENTS,
    **factories_own.FRAGMENTS,
    **factories_validation.FRAGMENTS,
    "runs/_status.html": (
        "status",
        (status(), status(state="queued", live=True, queue_position=2, cancel=STATE, notes=("a note",))),
    ),
    "runs/_answer.html": (
        "answer",
        (
            answer(),
            answer(streaming=True, tokens=()),
            answer(tokens=(), text=""),
            answer(stopped_by_length=True, target=target(whole="")),
            answer(target=contrast_target()),
            answer(target=contrast_target(warning="Both sides are the same tokens.", quantity_note="It is a logit.")),
            answer(target=target(whole="", certain="It is nearly certain.", remedies=(choice("its logit"),))),
            answer(target=contrast_target(sides=(side("explained", waiting=True),))),
        ),
    ),
    "runs/_picture.html": (
        "picture",
        (picture(), picture(waiting=True), picture(src=""), picture(notes=("frame 1 of 3",))),
    ),
    "runs/_neurons.html": (
        "neurons",
        (
            neurons(),
            neurons(waiting=True),
            neurons(rows=(), empty="No neuron matches."),
            neurons(more=STATE),
            neurons(rows=(), empty="It failed.", retry=STATE, back=(choice("Use gradient"),)),
        ),
    ),
    "runs/_steer.html": (
        "steer",
        (
            steer(),
            steer(waiting=True),
            steer(concepts=(), empty="No concept is known for this model."),
            steer(add_error="No such concept.", reset=""),
            steer(neurons=(neuron_turn("text.1.2", factor="-2", low="-4", high="8", says="×−2", on=True, peak=""),)),
            steer(presets=presets_menu(lines=(), more=3), first=(), last=()),
        ),
    ),
    "runs/_steered.html": (
        "steered",
        (
            steered(),
            steered(present=False),
            steered(live=True, control=""),
            steered(error="It failed.", remedy="Retry."),
            steered(same_answer=True, control_same=False),
            steered(moved=(), moved_waiting=True, heat_original=(), heat_steered=()),
            steered(moved=(), moved_none="No other concept’s similarity moved by 0.01."),
        ),
    ),
    "runs/_where.html": ("where", (where(), where(waiting=True), where(figure={}, rows=()))),
    "runs/_trust.html": ("trust", factories_trust.VIEWS),
    "runs/_sweep.html": ("sweep", factories_sweep.VIEWS),
    "runs/_latents.html": ("latents", factories_latents.VIEWS),
    "latents/_training.html": ("training", factories_saes.TRAININGS),
}
