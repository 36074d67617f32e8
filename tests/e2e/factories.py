"""Contexts filled with plausible values, one function a part; keyword arguments replace single fields.

They serve the tests that render every template, and the gallery that shows them in a browser without an engine.
"""

import base64
import dataclasses
import io
import math
from typing import Any, TypeVar

from PIL import Image, ImageDraw

from app import contexts as c
from tests.e2e.factories_sweep import NO_SWEEP
from tests.e2e.factories_target import target
from tests.e2e.factories_trust import trust

T = TypeVar("T")
STATE = "/runs/7f3a9c"
SIZE = 224


def picture_bytes(width: int = SIZE, height: int = SIZE) -> bytes:
    """A ball on the right under a red strip, as a PNG file."""
    image = Image.new("RGB", (width, height), (203, 208, 196))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, width, height // 8), fill=(190, 60, 50))
    draw.ellipse((width * 0.55, height * 0.35, width * 0.95, height * 0.75), fill=(60, 140, 80))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def picture_uri(width: int = SIZE, height: int = SIZE) -> str:
    return "data:image/png;base64," + base64.b64encode(picture_bytes(width, height)).decode()


def replaced(value: T, changes: dict[str, Any]) -> T:
    return dataclasses.replace(value, **changes)  # type: ignore[type-var]


def shell(**changes: Any) -> c.Shell:
    return replaced(c.Shell("What is on the left?", "ask", "little-world 20M", "cpu", True, 0), changes)


def choice(label: str, selected: bool = False, value: str = "") -> c.Choice:
    return c.Choice(label, f"{STATE}?show={label.replace(' ', '+')}", selected, value)


def run_line(**changes: Any) -> c.RunLine:
    line = c.RunLine(STATE, picture_uri(), "What is on the left?", "a traffic light", "done", "2 minutes ago", "", "")
    return replaced(line, {"when_iso": "2026-11-30T14:00:00Z"} | changes)


RUN_LINES = (
    run_line(),
    run_line(answer="a tower", steering="traffic light λ −1"),
    run_line(
        question="How many pizzas are there, and which one of them is the closest to the penguin?",
        state="running",
        answer="",
    ),
    run_line(question="<img src=x onerror=alert(1)>", state="failed", answer="", picture=None),
)


def ask_form(**changes: Any) -> c.AskForm:
    limits = "JPEG, PNG, WebP, GIF or TIFF, up to 20 MB"
    return replaced(c.AskForm("/runs", "", "", "", "", "", limits, "image/*", 400), changes)


def ask_page(**changes: Any) -> c.AskPage:
    questions = (
        "What is on the right?",
        "Which colour is the ball?",
        "How many balls are there?",
        "Is there a penguin?",
    )
    samples = tuple(
        c.SampleView(f"scene-{n}", picture_uri(), f"a ball, scene {n}", questions, n == 2) for n in range(1, 13)
    )
    return replaced(c.AskPage(shell(title=""), ask_form(), samples, RUN_LINES, True), changes)


def status(**changes: Any) -> c.StatusView:
    timings = (("picture", "37 ms"), ("generate", "68 ms"), ("attribute", "43 ms"), ("total", "151 ms"))
    return replaced(c.StatusView("done", False, 0, "", "", "", "", "", timings, ()), changes)


def alternatives(*pairs: tuple[str, float]) -> tuple[c.AlternativeView, ...]:
    return tuple(c.AlternativeView(text, p, f"{100 * p:.0f} %") for text, p in pairs)


def token(position: int, text: str, probability: float, in_target: bool = False) -> c.TokenView:
    href = f"{STATE}?span={position}-{position + 1}"
    others = alternatives((text, probability), (" tower", (1 - probability) * 0.6), (" lamp", (1 - probability) * 0.2))
    logprob = f"{math.log(probability):.3f}".replace("-", "−")
    percent = f"{probability:.2f}"
    return c.TokenView(position, text, 400 + position, probability, percent, logprob, in_target, href, href, others)


def answer(**changes: Any) -> c.AnswerView:
    tokens = (
        token(0, "a", 0.98),
        token(1, " traffic", 0.91, True),
        token(2, " light", 0.99, True),
        token(3, ".", 0.97),
    )
    off = dataclasses.replace(choice("integrated"), off="Its weights are packed in 4 bits, which have no gradients.")
    methods = (choice("gradient", True), choice("direct"), off)
    view = c.AnswerView("What is on the left?", False, tokens, "a traffic light.", False, target(), methods)
    return replaced(view, changes)


