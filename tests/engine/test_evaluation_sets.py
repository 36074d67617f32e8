"""Sets of questions: the built-in world's and people's files."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine import evaluation
from engine.builtin import scenes, world
from engine.entries import Pictures, numbered
from engine.errors import RequestError, UnknownName
from engine.evaluation import builtin, files

SMALL = evaluation.Settings(dev=3, limit=4, build=2, screen=2)


def seeds_of(items: tuple[evaluation.Item, ...]) -> dict[str, set[int]]:
    """Scene seeds by split: a scene's seed makes its picture."""
    found: dict[str, set[int]] = {"build": set(), "dev": set(), "test": set()}
    for item in items:
        found[item.split].add(item.picture.args[0].seed)  # type: ignore[attr-defined]
    return found


def test_the_builtin_set_has_every_kind_in_every_condition_that_fits() -> None:
    items = evaluation.builtin_items(SMALL).items
    cells = {item.cell for item in items}
    assert {kind for kind, _ in cells} == set(evaluation.BUILTIN_KINDS)
    assert {condition for _, condition in cells} == set(evaluation.BUILTIN_CONDITIONS)
    assert ("name", "four things") not in cells
    assert ("color", "held style") not in cells
    for cell in cells:
        here = [item.split for item in items if item.cell == cell]
        assert [here.count(split) for split in ("build", "dev", "test")] == [2, 3, 4]


def test_splits_share_no_scene_and_a_seed_reproduces() -> None:
    items = evaluation.builtin_items(SMALL).items
    seeds = seeds_of(items)
    assert not seeds["build"] & seeds["dev"]
    assert not seeds["build"] & seeds["test"]
    assert not seeds["dev"] & seeds["test"]
    assert evaluation.builtin_items(SMALL).items == items
    again = evaluation.builtin_items(SMALL).items
    for one, other in zip(items[::97], again[::97], strict=True):
        np.testing.assert_array_equal(one.picture(), other.picture())
    reseeded = evaluation.builtin_items(evaluation.Settings(dev=3, limit=4, build=2, screen=2, seed=1)).items
    assert not seeds_of(reseeded)["test"] & seeds["test"]


def test_more_questions_begin_with_the_same_ones() -> None:
    few = evaluation.Settings(dev=2, limit=2, build=1, kinds=("name",), conditions=("blur",))
    many = evaluation.Settings(dev=5, limit=5, build=1, kinds=("name",), conditions=("blur",))
    assert set(evaluation.builtin_items(few).items) <= set(evaluation.builtin_items(many).items)


def test_hard_pictures_are_hard() -> None:
    rng = scenes.seeded("evaluation test")
    scene = scenes.make_scene(rng, ["penguin"])
    drawn = scenes.render(scene)
    left, top, right, bottom = drawn.boxes[0]
    changed = (builtin.covered(drawn, scene.seed) != drawn.pixels).any(-1)
    inside = changed[top:bottom, left:right].mean()
    assert 0.4 < inside <= 0.6
    assert changed.sum() == changed[top:bottom, left:right].sum()
    items = evaluation.builtin_items(evaluation.Settings(dev=20, limit=1, build=1, kinds=("name",))).items
    shown = {c: [i.picture.args[0].things[0] for i in items if i.condition == c] for c in evaluation.BUILTIN_CONDITIONS}  # type: ignore[attr-defined]
    assert max(thing.side for thing in shown["small"]) < min(92 * 0.5, max(thing.side for thing in shown["easy"]))
    assert all(thing.style == world.BY_NAME[thing.name].held_style for thing in shown["held style"])
    assert all(thing.left >= 0 and thing.left + thing.side <= scenes.SIZE for thing in shown["small"])


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UnknownName, match="nmae"):
        evaluation.builtin_items(evaluation.Settings(kinds=("nmae",)))


# Files


