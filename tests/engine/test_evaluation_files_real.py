"""Sets of files on the built-in model, end to end: what the report says is what the answers, asked one at a time and
counted here, say. The files are written here, in the published shapes."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine import evaluation
from engine.builtin import questions, scenes
from engine.contract import Question
from engine.entries import Pictures
from engine.hooks import count_hooks
from engine.local import LocalEngine

SCENES = 24
SMALL = evaluation.Settings(
    limit=6, dev=5, screen=3, build=4, errors=1, rules=("kind",), lambdas=(1.0,), positions=("all",), layers=("all",),
    levels=("cell",), control_probes=1,
)  # fmt: skip
Made = tuple[dict[str, dict[str, bytes]], Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Noisy scenes with “is there a …?”, as VQAv2, GQA and POPE write them; the pictures in a zip, in folders."""
    folder, rng = tmp_path_factory.mktemp("files"), scenes.seeded("file sets")
    asked, said, gqa, pope = list[Any](), list[Any](), dict[str, Any](), list[str]()
    with zipfile.ZipFile(folder / "pictures.zip", "w") as packed:
        for number in range(SCENES):
            scene = scenes.make_scene(rng)
            name = f"COCO_val2014_{number:012d}.jpg"
            Image.fromarray(scenes.render(scene, scenes.Conditions(noise=70)).pixels).save(folder / name, quality=95)
            packed.write(folder / name, f"val2014/{name}")
            packed.write(folder / name, f"images/{number}.jpg")
            qa = None
            while qa is None:
                qa = questions.ask(scene, "exist", rng)
            people = [qa.answer if k < 2 + number % 9 else "perhaps" for k in range(10)]
            asked.append({"question_id": number, "image_id": number, "question": qa.question})
            said.append({"question_id": number, "image_id": number, "answer_type": "yes/no",
                         "answers": [{"answer": one, "answer_id": k} for k, one in enumerate(people)]})  # fmt: skip
            gqa[str(number)] = {"imageId": str(number), "question": qa.question, "answer": qa.answer,
                                "types": {"structural": "verify"}}  # fmt: skip
            pope.append(json.dumps({"question_id": number, "image": name, "text": qa.question, "label": qa.answer}))
    asked += [{"question_id": 900, "image_id": 900, "question": "lost?"}, asked[0]]
    said.append({**said[0], "question_id": 900, "image_id": 900})
    both = (json.dumps({"questions": asked}), json.dumps({"annotations": said}))
    given = {
        "vqa": {"questions.json": both[0].encode(), "annotations.json": both[1].encode()},
        "gqa": {"gqa.json": json.dumps(gqa).encode()},
        "pope": {"pope.jsonl": "\n".join([*pope, "{"]).encode()},
    }
    return given, folder


def by_hand(answer: str, people: tuple[str, ...]) -> float:
    """VQAv2's accuracy of a word: over each nine of the ten, a third for each who says so, at most one."""
    nines = (people[:k] + people[k + 1 :] for k in range(len(people)))
    return float(np.mean([min(1.0, nine.count(answer) / 3) for nine in nines]))


def exactly(answer: str, people: tuple[str, ...]) -> float:
    return float(answer == people[0])


@pytest.mark.parametrize(("form", "score"), [("vqa", by_hand), ("gqa", exactly), ("pope", exactly)])
def test_the_baseline_is_what_single_answers_score(
    form: str, score: Callable[[str, tuple[str, ...]], float], made: Made, builtin_engine: LocalEngine
) -> None:
    given, folder = made
    settings = evaluation.file_settings(form, given[form], SMALL)
    found = evaluation.file_items(settings, form, given[form], Pictures(folder / "pictures.zip"))
    reasons = [(bad.line, bad.reason) for bad in found.bad]
    assert [line for line, _ in reasons] == {"vqa": [SCENES + 1, SCENES + 2], "gqa": [], "pope": [SCENES + 1]}[form]
    if form == "vqa":
        assert "no picture" in reasons[0][1]
        assert "question_id 0 is that of number 1" in reasons[1][1]
    parts: dict[str, Any] = {}
    told: list[tuple[int, int]] = []

    def between(done: int, whole: int) -> None:
        told.append((done, whole))
        assert not count_hooks(builtin_engine.loaded.model), "whoever uses the engine meanwhile finds nothing on it"

    result = evaluation.run(builtin_engine, found.items, settings, between, parts.__setitem__)
    (row,) = result.kinds
    test = [item for item in found.items if item.split == "test"]
    alone = []
    for item in test:
        name = f"COCO_val2014_{int(item.id) - 1:012d}.jpg"
        picture = np.asarray(Image.open(folder / name).convert("RGB"))
        alone.append(builtin_engine.generate_only(Question(picture, item.question, 32)).text)
    assert row.n == len(test)
    expected = np.mean([score(answer, item.answers) for answer, item in zip(alone, test, strict=True)])
    assert row.arms["baseline"].accuracy == pytest.approx(expected)
    assert row.delta.value == pytest.approx(row.arms["modulated"].accuracy - row.arms["baseline"].accuracy)
    assert row.delta.low <= row.delta.value <= row.delta.high
    assert told[-1][0] == told[-1][1]
    half = dict(list(parts.items())[: len(parts) // 2])
    assert evaluation.to_json(evaluation.run(builtin_engine, found.items, settings, done=half)) == evaluation.to_json(
        result
    )


def test_splits_share_no_picture(made: Made) -> None:
    given, folder = made
    settings = evaluation.file_settings("vqa", given["vqa"], SMALL)
    whole = Pictures(folder / "pictures.zip")
    items = evaluation.file_items(settings, "vqa", given["vqa"], whole).items
    names = {
        split: {item.picture.args[1] for item in items if item.split == split} for split in ("build", "dev", "test")
    }  # type: ignore[attr-defined]
    assert not names["build"] & names["dev"]
    assert not (names["build"] | names["dev"]) & names["test"]