WORDS = ("a polar bear and a penguin on the ice " * 4).split()[:32]
LONG = tuple(token(n, " " + word, 0.9) for n, word in enumerate(WORDS))
"""An answer of the greatest length."""


def heat_cells(width: int = SIZE, height: int = SIZE, side: int = 8) -> tuple[c.HeatCell, ...]:
    cells = []
    for row in range(side):
        for column in range(side):
            near = math.exp(-((column - 5.5) ** 2 + (row - 4) ** 2) / 3) - 0.25 * math.exp(-((row - 0.3) ** 2) / 1)
            box = (column * width / side, row * height / side, width / side, height / side)
            cells.append(
                c.HeatCell(*box, min(1.0, abs(near)), "for" if near >= 0 else "against", f"{near:+.3f}", row, column)
            )
    return tuple(cells)


def chip(text: str, value: float, kind: str = "question", target: bool = False, count: int = 1) -> c.TokenChip:
    sign = "against" if value < 0 else "for"
    return c.TokenChip(
        text, kind, f"id 7 · position 3 · {kind} · {value:+.3f}", min(1, abs(value)), sign, target, count
    )


CHIPS = (
    chip("<s>", 0.02, "template"), chip("USER:", -0.1, "template"), chip("picture × 81", 0.6, "image", count=81),
    chip("·What", 0.2), chip("·مرحبا", -0.4), chip("▯", 0), chip("▯", 0.1), chip("漢", 0.3), chip("👩\u200d🚀", 1),
    chip("·<b>bold</b>", 0.05), chip("?", -0.02), chip("ASSISTANT:", 0.9, "template"),
)  # fmt: skip


def strip(**changes: Any) -> c.StripView:
    said = (chip("·traffic", 0.7, "answer", True), chip("·light", 0, "answer", True))
    view = c.StripView(False, False, (("prompt", CHIPS), ("answer", said)), "Each token’s contribution.", "0.412")
    return replaced(view, changes)


def picture(**changes: Any) -> c.PictureView:
    choices = (
        choice("what carried it"),
        choice("text.4.212"),
        choice("traffic light"),
        choice("vehicle"),
        choice("all neurons", True, "all"),
        choice("input", value="input"),
        choice("off", value="off"),
    )
    layers = tuple(choice(f"layer {n}", value=f"layer:{n}") for n in range(6))
    caption = "Contribution of all neurons to “traffic light”. Strongest patch: row 4, column 5."
    view = c.PictureView(
        picture_uri(), SIZE, SIZE, "Uploaded picture", False, "all", caption, "0.084", heat_cells(), choices, (),
        strip(), layers=layers, hidden=(("span", "1-3"),),
    )  # fmt: skip
    return replaced(view, changes)


def membership(concept: str, value: float) -> c.MembershipView:
    return c.MembershipView(concept, value, f"{value:.2f}", f"/concepts/{concept}")


def neurons(**changes: Any) -> c.NeuronsView:
    belongs = (
        (membership("traffic light", 0.97), membership("vehicle", 0.41)),
        (membership("traffic light", 0.94), membership("red", 0.22)),
        (membership("traffic light", 0.83), membership("street", 0.66), membership("<b>bold</b>", 0.05)),
        (membership("answer: object", 0.71),),
        (),
    )
    rows = []
    for rank in range(1, 51):
        bar = 1 / rank**0.7
        against = rank % 6 == 0
        name = f"text.{rank * 7 % 6}.{rank * 211 % 768}"
        rows.append(
            c.NeuronRow(rank, name, rank * 7 % 6, f"{'−' if against else '+'}{bar * 0.418:.3f}", bar,
                        "against" if against else "for", abs(math.sin(rank)), f"{100 * abs(math.sin(rank)):.0f} %",
                        belongs[rank % 5], f"{STATE}?heat={name}", rank == 1, f"{STATE}?add={name}")
        )  # fmt: skip
    view = c.NeuronsView(
        False, "gradient", 50, "4,608", tuple(rows),
        (choice("every layer", True), choice("layer 4", value="4")),
        (choice("everywhere", True), choice("image", value="image"), choice("question", value="question")),
        (choice("any concept", True), choice("traffic light", value="traffic light")),
        (choice("strength", True), choice("layer", value="layer")),
        (("heat", "all"),), (("image", "74 %"), ("question", "9 %"), ("answer", "17 %")),
        ("Σ over neurons −0.31 of −0.31 nats", "Σ over layers equals Σ over positions"), "",
        "from engine.local import LocalEngine\n\nengine = LocalEngine.load('builtin')\n", f"{STATE}.json",
        listed=100, sums=(("image", "+0.231"), ("question", "−0.012"), ("all", "+0.219")),
        apart=(
            c.ApartView("special tokens", "34 %", True, STATE, "Role marks. Here: 3 positions."),
            c.ApartView("high-norm positions", "12 %", False, STATE, "Attention sinks. Here: 1 position."),
        ),
        left_out="Left out: high-norm positions (1 position, 12 %).",
    )  # fmt: skip
    return replaced(view, changes)


