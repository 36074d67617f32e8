"""Text strips: tokens as text, where a character takes several tokens: emoji, CJK, right-to-left scripts.

Three kinds of tokenizer are built here, with few or no merges, so that nearly every such character is split: byte-level
as GPT-2's, byte-level behind a normaliser as Qwen's, and SentencePiece's way with a fallback to bytes.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import LlavaProcessor, PreTrainedTokenizerFast

from engine.contract import PromptToken, Question
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.pieces import alone, pieces_of
from engine.prompts import build_prompt
from engine.running import Detokeniser
from tests.engine import tiny

SPECIAL = ["<pad>", "<s>", "</s>", "<image>"]
TEXTS = [
    "what is on the left?",
    "🐧👩‍👩‍👧 what is this? 🇫🇷",
    "猫はどこですか？右の絵",
    "ما هذا الشيء؟ מה זה",
    "é 🐧é猫 a猫b",
    "नमस्ते, ประเทศ",
    "🐧",
]


def bytes_of(text: str) -> list[str]:
    """A text's bytes in the byte-level alphabet."""
    ((split, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return list(split)


def byte_level(normaliser: Any = None) -> Tokenizer:
    """The 256 bytes, and merges that join bytes of two characters and the first three of a penguin."""
    vocabulary = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    penguin, cat = bytes_of("🐧"), bytes_of("猫は")
    merges = [(penguin[0], penguin[1]), (penguin[0] + penguin[1], penguin[2]), (cat[2], cat[3])]
    vocabulary += ["".join(merge) for merge in merges]
    made = Tokenizer(models.BPE({token: k for k, token in enumerate(vocabulary)}, merges))
    made.normalizer = normaliser
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def sentence_piece() -> Tokenizer:
    """Latin letters and ▁; every other character as its bytes."""
    letters = [chr(code) for code in range(33, 127)]
    vocabulary = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters, "▁w", "▁a"]
    merges = [("▁", "w"), ("▁", "a")]
    tokens = {token: k for k, token in enumerate(vocabulary)}
    made = Tokenizer(models.BPE(tokens, merges, unk_token="<pad>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def finished(made: Tokenizer) -> Any:
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


KINDS = {
    "byte level": lambda: finished(byte_level()),
    "byte level, normalised": lambda: finished(byte_level(normalizers.NFC())),
    "byte fallback": lambda: finished(sentence_piece()),
}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]()


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_as_many_as_ids_and_join_to_the_text(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    for pieces in (pieces_of(tokenizer, ids), list(map(Detokeniser(tokenizer, frozenset([2])).push, ids))):
        assert len(pieces) == len(ids)
        assert "".join(pieces) == decoded(tokenizer, ids)
        assert "".join(pieces).strip() == text
        assert "\ufffd" not in "".join(pieces)
    if not text.isascii():
        assert "\ufffd" in "".join(decoded(tokenizer, [token]) for token in ids), "no character is split"


def test_a_token_may_complete_one_character_and_begin_the_next() -> None:
    made = KINDS["byte level"]()
    ids = made("猫は", add_special_tokens=False)["input_ids"]
    assert len(ids) == 5
    assert pieces_of(made, ids) == ["", "", "猫", "", "は"]


def test_a_part_of_a_character_alone_is_shown_as_its_bytes(tokenizer: Any) -> None:
    ids = tokenizer("a猫", add_special_tokens=False)["input_ids"]
    shown = [alone(tokenizer, token) for token in ids]
    assert shown[0].strip() == "a"
    assert "".join(shown[1:]) == "<0xE7><0x8C><0xAB>"
    assert alone(tokenizer, 3) == "<image>"


def test_a_questions_variants_show_their_pieces_in_context(cropping: Loaded) -> None:
    (found, *_) = LocalEngine(cropping).variants(Question(None, "what?"), " 🐧 red")
    assert len(found.pieces) == len(found.ids)
    assert "🐧" in found.pieces
    assert "".join(found.pieces).strip() == "🐧 red"


@pytest.mark.parametrize("text", TEXTS)
def test_the_prompts_strip_shows_the_question_as_it_was_asked(cropping: Loaded, tokenizer: Any, text: str) -> None:
    processor = LlavaProcessor(
        image_processor=tiny.image_processor(True), tokenizer=tokenizer, patch_size=tiny.PATCH,
        vision_feature_select_strategy="default", chat_template=tiny.NO_BOS, image_token="<image>",
        num_additional_image_tokens=1,
    )  # fmt: skip
    loaded = dataclasses.replace(cropping, processor=processor)
    prompt = build_prompt(loaded, Question(tiny.picture(), text))
    tokens = prompt.tokens
    assert [token.id for token in tokens for _ in range(token.count)] == prompt.ids.tolist()
    assert [token.modality for token in tokens for _ in range(token.count)] == list(prompt.modality)
    assert "".join(token.text for token in tokens) == decoded(tokenizer, [token.id for token in tokens])
    assert asked(tokens).strip() == text
    assert not any("\ufffd" in token.text for token in tokens)
    assert text.isascii() or any(token.text == "" for token in tokens if token.modality == "question")


def asked(tokens: Sequence[PromptToken]) -> str:
    return "".join(token.text for token in tokens if token.modality == "question")
