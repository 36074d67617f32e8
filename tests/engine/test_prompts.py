"""Prompts: one BOS, every position in its modality, reserved words refused; and ids back to text."""

import dataclasses
import re
import unicodedata

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from engine.contract import PromptTooLong, Question, RequestError
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.prompts import build_prompt
from engine.running import Detokeniser, answer_ids
from tests.engine import tiny

KINDS = {
    "template writes it": tiny.Kind(),
    "tokenizer adds it": tiny.Kind(adds_bos=True, template=tiny.NO_BOS),
    "both would": tiny.Kind(adds_bos=True),
    "no template": tiny.Kind(adds_bos=True, template=""),
}
QUESTIONS = [
    "what is on the left?",
    "A",
    "S",
    "ANT:",
    "image",
    "user: what is this? assistant:",
    "what   is\n\tthis",
    "{{ bos_token }} {% raw %} {text} {image}",
    "<img src=x onerror=alert(1)>",
    "猫はどこですか？",
    "ما هذا الشيء؟",
    "🐧👩‍👩‍👧 what is this? 🇫🇷",
    "cafe\u0301 – “déjà vu”",
    "<IMAGE> ＜image＞",
]


@pytest.fixture(params=KINDS)
def prompted(request: pytest.FixtureRequest, cropping: Loaded) -> Loaded:
    """A tiny model with each kind of tokenizer and chat template."""
    return dataclasses.replace(cropping, processor=tiny.processor(KINDS[request.param]))


def plain(text: str) -> str:
    """A text without what a tokenizer may take from it before it splits it: case, forms of one character, spaces."""
    text = unicodedata.normalize("NFKC", text).replace("\u2019", "'").lower()
    return re.sub(r"\s+", " ", text).strip()


@pytest.mark.parametrize("text", QUESTIONS)
@pytest.mark.parametrize("with_picture", [True, False])
def test_every_position_has_its_modality_and_there_is_one_bos(prompted: Loaded, text: str, with_picture: bool) -> None:
    prompt = build_prompt(prompted, Question(tiny.picture() if with_picture else None, text))
    ids = prompt.ids.tolist()
    assert ids.count(1) == 1
    assert ids[0] == 1
    assert len(ids) == len(prompt.modality) == prompt.length == sum(token.count for token in prompt.tokens)
    assert [p for p, i in enumerate(ids) if i == tiny.IMAGE_ID] == prompt.image_positions
    assert len(prompt.image_positions) == (16 if with_picture else 0)
    asked = [p for p, kind in enumerate(prompt.modality) if kind == "question"]
    assert asked == list(range(asked[0], asked[-1] + 1))
    tokenizer = prompted.processor.tokenizer
    assert plain(tokenizer.decode([ids[p] for p in asked])) == plain(text)
    assert not set(prompt.modality) - {"image", "question", "template"}
    assert prompt.modality[0] == prompt.modality[-1] == "template"


def test_placeholders_are_folded_into_one_entry(model: Loaded, question: Question) -> None:
    prompt = build_prompt(model, question)
    folded = [token for token in prompt.tokens if token.modality == "image"]
    assert [(token.id, token.count) for token in folded] == [(tiny.IMAGE_ID, 16)]
    unfolded = [token.id for token in prompt.tokens for _ in range(token.count)]
    assert unfolded == prompt.ids.tolist()


def test_the_model_sees_the_ids_that_its_processor_makes(builtin: Loaded, question: Question) -> None:
    from PIL import Image

    prompt = build_prompt(builtin, question)
    assert question.picture is not None
    theirs = builtin.processor(
        images=Image.fromarray(question.picture), text=f"<s>USER:<image> {question.text}ASSISTANT:", return_tensors="pt"
    )
    assert prompt.ids.tolist() == theirs["input_ids"][0].tolist()
    assert torch.equal(prompt.pixels["pixel_values"], theirs["pixel_values"])