def steer(**changes: Any) -> c.SteerView:
    names = ("traffic light", "vehicle", "red", "penguin", "street", "tower", "two words")
    rows = []
    for n, name in enumerate(names):
        on = n == 0
        against = name == "penguin"
        weight = f"{'−' if against else '+'}{0.93 / (n + 1):.2f}"
        rows.append(
            c.ConceptTurnRow(name, "object", f"concept:{name}", "-1" if on else "0", on, 128 - n * 9, weight,
                             "against" if against else "for", 1 / (n + 1), f"{STATE}?heat={name}",
                             f"/concepts/{name}", "×0.0" if on else "", f"{0.62 / (n + 1):.2f}" if n < 5 else "",
                             n == 2)
        )  # fmt: skip
    singles = (neuron_turn("text.4.212"), neuron_turn("text.5.730", "set", "3.25", says="=3.25", on=True))
    latent = neuron_turn(
        "sae.world-mlp-4.1204", "set", "2.5", says="=2.5", on=True, field="latent:sae.world-mlp-4.1204",
        href="/latents/x", label="<b>round</b> things", hidden=(("sae:sae.world-mlp-4.1204", "ab"),),
    )  # fmt: skip
    gone = {"neuron": "sae.gone.7", "field": "latent:sae.gone.7", "label": "", "lost": "“<b>gone</b>” is not attached."}
    positions = (choice("all positions", True, "all"), choice("image", value="image"))
    layers = tuple(choice(str(n), n == 5, str(n)) for n in range(6))
    view = c.SteerView(
        False, f"{STATE}/steer", tuple(rows), singles, positions, STATE, (*names, "text.4.212"), "", (), "", STATE,
        first=(choice("all"), *(choice(str(n), n == 2, str(n)) for n in range(6))), last=layers, presets=presets_menu(),
        latents=(latent, replaced(latent, gone)),
    )  # fmt: skip
    return replaced(view, changes)


def neuron_turn(name: str, how: str = "scale", value: str = "", **changes: Any) -> c.NeuronTurnRow:
    operations = tuple(choice(one, one == how, one) for one in ("scale", "add", "set"))
    row = c.NeuronTurnRow(
        name, f"neuron:{name}", "1", False, operations, f"operation:{name}", value, f"value:{name}",
        peak="3.812", usual="3.81",
    )  # fmt: skip
    return replaced(row, changes)


def presets_menu(**changes: Any) -> c.PresetsView:
    lines = (
        c.PresetLine("no traffic lights", "traffic light λ −1 · layers 2–4", "/presets/a/apply"),
        c.PresetLine("<b>bold</b>", "text.5.730 = 3.25 · answer positions", "/presets/b/apply"),
    )
    hidden = (("run", "7f3a9c"), ("heat", "all"))
    return replaced(c.PresetsView(lines, hidden, "/presets?run=7f3a9c", "/presets?run=7f3a9c", 0), changes)


def pair(text: str, original: float, steered: float, changed: bool = False) -> c.PairToken:
    return c.PairToken(text, 7, original, f"{original:.2f}", steered, f"{steered:.2f}", changed)


