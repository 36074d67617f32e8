"""Sample pictures:  python -m engine.builtin.samples [--check]

A dozen scenes from seeds that training never uses, drawn at four times the native size, each with questions that the
shipped model answers rightly (--check asks them the way an upload is asked). `samples.json` lists them: name, file,
alt text, questions with their answers, and the things with their boxes in pixels of the file.  Torch-free, save for
--check."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from PIL import Image

from engine.builtin import questions, scenes, world

SAMPLES: Final = Path(__file__).parent / "samples"
MODEL: Final = Path(__file__).parent / "model"
DRAWN: Final = scenes.Conditions(noise=0.0, jitter=0.0, scale=4)


@dataclass(frozen=True)
class Sample:
    """The things to draw, which of the seed's scenes to take, and the questions to suggest, each with its answer."""

    name: str
    things: tuple[str, ...]
    take: int
    asked: tuple[tuple[str, str], ...]


CHOSEN: Final = (
    Sample(
        "penguin",
        ("penguin",),
        3,
        (("What is this?", "penguin"), ("Where does it live?", "penguin: the ice"), ("Is there a bird?", "yes")),
    ),
    Sample(
        "traffic light",
        ("traffic light",),
        1,
        (
            ("What is this?", "traffic light"),
            ("What is it made of?", "traffic light: metal"),
            ("Is this a stop sign?", "no"),
        ),
    ),
    Sample(
        "fire truck",
        ("fire truck", "police car"),
        2,
        (
            ("What is at the bottom?", "fire truck"),
            ("Who drives the vehicle at the top?", "police car: a police officer"),
            ("How many vehicles are there?", "two"),
        ),
    ),
    Sample(
        "polar bear",
        ("polar bear", "penguin"),
        1,
        (
            ("Which animal is this?", "polar bear"),
            ("What is above the polar bear?", "penguin"),
            ("Describe the picture.", "a polar bear and a penguin"),
        ),
    ),
    Sample(
        "breakfast",
        ("croissant", "coffee"),
        0,
        (
            ("What do you see?", "coffee and a croissant"),
            ("Which country does the food come from?", "croissant: france"),
            ("What is on the left?", "coffee"),
        ),
    ),
    Sample(
        "music",
        ("guitar", "trumpet", "drum"),
        4,
        (("How many instruments are there?", "three"), ("What is on the left?", "drum"), ("Is there a bell?", "no")),
    ),
    Sample(
        "circle and square",
        ("red circle", "blue square"),
        3,
        (
            ("What color is the circle?", "red"),
            ("What shape is the blue one?", "square"),
            ("What is to the left of the red circle?", "blue square"),
        ),
    ),
    Sample(
        "three shapes",
        ("yellow star", "green triangle", "purple diamond"),
        4,
        (
            ("Which shape is yellow?", "star"),
            ("How many shapes are there?", "three"),
            ("Where is the yellow star?", "right"),
        ),
    ),
    Sample(
        "two dogs",
        ("dog", "dog", "cat"),
        4,
        (
            ("How many dogs are there?", "two"),
            ("Describe the picture.", "a cat, a dog and a dog"),
            ("Is there a wolf?", "no"),
        ),
    ),
    Sample(
        "garden",
        ("sunflower", "bee", "butterfly"),
        2,
        (
            ("What is the name of the plant?", "sunflower"),
            ("How many bugs are there?", "two"),
            ("What is on the left?", "butterfly"),
        ),
    ),
    Sample(
        "space",
        ("rocket", "moon", "flying saucer"),
        3,
        (
            ("What is in the picture?", "a flying saucer, a moon and a rocket"),
            ("Is there a rocket?", "yes"),
            ("Where is the flying saucer?", "top left"),
        ),
    ),
    Sample(
        "birthday",
        ("birthday cake", "gift box"),
        2,
        (
            ("What is next to the gift box?", "birthday cake"),
            ("How does the food taste?", "birthday cake: sweet"),
            ("Where is the birthday cake?", "bottom right"),
        ),
    ),
    Sample(
        "owl and star",
        ("orange star", "owl"),
        2,
        (("Which bird is this?", "owl"), ("What color is the star?", "orange"), ("Is there a parrot?", "no")),
    ),
    Sample(
        "farm",
        ("cow", "sheep", "tractor"),
        2,
        (
            ("Describe the picture.", "a sheep, a tractor and a cow"),
            ("What is at the bottom?", "tractor"),
            ("How many animals are there?", "two"),
        ),
    ),
)


def draw(sample: Sample) -> tuple[scenes.Scene, scenes.Picture]:
    """The sample's scene and its picture at four times the native size."""
    scene = scenes.make_scene(scenes.seeded("sample", sample.name, sample.take), list(sample.things))
    return scene, scenes.render(scene, DRAWN)


def alt_text(scene: scenes.Scene) -> str:
    """What the picture shows, for someone who does not see it."""
    said = questions.describe(scene) or ", ".join(world.article(thing.name) for thing in scene.things)
    return said[:1].upper() + said[1:] + "."


def record(sample: Sample) -> dict[str, Any]:
    """The sample's entry in samples.json."""
    scene, picture = draw(sample)
    return {
        "name": sample.name,
        "file": sample.name.replace(" ", "-") + ".webp",
        "alt": alt_text(scene),
        "questions": [{"question": question, "answer": answer} for question, answer in sample.asked],
        "things": [{"name": t.name, "box": list(box)} for t, box in zip(scene.things, picture.boxes, strict=True)],
    }


def make(folder: Path = SAMPLES) -> list[dict[str, Any]]:
    """Write the pictures and samples.json; return the entries."""
    folder.mkdir(exist_ok=True)
    entries = [record(sample) for sample in CHOSEN]
    for sample, entry in zip(CHOSEN, entries, strict=True):
        Image.fromarray(draw(sample)[1].pixels).save(folder / entry["file"], quality=95, method=6)
    (folder / "samples.json").write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return entries


def load(folder: Path = SAMPLES) -> list[dict[str, Any]]:
    """The entries of samples.json."""
    entries: list[dict[str, Any]] = json.loads((folder / "samples.json").read_text(encoding="utf-8"))
    return entries


def check(folder: Path = SAMPLES, model_folder: Path = MODEL) -> list[str]:
    """Ask the model every suggested question through the saved processor; a line for each wrong answer."""
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(model_folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(model_folder)
    wrong = []
    for entry in load(folder):
        with Image.open(folder / entry["file"]) as file:
            picture = file.convert("RGB")
        for item in entry["questions"]:
            message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": item["question"]}]}
            prompt = processor.apply_chat_template([message], add_generation_prompt=True)
            inputs = processor(images=picture, text=prompt, return_tensors="pt")
            with torch.inference_mode():
                out = model.generate(
                    input_ids=inputs["input_ids"],
                    attention_mask=inputs["attention_mask"],
                    pixel_values=inputs["pixel_values"],
                    max_new_tokens=40,
                    do_sample=False,
                )
            said = processor.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()
            if said != item["answer"]:
                wrong.append(f"{entry['name']}: {item['question']} {said!r}, not {item['answer']!r}")
    return wrong


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only ask the shipped model the suggested questions")
    lines = check() if parser.parse_args().check else [f"{len(make())} samples in {SAMPLES.name}/"]
    print(*lines, sep="\n")
    raise SystemExit(bool(lines) and parser.parse_args().check)


if __name__ == "__main__":
    main()