def png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), (10, 200, 30)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def pictures(tmp_path: Path) -> Pictures:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a.png", "b.png", "n161.jpg", "COCO_val2014_000000000042.jpg"):
        (folder / name).write_bytes(png())
    return Pictures(folder)


def read(form: str, given: dict[str, bytes], pictures: Pictures | None, **more: Any) -> evaluation.ItemSet:
    settings = evaluation.file_settings(form, given, evaluation.Settings(**more))
    return evaluation.file_items(settings, form, given, pictures)


def test_a_table_keeps_good_lines_and_reports_bad_ones(pictures: Pictures) -> None:
    table = (
        b"picture,question,answer,kind\na.png,what?,dog,thing\nb.png,,cat,thing\nmissing.png,what?,cat,thing\n"
        b"b.png,how many?,2,count\na.png,too,few\n../x.png,what?,cat,thing\n"
    )
    found = read("table", {"set.csv": table}, pictures)
    assert sorted((item.id, item.kind, item.answers) for item in found.items) == [
        ("2", "thing", ("dog",)),
        ("5", "count", ("2",)),
    ]
    assert [bad.line for bad in found.bad] == [3, 4, 6, 7]
    assert "'question' is missing" in found.bad[0].reason
    assert "no picture" in found.bad[1].reason
    assert "fields" in found.bad[2].reason
    assert "outside" in found.bad[3].reason
    shown = found.items[0].picture()
    assert shown is not None
    assert shown.shape == (6, 8, 3)


def test_json_lines_and_a_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        archive.writestr("a.png", png())
    lines = b'{"picture": "a.png", "question": "what?", "answer": "dog"}\nnot json\n[1]\n'
    found = read("table", {"set.jsonl": lines}, Pictures(tmp_path / "p.zip"))
    assert [item.question for item in found.items] == ["what?"]
    assert [bad.line for bad in found.bad] == [2, 3]


def test_vqa_keeps_all_ten_answers(pictures: Pictures) -> None:
    questions = {
        "questions": [
            {"question_id": 1, "image_id": 42, "question": "Is it?"},
            {"question_id": 2, "image_id": 42, "question": "And?"},
        ]
    }
    answers = [{"answer": "yes"}] * 7 + [{"answer": "no"}] * 3
    annotations = {"annotations": [{"question_id": 1, "image_id": 42, "answer_type": "yes/no", "answers": answers}]}
    given = {"a.json": json.dumps(annotations).encode(), "q.json": json.dumps(questions).encode()}
    found = read("vqa", given, pictures)
    assert [(item.kind, len(item.answers)) for item in found.items] == [("yes/no", 10)]
    assert [(bad.line, "annotation" in bad.reason) for bad in found.bad] == [(2, True)]
    assert evaluation.file_settings("vqa", given, evaluation.Settings()).metric == "vqa"


def test_a_question_counts_once(pictures: Pictures) -> None:
    """Copies would make intervals narrow that are not."""
    asked = [
        {"question_id": 1, "image_id": 42, "question": "Is it?"},
        {"question_id": 1, "image_id": 42, "question": "Is it not?"},
        {"question_id": 2, "image_id": 42, "question": "Is it?"},
    ]
    said = [{"question_id": k, "answers": [{"answer": "yes"}] * 10} for k in (1, 2)]
    given = {"q": json.dumps({"questions": asked}).encode(), "a": json.dumps({"annotations": said}).encode()}
    found = read("vqa", given, pictures)
    assert [item.id for item in found.items] == ["1"]
    assert [bad.line for bad in found.bad] == [2, 3]
    assert "question_id 1 is that of number 1" in found.bad[0].reason
    assert "asked already in number 1" in found.bad[1].reason
    kinds = b"question,answer,kind\nWhat?,dog,a\nWhat?,dog,b\nWhat?,dog,a\n"
    found = read("table", {"t.csv": kinds}, None)
    assert (len(found.items), [bad.line for bad in found.bad]) == (2, [4]), "of another kind it is another question"


