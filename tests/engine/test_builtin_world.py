"""The little world: its data, its scenes and pictures, its probes and samples."""

import random
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from engine.builtin import probes, samples, scenes, world


def test_the_world_is_the_one_described() -> None:
    assert len(world.OBJECTS) == 194
    assert len(world.CATEGORIES) == 18
    assert len(world.FACTS) == 659
    assert len(world.RELATIONS) == 22
    assert all(len(forms) == 3 for forms in world.RELATIONS.values())
    assert sum(entry.held_style is not None for entry in world.OBJECTS) == 39
    for entry in world.OBJECTS:
        for style in world.STYLES:
            assert (world.WORLD_DIR / "sprites" / entry.files[style]).is_file()


@pytest.mark.parametrize(
    ("name", "article", "plural"),
    [
        ("dog", "a dog", "dogs"),
        ("owl", "an owl", "owls"),
        ("hourglass", "an hourglass", "hourglasses"),
        ("wolf", "a wolf", "wolves"),
        ("kitchen knife", "a kitchen knife", "kitchen knives"),
        ("snowman", "a snowman", "snowmen"),
        ("mouse", "a mouse", "mice"),
        ("butterfly", "a butterfly", "butterflies"),
        ("monkey", "a monkey", "monkeys"),
        ("church", "a church", "churches"),
        ("cheese", "cheese", "cheese"),
        ("scissors", "scissors", "scissors"),
        ("orange cross", "an orange cross", "orange crosses"),
    ],
)
def test_names_are_said_as_in_english(name: str, article: str, plural: str) -> None:
    assert world.article(name) == article
    assert world.plural(name) == plural


def test_a_plural_subject_changes_the_verb() -> None:
    assert world.fill("where does {x} live?", "the dog") == "where does the dog live?"
    assert world.fill("what are they?", "the jeans", plural_verb=True) == "what are they?"
    assert world.fill("what is {x} made of?", "the jeans", plural_verb=True) == "what are the jeans made of?"


def test_one_seed_gives_one_scene_and_one_picture() -> None:
    a, b, c = (scenes.make_scene(random.Random(seed)) for seed in (5, 5, 6))
    assert a == b != c
    first, second = scenes.render(a), scenes.render(b)
    assert np.array_equal(first.pixels, second.pixels)
    assert first.boxes == second.boxes


def test_boxes_enclose_the_masks_exactly_and_lie_in_the_slots() -> None:
    rng = random.Random(1)
    for _ in range(40):
        scene = scenes.make_scene(rng, mix=scenes.Mix(counts=(1, 1, 1, 1)))
        for scale in (1, 3):
            drawn = scenes.render(scene, scenes.Conditions(scale=scale))
            assert drawn.pixels.shape == (scenes.SIZE * scale, scenes.SIZE * scale, 3)
            for k, (thing, (left, top, right, bottom)) in enumerate(zip(scene.things, drawn.boxes, strict=True)):
                rows, columns = np.nonzero(drawn.mask == k + 1)
                if all(t is thing or not _touch(t, thing) for t in scene.things):
                    assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (left, top, right, bottom)
                assert thing.left * scale - 1 <= left < right <= (thing.left + thing.side) * scale + 1
                assert thing.top * scale - 1 <= top < bottom <= (thing.top + thing.side) * scale + 1


def _touch(a: scenes.Thing, b: scenes.Thing) -> bool:
    return abs(a.x - b.x) < (a.side + b.side) / 2 + 1 and abs(a.y - b.y) < (a.side + b.side) / 2 + 1


def test_slots_hardly_overlap() -> None:
    rng = random.Random(2)
    for _ in range(60):
        for a, b in combinations(scenes.make_scene(rng).things, 2):
            assert abs(a.x - b.x) >= (a.side + b.side) / 2 - 2 or abs(a.y - b.y) >= (a.side + b.side) / 2 - 2


