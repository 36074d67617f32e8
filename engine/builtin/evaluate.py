"""Measure the model:  python -m engine.builtin.evaluate [--n 150] [--model DIR] [--card]

Every figure is the share of greedy answers that equal the right one exactly, on scenes that training never draws, in
float32, with a Wilson 95 % interval. With --card the figures go to `figures.json` and the model card `README.md`
beside the weights."""

import argparse
import json
import math
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast

from engine.builtin import architecture, card, packing, questions, scenes, tokenizer, world
from engine.builtin.phrasings import Wording, capitalise, roughen
from engine.builtin.train import SHIPPED

BATCH: Final = 50
FOUR: Final = scenes.Mix(counts=(0.0, 0.0, 0.0, 1.0), crowd=0.5)


@dataclass(frozen=True)
class Case:
    """A question (picture None: about a fact), the right answer, and the group whose accuracy it counts towards."""

    group: str
    picture: scenes.Pixels | None
    question: str
    answer: str


@dataclass(frozen=True)
class Figure:
    """Right answers out of n, as a share with its Wilson 95 % interval."""

    right: int
    n: int
    accuracy: float
    low: float
    high: float


def wilson(right: int, n: int, z: float = 1.96) -> Figure:
    """The share right/n with its interval."""
    if not n:
        return Figure(0, 0, math.nan, 0.0, 1.0)
    p, spread = right / n, z * z / n
    middle, half = (p + spread / 2) / (1 + spread), z * math.sqrt(p * (1 - p) / n + spread / n / 4) / (1 + spread)
    return Figure(right, n, round(p, 4), round(max(0.0, middle - half), 4), round(min(1.0, middle + half), 4))


@torch.inference_mode()
def answers(model: Any, tok: PreTrainedTokenizerFast, asked: Sequence[tuple[scenes.Pixels | None, str]]) -> list[str]:
    """Greedy answers to (native picture or None, question), in order."""
    said = [""] * len(asked)
    alike: dict[tuple[bool, int], list[int]] = defaultdict(list)
    encoded = [tok.encode(f" {question}", add_special_tokens=False) for _, question in asked]
    for k, (picture, _) in enumerate(asked):
        alike[picture is None, len(encoded[k])].append(k)
    for (bare, _), members in alike.items():
        prefix = packing.PREFIX[:2] if bare else packing.PREFIX
        for start in range(0, len(members), BATCH):
            some = members[start : start + BATCH]
            ids = torch.tensor([[*prefix, *encoded[k], tokenizer.ASSISTANT] for k in some])
            seen = [picture for k in some if (picture := asked[k][0]) is not None]
            pixels = {} if bare else {"pixel_values": architecture.pixel_values(np.stack(seen))}
            out = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False, **pixels
            )
            for k, row in zip(some, out[:, ids.shape[1] :], strict=True):
                said[k] = str(tok.decode(row, skip_special_tokens=True)).strip()
    return said


def asked_of_scenes(
    group: str,
    kinds: Sequence[str],
    n: int,
    wording: Wording = "canonical",
    mix: scenes.Mix = scenes.PLAIN,
    conditions: scenes.Conditions = scenes.PLAIN_CONDITIONS,
) -> Iterator[Case]:
    """`n` cases of each kind, in groups "GROUP/KIND". Words other than canonical are roughened and capitalised."""
    rng = scenes.seeded("test", group)
    left = dict.fromkeys(kinds, n)
    while left:
        scene = scenes.make_scene(rng, mix=mix)
        drawn: scenes.Pixels | None = None
        for kind in rng.sample(sorted(left), min(6, len(left))):
            qa = questions.ask(scene, kind, rng, wording)
            if qa is None:
                continue
            drawn = _native(scene, conditions) if drawn is None else drawn
            question = qa.question if wording == "canonical" else capitalise(roughen(qa.question, rng), rng)
            yield Case(f"{group}/{kind}", drawn, question, qa.answer)
            left[kind] -= 1
            if not left[kind]:
                del left[kind]


def _native(scene: scenes.Scene, conditions: scenes.Conditions) -> scenes.Pixels:
    pixels = scenes.render(scene, conditions).pixels
    return pixels if conditions.scale == 1 else scenes.as_upload(pixels, 85)


def single_objects(copies: int) -> Iterator[Case]:
    """Each object alone in each drawing style, by whether training saw that drawing and by how many words the name
    has."""
    rng = scenes.seeded("test", "single objects")
    for entry in world.OBJECTS:
        for style in world.STYLES:
            held = style == entry.held_style
            for _ in range(3 * copies if held else copies):
                scene = scenes.make_scene(rng, [entry.name], held_style=held)
                thing = scene.things[0]
                thing = scenes.Thing(thing.name, thing.category, thing.left, thing.top, thing.side, style)
                pixels = scenes.render(scenes.Scene((thing,), scene.seed)).pixels
                words = "several words" if " " in entry.name else "one word"
                yield Case(
                    "drawing/held-out style" if held else f"drawing/{words}", pixels, "what is this?", entry.name
                )


