"""A question becomes token ids, once; everything later carries these ids.

1. The model's own chat template writes the prompt; its processor expands the image placeholder and makes the pixels.
2. There is exactly one beginning-of-sequence token (or none, where the tokenizer has none): a template that writes it
   and a tokenizer that adds it would shift every label by one.
3. Every position gets one modality: image, question (tokens that overlap the person's text), or template.
"""

import dataclasses
import hashlib
from typing import Any

import numpy as np
import torch
from PIL import Image

from engine.contract import Grid, Pixels, PromptToken, PromptTooLong, Question, RequestError
from engine.layout import layout_of
from engine.loading import Loaded
from engine.patches import check_size
from engine.pieces import pieces_of

MARK = "\ue000"
"""A private-use character that stands for the question where its place in a prompt is looked for."""

FALLBACK = "USER: {image}{text} ASSISTANT:"
"""The prompt of LLaVA 1.5, used where a processor brings no chat template."""


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A prompt ready for the model: `ids` (pos,), `modality` per position, `pixels` = the processor's tensors for
    the model beside the ids (empty for text only), `grid` its patches, `spread` (cells, image positions) how image
    positions are brought onto the grid (None: they are its cells, row by row), `key` a hash of all that the picture's
    features depend on."""

    ids: torch.Tensor
    modality: tuple[str, ...]
    tokens: tuple[PromptToken, ...]
    pixels: dict[str, Any]
    grid: Grid | None
    key: str
    spread: torch.Tensor | None = None

    @property
    def length(self) -> int:
        return len(self.modality)

    @property
    def image_positions(self) -> list[int]:
        return [p for p, modality in enumerate(self.modality) if modality == "image"]


def _reserved(tokenizer: Any) -> list[str]:
    return [str(token) for token in tokenizer.added_tokens_encoder if str(token).strip()]


def _check_text(loaded: Loaded, question: Question) -> str:
    text = question.text.strip()
    if not text:
        raise RequestError("The question is empty. Type a question about the picture.")
    for token in _reserved(loaded.processor.tokenizer):
        if token in text:
            raise RequestError(f"The question contains {token}, which the model reserves for itself. Leave it out.")
    return text


def _render(loaded: Loaded, text: str, with_picture: bool) -> str:
    """The prompt as a string with one placeholder for the picture. Where there is no chat template: LLaVA 1.5's for a
    processor that asks for a placeholder, and the text as it is for one that places the picture before it by itself."""
    processor = loaded.processor
    if getattr(processor, "chat_template", None):
        content: list[dict[str, str]] = [{"type": "image"}] if with_picture else []
        content.append({"type": "text", "text": text})
        return str(
            processor.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
        )
    if not loaded.sees or places_picture(processor):
        marked = with_picture and not hasattr(processor, "num_query_tokens")
        return f"{processor.image_token}{text}" if marked else text
    image = f"{processor.image_token}\n" if with_picture else ""
    return FALLBACK.format(image=image, text=text)


def places_picture(processor: Any) -> bool:
    """Does this processor lay out the whole prompt itself, the picture first? Then it says how many tokens it takes."""
    return hasattr(processor, "image_seq_length") or hasattr(processor, "num_query_tokens")


def _text_start(loaded: Loaded, rendered: str, text: str, with_picture: bool) -> int:
    """Where the person's text begins in the rendered prompt: where a mark stands when the mark is asked instead.

    Searching for the text itself would find a short one ("A") in the template's own words."""
    start = _render(loaded, MARK, with_picture).find(MARK)
    if start < 0 or not rendered.startswith(text, start):
        raise RequestError("The model's chat template rewrites the question, so its words cannot be placed.")
    return start