def test_pictures_lie_in_folders_that_no_line_names(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        for name in (
            "train2014/COCO_train2014_000000000007.jpg", "val2014/COCO_val2014_000000000042.jpg", "images/7.jpg",
            "images/n161.jpg", "a/twice.png", "b/twice.png", "__MACOSX/images/._COCO_val2014_000000000042.jpg",
            "one/two/three/four/deep.png",
        ):  # fmt: skip
            archive.writestr(name, png())
    seen = Pictures(tmp_path / "p.zip")
    assert numbered(seen, 7) == "COCO_train2014_000000000007.jpg"
    assert numbered(seen, 42) == "COCO_val2014_000000000042.jpg"
    assert numbered(seen, 8) == "val2014/COCO_val2014_000000000008.jpg".partition("/")[2]
    assert numbered(None, 8) == "COCO_val2014_000000000008.jpg"
    for name in ("COCO_val2014_000000000042.jpg", "n161.jpg", "images/n161.jpg", "four/deep.png", "b/twice.png"):
        assert seen.open(name) == png()
    for name in ("twice.png", "deep.png", "._COCO_val2014_000000000042.jpg", "161.jpg"):
        with pytest.raises(RequestError, match="no picture"):
            seen.check(name)


def test_gqa_and_pope(pictures: Pictures) -> None:
    gqa = {"q7": {"imageId": "n161", "question": "What?", "answer": "dog", "types": {"structural": "query"}}, "q8": 3}
    found = read("gqa", {"gqa.json": json.dumps(gqa).encode()}, pictures)
    assert [(item.kind, item.answers) for item in found.items] == [("query", ("dog",))]
    assert [bad.line for bad in found.bad] == [2]
    pope = b'{"question_id": 1, "image": "a.png", "text": "Is there a dog?", "label": "yes"}\n'
    pope += b'{"image": "a.png", "text": "And?", "label": "maybe"}\n'
    found = read("pope", {"pope.json": pope}, pictures)
    assert [(item.question, item.answers) for item in found.items] == [("Is there a dog?", ("yes",))]
    assert "maybe" in found.bad[0].reason


def test_a_picture_is_in_one_split_only_and_splits_follow_the_seed() -> None:
    names = [f"{k}.jpg" for k in range(400)]
    splits = [files.split_of(0, name) for name in names]
    assert splits == [files.split_of(0, name) for name in names]
    assert splits != [files.split_of(1, name) for name in names]
    assert 90 < splits.count("build") < 150
    assert 50 < splits.count("dev") < 110


def test_the_limit_counts_by_kind_and_split() -> None:
    lines = "question,answer,kind\n" + "".join(f"q {k},a,{'x' if k % 2 else 'y'}\n" for k in range(300))
    found = read("table", {"t.csv": lines.encode()}, None, limit=10, dev=5, build=1)
    for kind in ("x", "y"):
        assert sum(item.kind == kind and item.split == "test" for item in found.items) == 10
        assert sum(item.kind == kind and item.split == "dev" for item in found.items) == 5
    with pytest.raises(UnknownName, match="z"):
        evaluation.file_items(evaluation.Settings(kinds=("z",)), "table", {"t.csv": lines.encode()}, None)


def test_a_file_of_the_wrong_shape_is_refused_with_what_would_be_right() -> None:
    with pytest.raises(RequestError, match="takes 2 file"):
        evaluation.file_settings("vqa", {"q.json": b"{}"}, evaluation.Settings())
    with pytest.raises(RequestError, match="'questions'"):
        read("vqa", {"q.json": b"{}", "a.json": b"{}"}, None)
    with pytest.raises(RequestError, match="columns question and answer"):
        read("table", {"t.csv": b"a,b\n1,2\n"}, None)
    with pytest.raises(UnknownName, match="okvqa"):
        evaluation.file_settings("okvqa", {"q.json": b"{}"}, evaluation.Settings())
