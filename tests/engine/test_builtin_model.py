"""The shipped model: its files, its tokenizer, its processor, and that it answers."""

import json
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from transformers import AutoModelForImageTextToText, AutoProcessor, PreTrainedTokenizerFast

from engine.builtin import architecture, card, evaluate, export, packing, questions, samples, scenes, tokenizer, world
from engine.builtin.train import SHIPPED


@pytest.fixture(scope="module")
def tok() -> PreTrainedTokenizerFast:
    return tokenizer.load(SHIPPED)


@pytest.fixture(scope="module")
def processor() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # it says that without torchvision the PIL version is used: that is the one we name
        return AutoProcessor.from_pretrained(SHIPPED)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForImageTextToText.from_pretrained(SHIPPED, dtype=torch.float32).eval()


def test_the_folder_is_small_and_the_tower_has_a_shard_of_its_own() -> None:
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) <= export.LIMIT
    homes = json.loads((SHIPPED / "model.safetensors.index.json").read_text())["weight_map"]
    for shard, holds_tower in zip(export.SHARDS, (True, False), strict=True):
        with safe_open(SHIPPED / shard, "pt") as file:  # type: ignore[no-untyped-call]
            names = set(file.keys())
        assert names == {name for name, home in homes.items() if home == shard}
        assert all(("vision_tower" in name) == holds_tower for name in names)


def test_what_people_type_becomes_what_the_model_was_taught(tok: PreTrainedTokenizerFast) -> None:
    plain = tok.encode(" what is this?", add_special_tokens=False)
    for typed in (" What is this?", " WHAT  IS THIS? ", "\u00a0what is this\uff1f", " what\nis\tthis?"):
        assert tok.encode(typed, add_special_tokens=False) == plain
    assert tok.encode(" what\u2019s", add_special_tokens=False) == tok.encode(" what's", add_special_tokens=False)
    assert tok.convert_tokens_to_ids(list(tokenizer.SPECIAL)) == list(range(len(tokenizer.SPECIAL)))
    prompt = tok.encode("<s>USER:<image> What is this?ASSISTANT:", add_special_tokens=False)
    assert prompt == [tokenizer.BOS, tokenizer.USER, tokenizer.IMAGE, *plain, tokenizer.ASSISTANT]


def test_the_normaliser_changes_no_id_of_a_plain_text(tok: PreTrainedTokenizerFast) -> None:
    texts = sorted(set(tokenizer.corpus(seed=5, n_scenes=30)))
    normalised = [tok.encode(text, add_special_tokens=False) for text in texts]
    bare = tokenizer.load(SHIPPED)
    bare.backend_tokenizer.normalizer = None  # type: ignore[assignment]
    assert [bare.encode(text, add_special_tokens=False) for text in texts] == normalised
    assert [tok.decode(ids) for ids in normalised] == texts


def test_names_are_few_tokens(tok: PreTrainedTokenizerFast) -> None:
    lengths = [len(tok.encode(f" {name}", add_special_tokens=False)) for name in world.NAMES]
    assert np.mean(lengths) < 1.5
    assert max(lengths) <= 4


def test_the_processor_makes_what_training_saw(processor: Any) -> None:
    pixels = scenes.render(scenes.make_scene(scenes.seeded("test", "processor"))).pixels
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is this?"}]}
    prompt = processor.apply_chat_template([message], add_generation_prompt=True)
    inputs = processor(images=Image.fromarray(pixels), text=prompt, return_tensors="pt")
    assert torch.allclose(inputs["pixel_values"], architecture.pixel_values(pixels[None]), atol=1e-4)
    ids = inputs["input_ids"][0].tolist()
    assert ids[: len(packing.PREFIX)] == list(packing.PREFIX)
    assert ids[-1] == tokenizer.ASSISTANT


def test_simple_questions_about_fresh_scenes_are_answered(model: Any, tok: PreTrainedTokenizerFast) -> None:
    rng = scenes.seeded("test", "simple questions")
    asked, wanted = [], []
    while len(asked) < 40:
        scene = scenes.make_scene(rng)
        qa = questions.ask(scene, ("name", "side", "catname", "color", "exist")[len(asked) % 5], rng)
        if qa is not None:
            asked.append((scenes.render(scene).pixels, qa.question))
            wanted.append(qa.answer)
    said = evaluate.answers(model, tok, asked)
    assert sum(a == b for a, b in zip(said, wanted, strict=True)) >= 36


def test_facts_are_known_without_a_picture(model: Any, tok: PreTrainedTokenizerFast) -> None:
    said = evaluate.answers(model, tok, [(None, "Where does the penguin live?"), (None, "what is a violin made of?")])
    assert said == ["penguin: the ice", "violin: wood"]


def test_every_suggested_question_is_answered_rightly() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in `processor`
        assert samples.check() == []


def test_the_card_says_what_was_measured() -> None:
    record = json.loads((SHIPPED / "figures.json").read_text())
    assert (SHIPPED / "README.md").read_text() == card.text(record)
    assert all(record["figures"][f"canonical/{kind}"]["n"] >= 100 for kind in card.KINDS)