def steered(**changes: Any) -> c.SteeredView:
    view = c.SteeredView(
        present=True, live=False, events=f"{STATE}/steered/events", href="/runs/81b2",
        summary="traffic light λ −1 · 128 neurons",
        original_text="a traffic light.", steered_text="a tower.", same_answer=False,
        original_tokens=(
            pair("a", 0.98, 0.95), pair(" traffic", 0.91, 0.03, True), pair(" light", 0.99, 0.4, True),
            pair(".", 0.97, 0.9),
        ),
        steered_tokens=(pair("a", 0.98, 0.95), pair(" tower", 0.04, 0.71, True), pair(".", 0.97, 0.96, True)),
        alternatives_original=alternatives((" tower", 0.04), (" lamp", 0.02)),
        alternatives_steered=alternatives((" lamp", 0.17), (" traffic", 0.03)),
        control="answer unchanged", control_same=True, duration="41 ms", error="", remedy="", undo=STATE,
        picture=picture_uri(), width=SIZE, height=SIZE, heat_original=heat_cells(), heat_steered=heat_cells()[20:],
        heat_of="what carried it", alternatives_of=("traffic", "tower"),
        original_parts=(("a", False), (" traffic light", True), (".", False)),
        steered_parts=(("a", False), (" tower", True), (".", False)),
        moved=(
            c.MovedRow("tower", "/concepts/tower", 0.21, "0.07", 1.0, "0.33", "+0.26", "for"),
            c.MovedRow("street", "/concepts/street", 0.62, "0.20", 0.3, "0.10", "−0.10", "against"),
            c.MovedRow("a concept of a rather long name", "/concepts/x", 0.2, "0.06", 0.02, "0.01", "−0.05", "against"),
        ),
    )  # fmt: skip
    return replaced(view, changes)


LONG_STEERED = {
    "original_text": " ".join(WORDS),
    "steered_text": " ".join(WORDS),
    "original_parts": ((" ".join(WORDS), False),),
    "steered_parts": (),
    "original_tokens": tuple(pair(" " + word, 0.9, 0.4) for word in WORDS),
    "steered_tokens": tuple(pair(" " + word, 0.4, 0.9) for word in WORDS),
}
"""Both answers of the greatest length."""


def where(**changes: Any) -> c.WhereView:
    z = [[math.sin(row * 3 + col) * math.exp(-((col - 20) ** 2) / 60) for col in range(30)] for row in range(6)]
    figure = {"data": [{"type": "heatmap", "z": z, "zmid": 0}], "layout": {"xaxis": {"title": {"text": "position"}}}}
    rows = tuple((str(layer), "+0.12", "+0.03", "−0.01", "+0.08") for layer in range(6))
    caption = "Image patches, then question, then answer; layer 5 on top. Sum of all contributions 3.41 of 3.44 nats."
    view = c.WhereView(False, figure, caption, ("layer", "image", "question", "template", "answer"), rows)
    return replaced(view, changes)


def run_page(**changes: Any) -> c.RunPage:
    page = c.RunPage(
        shell(),
        "7f3a9c",
        f"{STATE}/events",
        STATE,
        "",
        "",
        status(),
        answer(),
        picture(),
        neurons(),
        steer(),
        steered(),
        where(),
        trust=trust(),
        sweep=NO_SWEEP,
        latents=c.LatentsView(present=False),
    )
    return replaced(page, changes)


def waiting_run_page(**changes: Any) -> c.RunPage:
    """A run that has given two tokens so far."""
    page = run_page(
        status=status(state="running", live=True, message="answering", cancel=f"{STATE}/cancel", timings=()),
        answer=answer(
            streaming=True, tokens=(token(0, "a", 0.98), token(1, " traffic", 0.91)), target=target(text=""), methods=()
        ),
        picture=picture(
            waiting=True,
            cells=(),
            choices=(),
            scale="",
            layers=(),
            caption="",
            strip=strip(waiting=True, groups=(), caption="The text follows the answer.", scale=""),
        ),
        neurons=neurons(waiting=True, rows=(), shares=(), checks=(), python="", export="", layers=(), concepts=()),
        steer=steer(waiting=True, concepts=(), neurons=()),
        steered=steered(present=False, summary=""),
        where=where(waiting=True, figure={}, rows=()),
        trust=trust(waiting=True),
    )
    return replaced(page, changes)


def model_page(**changes: Any) -> c.ModelPage:
    facts = (
        ("family", "llava"),
        ("layers", "6"),
        ("neurons per layer", "768"),
        ("parameters", "20.4 M"),
        ("device", "cpu"),
    )
    checks = (
        c.CheckLine("logits", True, "our forward and the model’s own agree to 2e-6"),
        c.CheckLine("patch map", False, "a planted activation lights row 2, column 3, not row 3, column 2"),
    )
    return replaced(c.ModelPage(shell(title="Model", active="model"), facts, checks, True, True), changes)


def error_page(**changes: Any) -> c.ErrorPage:
    message = "The file ends in the middle: 12,288 of 40,960 bytes are there."
    page = c.ErrorPage(
        shell(title="Not a picture", active=""),
        422,
        "This is not a picture",
        message,
        "Save it again and retry.",
        "/",
        "Ask again",
    )
    return replaced(page, changes)