def test_a_larger_drawing_squeezed_is_the_native_picture() -> None:
    scene = scenes.make_scene(random.Random(3), ["elephant", "red star"])
    clean = scenes.Conditions(noise=0.0)
    native = scenes.render(scene, clean).pixels.astype(float)
    squeezed = scenes.as_upload(scenes.render(scene, scenes.Conditions(noise=0.0, scale=4)).pixels, None).astype(float)
    assert np.abs(native - squeezed).mean() < 3
    other = scenes.render(scenes.make_scene(random.Random(4), ["elephant", "red star"]), clean).pixels.astype(float)
    assert np.abs(native - other).mean() > 9


def test_conditions_do_what_they_say() -> None:
    scene = scenes.make_scene(random.Random(7), ["purple square"])
    plain = scenes.render(scene, scenes.Conditions(noise=0.0)).pixels.astype(float)
    noisy = scenes.render(scene, scenes.Conditions(noise=20.0)).pixels.astype(float)
    assert 8 < np.abs(noisy - plain).mean() < 20
    left, top, right, bottom = scenes.render(scene, scenes.Conditions(squash=0.5)).boxes[0]
    assert (right - left) / (bottom - top) == pytest.approx(0.5, abs=0.08)
    blurred = scenes.render(scene, scenes.Conditions(noise=0.0, blur=2.0)).pixels.astype(float)
    assert np.abs(np.diff(blurred, axis=1)).max() < np.abs(np.diff(plain, axis=1)).max()


def test_the_held_out_drawing_is_drawn_only_on_request() -> None:
    entry = next(entry for entry in world.OBJECTS if entry.held_style)
    rng = random.Random(8)
    seen = {scenes.make_scene(rng, [entry.name]).things[0].style for _ in range(60)}
    assert seen == set(world.STYLES) - {entry.held_style}
    assert {scenes.make_scene(rng, [entry.name], held_style=True).things[0].style for _ in range(9)} == {
        entry.held_style
    }


def test_too_many_things_are_refused() -> None:
    with pytest.raises(ValueError, match="1 to 4 things, not 5"):
        scenes.make_scene(random.Random(0), ["dog"] * 5)


def test_concepts_are_all_of_the_world_with_unique_names() -> None:
    concepts = probes.concept_names()
    kinds = [concept.kind for concept in concepts]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "object": 194,
        "category": 18,
        "colour": 8,
        "shape": 6,
        "count": 4,
        "relation": 5,
    }
    assert len({concept.name for concept in concepts}) == len(concepts)


@pytest.mark.parametrize("name", ["traffic light", "sea animal", "cyan", "cross", "one", "four"])
def test_probes_express_their_concept_and_splits_share_nothing(name: str) -> None:
    splits = {split: probes.probes(name, 6, 0, split) for split in probes.SPLITS}
    for found in splits.values():
        assert len(found) == 6
        for probe in found:
            assert probe.span_text == name
            assert probe.answer.endswith(name)
            assert probe.picture.shape == (scenes.SIZE, scenes.SIZE, 3)
            assert (probe.box is None) == (probes.concept(name).kind == "count")
    again = probes.probes(name, 6, 0, "build")
    assert all(np.array_equal(a.picture, b.picture) for a, b in zip(again, splits["build"], strict=True))
    pictures = [probe.picture.tobytes() for found in splits.values() for probe in found]
    assert len(set(pictures)) == len(pictures)


def test_unknown_names_are_refused_with_near_misses() -> None:
    with pytest.raises(ValueError, match="traffic light"):
        probes.probes("trafic light", 1, 0, "build")
    with pytest.raises(ValueError, match="build, dev, test"):
        probes.probes("dog", 1, 0, "train")  # type: ignore[arg-type]


def test_samples_on_disk_are_those_that_the_code_describes() -> None:
    entries = samples.load()
    assert len(entries) >= 12
    for sample, entry in zip(samples.CHOSEN, entries, strict=True):
        assert entry == samples.record(sample)
        assert 2 <= len(entry["questions"]) <= 3
        with Image.open(samples.SAMPLES / entry["file"]) as file:
            shown = np.asarray(file.convert("RGB")).astype(float)
        assert shown.shape == (4 * scenes.SIZE, 4 * scenes.SIZE, 3)
        assert np.abs(shown - samples.draw(sample)[1].pixels).mean() < 4


def test_the_world_can_be_drawn_without_torch() -> None:
    code = "import sys; from engine.builtin import card, probes, samples; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