def several(n: int) -> Iterator[Case]:
    """How many, where two, three or four are of one name or of one category, and other things may be there too."""
    rng = scenes.seeded("test", "several")
    for k in (2, 3, 4):
        for alike in (True, False):
            for _ in range(n):
                category = rng.choice([c for c in world.CATEGORIES if c != "drink"])
                members = [name for name in world.IN_CATEGORY[category] if world.number_of(name) != "m"]
                names = [rng.choice(members)] * k if alike else rng.sample(members, k)
                others = [name for name in world.NAMES if world.BY_NAME[name].category != category]
                names += rng.sample(others, rng.randint(0, 4 - k))
                asked = names[0] if alike else category
                rng.shuffle(names)
                question = f"how many {world.plural(asked)} are there?"
                pixels = scenes.render(scenes.make_scene(rng, names)).pixels
                group = f"several/{world.NUMBERS[k]} of one {'name' if alike else 'category'}"
                yield Case(group, pixels, question, world.NUMBERS[k])


def facts() -> Iterator[Case]:
    """Every fact by a trained template, and those with a template never used for them by that one."""
    rng = scenes.seeded("test", "facts")
    for fact in world.FACTS:
        qa = questions.fact_question(fact, rng)
        yield Case("fact/trained template", None, qa.question, qa.answer)
        if world.held_template(fact) is not None:
            qa = questions.fact_question(fact, rng, unused=True)
            yield Case("fact/template never used", None, qa.question, qa.answer)


def cases(n: int) -> Iterator[Case]:
    """Everything that is measured."""
    every = [*questions.KINDS, "twohop held"]
    yield from asked_of_scenes("canonical", every, n)
    yield from asked_of_scenes("as typed", questions.KINDS, max(1, n // 3), "loose")
    yield from asked_of_scenes("unseen words", questions.KINDS, max(1, n // 3), "unseen")
    yield from asked_of_scenes(
        "upload", ["name", "side", "count", "describe"], max(1, n // 2), conditions=scenes.Conditions(scale=4)
    )
    yield from asked_of_scenes(
        "squashed 3:2", ["name", "side", "describe"], max(1, n // 3), conditions=scenes.Conditions(squash=0.67)
    )
    yield from asked_of_scenes("four things", ["count", "countcat", "side", "describe"], max(1, n // 2), mix=FOUR)
    for noise in (20, 40, 60):
        conditions = scenes.Conditions(noise=noise)
        yield from asked_of_scenes(f"noise {noise}", ["name", "side"], max(1, n // 2), conditions=conditions)
    yield from several(max(1, n // 2))
    yield from single_objects(max(1, n // 50))
    yield from facts()


def measure(folder: Path, n: int, show: int = 0, only: str = "") -> dict[str, Figure]:
    """Figures by group (those that start with `only`), in the order of `cases`; `show` wrong answers a group are
    printed."""
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    tok = tokenizer.load(folder)
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in cases(n):
        if case.group.startswith(only):
            groups[case.group].append(case)
    figures: dict[str, Figure] = {}
    for group, members in groups.items():
        said = answers(model, tok, [(case.picture, case.question) for case in members])
        wrong = [(c.question, c.answer, s) for c, s in zip(members, said, strict=True) if c.answer != s]
        figures[group] = wilson(len(members) - len(wrong), len(members))
        print(f"{group:32s} {figures[group].accuracy:.3f}  n={len(members)}", flush=True)
        for line in random.Random(0).sample(wrong, min(show, len(wrong))):
            print("    ", *line, sep=" | ")
    return figures


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", type=int, default=150, help="questions of each kind")
    parser.add_argument("--model", type=Path, default=SHIPPED)
    parser.add_argument("--card", action="store_true", help="write figures.json and README.md beside the weights")
    parser.add_argument("--show", type=int, default=0, help="wrong answers to print for each group")
    parser.add_argument(
        "--only",
        default="",
        help="measure only groups that start with this; --card then adds to the figures that are there",
    )
    options = parser.parse_args()
    begun = time.monotonic()
    figures = measure(options.model, options.n, options.show, options.only)
    canonical = [f.accuracy for group, f in figures.items() if group.startswith("canonical/")]
    mean = sum(canonical) / max(1, len(canonical))
    print(f"mean over kinds {mean:.3f}; {time.monotonic() - begun:.0f} s")
    if options.card:
        path = options.model / "figures.json"
        before = json.loads(path.read_text(encoding="utf-8"))["figures"] if options.only else {}
        record = {"n": options.n, "figures": before | {group: asdict(figure) for group, figure in figures.items()}}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (options.model / "README.md").write_text(card.text(record), encoding="utf-8")


if __name__ == "__main__":
    main()