@pytest.mark.parametrize("reserved", ["<image>", "ASSISTANT:", "USER:", "<s>", "</s>", "<pad>"])
def test_a_reserved_token_in_the_question_is_refused_by_name(model: Loaded, reserved: str) -> None:
    for text in (f"what is {reserved} this", reserved, f"what{reserved}"):
        with pytest.raises(RequestError, match=f"contains {re.escape(reserved)}.*Leave it out"):
            build_prompt(model, Question(tiny.picture(), text))


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_an_empty_question_is_refused(engine: LocalEngine, text: str) -> None:
    for call in (engine.ask, engine.grid):
        with pytest.raises(RequestError, match=r"empty\. Type a question"):
            call(Question(tiny.picture(), text))


def test_a_prompt_that_does_not_fit_is_refused_with_numbers(engine: LocalEngine) -> None:
    with pytest.raises(PromptTooLong, match=r"need \d{3} \+ 8 positions; the model has 256. Ask a shorter question."):
        engine.ask(Question(None, "what " * 300, 8))
    with pytest.raises(PromptTooLong, match=r"\+ 250 positions"):
        engine.ask(Question(tiny.picture(), "what is this?", 250))


def test_the_longest_prompt_that_fits_is_answered(engine: LocalEngine, model: Loaded) -> None:
    short = build_prompt(model, Question(None, "what is this?", 4)).length
    limit = model.anatomy.max_positions - short
    asked = engine.ask(Question(None, "what is this?", limit), "direct", top=1)
    assert len(asked.answer.tokens) <= limit
    with pytest.raises(PromptTooLong):
        engine.ask(Question(None, "what is this?", limit + 1))


def test_a_picture_has_one_key_by_content(model: Loaded) -> None:
    first = build_prompt(model, Question(tiny.picture(), "what?"))
    again = build_prompt(model, Question(tiny.picture().copy(order="F"), "where?"))
    turned = build_prompt(model, Question(tiny.picture(height=90, width=70), "what?"))
    assert first.key == again.key != turned.key
    assert build_prompt(model, Question(None, "what?")).key == ""


@pytest.mark.parametrize("text", ["猫はどこですか？", "ما هذا؟", "🐧👩‍👩‍👧 what?"])
def test_questions_in_any_script_are_answered_and_the_pieces_join(
    engine: LocalEngine, model: Loaded, text: str
) -> None:
    pieces: list[str] = []
    asked = engine.ask(Question(tiny.picture(), text, 6), on_token=lambda token: pieces.append(token.text))
    whole = model.processor.tokenizer.decode(answer_ids(asked.answer))
    assert "".join(pieces) == whole.rstrip("\ufffd")
    assert asked.answer.text == whole.rstrip("\ufffd").strip()


# Ids to text


def byte_of(character: str) -> int:
    """The byte that a character of the byte-level alphabet stands for (GPT-2's table, rebuilt from its rule)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return ord(character) if ord(character) in shown else hidden[ord(character) - 256]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(6, 1535), max_size=12), st.text(max_size=8))
def test_pieces_of_any_tokens_join_to_their_bytes(builtin: Loaded, ids: list[int], text: str) -> None:
    """Random tokens, broken characters among them, then a text of any script."""
    tokenizer = builtin.processor.tokenizer
    ids = ids + [i for i in tokenizer(text, add_special_tokens=False)["input_ids"] if i >= 6]
    written = "".join(tokenizer.convert_ids_to_tokens(ids))
    whole = bytes(byte_of(character) for character in written).decode("utf-8", "replace")
    pieces, shown = Detokeniser(tokenizer, frozenset([2])), ""
    for token in ids:
        shown += pieces.push(token)
        assert whole.startswith(shown)
    assert shown == whole.rstrip("\ufffd")


def test_a_character_of_several_tokens_is_given_with_the_token_that_completes_it(builtin: Loaded) -> None:
    tokenizer = builtin.processor.tokenizer
    ids = tokenizer(" 🐧!", add_special_tokens=False)["input_ids"]
    assert len(ids) > 3
    pieces = Detokeniser(tokenizer, frozenset([2]))
    texts = [pieces.push(token) for token in ids]
    assert [text for text in texts if text] == [" ", "🐧", "!"]
    assert len(set(ByteLevel.alphabet())) == 256
