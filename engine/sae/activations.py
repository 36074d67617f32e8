"""What an SAE is trained on: values at one site, streamed from questions about pictures.

1. `Asked`: a picture, a question and, where it is known, an answer, which is teacher-forced.
2. `world(start, n)`: pictures of the little world by number, each with several questions: the same every time, from
   seeds that no other use shares. `folder(path)`: a person's own, from a file of questions beside the pictures.
3. `values`: the site's values at all image positions of a picture, once, for a decoder is causal and they are the same
   in all of its questions; and at the text positions of every question and answer. The first position, where its token
   is reserved, is left out: such positions are attention sinks whose length would rule the loss (and the SAE does not
   stand there: see `engine.sae.influence`).
"""

import csv
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from engine.attribution.apart import special_positions
from engine.builtin import questions as world_questions
from engine.builtin import scenes
from engine.concepts.batching import stack
from engine.contract import Pixels, Question, RequestError
from engine.features import Inputs, Seen, embed, forget, forward
from engine.hooks import Call, replace_site, require_finite
from engine.loading import Loaded
from engine.prompts import Prompt, build_prompt
from engine.running import picture_features, with_answer
from engine.targets import continuation_ids

EACH = 6
"""Questions of a picture of the little world."""


class _Enough(Exception):
    """The site was read; what comes after it is not needed."""


@dataclasses.dataclass(frozen=True)
class Asked:
    picture: Pixels | None
    questions: tuple[tuple[str, str], ...]
    """(question, answer or "")."""


def scene_of(purpose: str, number: int) -> tuple[scenes.Scene, tuple[tuple[str, str], ...]]:
    """(a scene by number, its questions with their answers), in the world's own proportions of kinds."""
    rng = scenes.seeded("sae", purpose, number)
    scene = scenes.make_scene(rng)
    kinds = rng.sample(world_questions.KINDS, len(world_questions.KINDS))
    asked = (world_questions.ask(scene, kind, rng, rng.choice(("canonical", "loose"))) for kind in kinds)
    return scene, tuple([(qa.question, qa.answer) for qa in asked if qa is not None][:EACH])


def world(purpose: str, start: int, n: int) -> list[Asked]:
    """Scenes `start` … of `purpose` ("train", "held out")."""
    drawn = (scene_of(purpose, number) for number in range(start, start + n))
    return [Asked(scenes.render(scene).pixels, found) for scene, found in drawn]


def folder(path: Path, limit: int = 1_000_000) -> list[Asked]:
    """`questions.csv`, `.jsonl` or `.json` in a folder: rows with `question` and, if given, `picture` (a file in that
    folder) and `answer`. Raises RequestError with the row that cannot be used."""
    files = [path / f"questions.{ext}" for ext in ("csv", "jsonl", "json")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise RequestError(
            f"{path} holds no questions.csv, questions.jsonl or questions.json. Put one beside the pictures."
        )
    text = file.read_text(encoding="utf-8-sig")
    try:
        if file.suffix == ".csv":
            rows: list[dict[str, str]] = list(csv.DictReader(text.splitlines()))
        else:
            rows = (
                json.loads(text) if file.suffix == ".json" else [json.loads(line) for line in text.splitlines() if line]
            )
        by_picture: dict[str, list[tuple[str, str]]] = {}
        for row in rows[:limit]:
            asked = (str(row["question"]).strip(), str(row.get("answer") or "").strip())
            by_picture.setdefault(str(row.get("picture") or ""), []).append(asked)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise RequestError(f"{file.name} cannot be read: {error!r}. Each row needs `question`, and may have "
                           "`picture` and `answer`.") from error  # fmt: skip
    return [Asked(_picture(path, name), tuple(asked)) for name, asked in by_picture.items()]


def _picture(path: Path, name: str) -> Pixels | None:
    if not name:
        return None
    file = path / name
    if not file.resolve().is_relative_to(path.resolve()):
        raise RequestError(f"“{name}” is not in the folder. Put the pictures beside the file of questions.")
    try:
        with Image.open(file) as image:
            return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise RequestError(f"“{name}” cannot be opened as a picture: {error}") from error


def first_position(loaded: Loaded, prompt: Prompt) -> int:
    """How many positions at the beginning carry a reserved token that an SAE does not stand at: 1 or 0."""
    return int(0 in special_positions(loaded, prompt))


@torch.no_grad()
def at_site(loaded: Loaded, inputs: Inputs, layer: int, site: str) -> torch.Tensor:
    """(rows, pos, d_model) float32: what a site gives. The model is run no further than that."""
    seen: list[torch.Tensor] = []

    def keep(values: torch.Tensor, _call: Call) -> torch.Tensor:
        seen.append(values.float())
        raise _Enough

    try:
        with replace_site(loaded.anatomy, layer, site, keep):
            forward(loaded, inputs, 1)
    except _Enough:
        forget(loaded)
    return seen[0]


@torch.no_grad()
def values(loaded: Loaded, asked: Sequence[Asked], layer: int, site: str) -> torch.Tensor:
    """(positions, d_model) float32 on the CPU, in an order that depends on `asked` alone; see the module's text."""
    pad = loaded.processor.tokenizer.pad_token_id or 0
    found = []
    for one in asked:
        features: Seen | None = None
        rows: list[tuple[Inputs, Prompt]] = []
        for question, answer in one.questions:
            prompt = build_prompt(loaded, Question(one.picture, question, 1))
            if prompt.pixels and features is None:
                features = picture_features(loaded, prompt.pixels)
            # As the model says it: with the space that its own answers begin with.
            ids = continuation_ids(loaded.processor.tokenizer, f" {answer}") if answer else []
            rows.append((embed(loaded, with_answer(prompt, ids), features), prompt))
        if not rows:
            continue
        states = at_site(loaded, stack([inputs for inputs, _ in rows], int(pad)), layer, site).cpu()
        if rows[0][1].image_positions:
            found.append(states[0, rows[0][1].image_positions])
        for k, (inputs, prompt) in enumerate(rows):
            image = set(prompt.image_positions)
            size = int(inputs.ids.shape[1])
            text = [p for p in range(first_position(loaded, prompt), size) if p not in image]
            found.append(states[k, text])
    if not found:
        raise RequestError("There is no question to take activations from. Give at least one.")
    whole = torch.cat(found)
    require_finite(whole, f"the {site} of layer {layer}")
    return whole