def build_prompt(loaded: Loaded, question: Question) -> Prompt:
    """Tokenise and process one question. Raises RequestError (PictureTooSmall, PromptTooLong among them)."""
    text = _check_text(loaded, question)
    tokenizer = loaded.processor.tokenizer
    rendered = _render(loaded, text, question.picture is not None)
    starts = tokenizer.bos_token is not None and rendered.startswith(tokenizer.bos_token)
    add_special = not starts
    pixels: dict[str, Any] = {}
    key = ""

    def process(seen: Image.Image) -> Any:
        try:
            return loaded.processor(images=seen, text=rendered, return_tensors="pt", add_special_tokens=add_special)
        except ValueError as error:
            raise RequestError(
                f"The model's processor refuses a picture of {seen.width} × {seen.height} pixels: {error} Use another."
            ) from error

    picture = question.picture
    if picture is not None:
        if not loaded.sees:
            raise RequestError(f"{loaded.name} reads text only. Ask without a picture, or load a model that sees.")
        check_size(picture.shape[1], picture.shape[0])
        inputs = process(Image.fromarray(picture))
        ids = inputs["input_ids"][0]
        pixels = {name: value for name, value in inputs.items() if name not in {"input_ids", "attention_mask"}}
        key = _key(picture, pixels)
    else:
        ids = tokenizer(rendered, return_tensors="pt", add_special_tokens=add_special)["input_ids"][0]
    if len(ids) + question.max_new_tokens > loaded.anatomy.max_positions:
        raise PromptTooLong(
            f"Prompt and answer need {len(ids)} + {question.max_new_tokens} positions; the model has "
            f"{loaded.anatomy.max_positions}. Ask a shorter question."
        )
    start = _text_start(loaded, rendered, text, picture is not None)
    modality = _modalities(loaded, ids, rendered, (start, start + len(text)), add_special)
    if picture is None:
        return Prompt(ids, modality, _fold(tokenizer, ids, modality), pixels, None, key)
    grid, spread = layout_of(loaded, picture.shape[1], picture.shape[0], pixels, modality.count("image"), process)
    return Prompt(ids, modality, _fold(tokenizer, ids, modality), pixels, grid, key, spread)


def _key(picture: Pixels, pixels: dict[str, Any]) -> str:
    """A hash of the picture and, for towers that read the question too, of the question as they read it."""
    digest = hashlib.sha256(repr(picture.shape).encode() + np.ascontiguousarray(picture).tobytes())
    for name in sorted(pixels):
        if name.endswith("input_ids"):
            digest.update(pixels[name].numpy().tobytes())
    return digest.hexdigest()


def _modalities(
    loaded: Loaded, ids: torch.Tensor, rendered: str, span: tuple[int, int], add_special: bool
) -> tuple[str, ...]:
    """The modality of every position; `span` = where the person's text stands in `rendered`.

    The processor replaces the placeholder by many tokens and may add some of its own, so the question's tokens are
    found from both ends: `rendered` is tokenised as it stands, and what it shares with the prompt before and after the
    picture is the same tokens in the same order."""
    tokenizer, image_id = loaded.processor.tokenizer, loaded.anatomy.image_token_id
    listed = ids.tolist()
    plain = tokenizer(rendered, return_offsets_mapping=True, add_special_tokens=add_special)
    short, (start, end) = plain["input_ids"], span
    head, tail = _shared(short, listed), _shared(short[::-1], listed[::-1])
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_encoder.values())
    asked = [k for k, (a, b) in enumerate(plain["offset_mapping"]) if short[k] not in special and a < end and b > start]
    shift = len(listed) - len(short)
    if all(k < head for k in asked):
        at = set(asked)
    elif all(k >= len(short) - tail for k in asked):
        at = {k + shift for k in asked}
    else:
        at = _run(listed, [short[k] for k in asked])
    return tuple(
        "image" if token == image_id else "question" if k in at else "template" for k, token in enumerate(listed)
    )


def _shared(one: list[int], other: list[int]) -> int:
    """How many entries two lists share from their start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(one), len(other)))


def _run(listed: list[int], run: list[int]) -> set[int]:
    """The last place of `run` in `listed`, for processors that lay the prompt out themselves."""
    for start in range(len(listed) - len(run), -1, -1):
        if listed[start : start + len(run)] == run:
            return set(range(start, start + len(run)))
    raise RequestError("The processor and the tokenizer disagree about this prompt, so its words cannot be placed.")


def _fold(tokenizer: Any, ids: torch.Tensor, modality: tuple[str, ...]) -> tuple[PromptToken, ...]:
    runs: list[tuple[int, str, int]] = []
    for token, kind in zip(ids.tolist(), modality, strict=True):
        if kind == "image" and runs and runs[-1][1] == "image":
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((token, kind, 1))
    texts = pieces_of(tokenizer, [token for token, _, _ in runs])
    return tuple(PromptToken(text, *run) for text, run in zip(texts, runs, strict=True))
