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

from engine.contract import Grid, ModelRefused, PromptToken, PromptTooLong, Question, RequestError
from engine.loading import Loaded
from engine.patches import check_size, single_grid

MARK = "\ue000"
"""A private-use character that stands for the question where its place in a prompt is looked for."""

FALLBACK = "USER: {image}{text} ASSISTANT:"
"""The prompt of LLaVA 1.5, used where a processor brings no chat template."""


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A prompt ready for the model: `ids` (pos,), `modality` per position, `pixels` = the processor's tensors for
    the picture (empty for text only), `grid` its patches, `key` a hash of the picture as the processor saw it."""

    ids: torch.Tensor
    modality: tuple[str, ...]
    tokens: tuple[PromptToken, ...]
    pixels: dict[str, Any]
    grid: Grid | None
    key: str

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
    processor = loaded.processor
    if getattr(processor, "chat_template", None):
        content: list[dict[str, str]] = [{"type": "image"}] if with_picture else []
        content.append({"type": "text", "text": text})
        return str(
            processor.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
        )
    image = f"{processor.image_token}\n" if with_picture else ""
    return FALLBACK.format(image=image, text=text)


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
    picture = question.picture
    if picture is not None:
        check_size(picture.shape[1], picture.shape[0])
        key = hashlib.sha256(repr(picture.shape).encode() + np.ascontiguousarray(picture).tobytes()).hexdigest()
        inputs = loaded.processor(
            images=Image.fromarray(picture), text=rendered, return_tensors="pt", add_special_tokens=add_special
        )
        ids = inputs["input_ids"][0]
        pixels = {name: value for name, value in inputs.items() if name.startswith(("pixel", "image"))}
    else:
        ids = tokenizer(rendered, return_tensors="pt", add_special_tokens=add_special)["input_ids"][0]
    if len(ids) + question.max_new_tokens > loaded.anatomy.max_positions:
        raise PromptTooLong(
            f"Prompt and answer need {len(ids)} + {question.max_new_tokens} positions; the model has "
            f"{loaded.anatomy.max_positions}. Ask a shorter question."
        )
    start = _text_start(loaded, rendered, text, picture is not None)
    modality = _modalities(loaded, ids, rendered, (start, start + len(text)), add_special)
    return Prompt(
        ids, modality, _fold(tokenizer, ids, modality), pixels, _grid(loaded, question, pixels, modality), key
    )


def _modalities(
    loaded: Loaded, ids: torch.Tensor, rendered: str, span: tuple[int, int], add_special: bool
) -> tuple[str, ...]:
    """The modality of every position; `span` = where the person's text stands in `rendered`."""
    tokenizer, image_id = loaded.processor.tokenizer, loaded.anatomy.image_token_id
    listed = ids.tolist()
    image_token = getattr(loaded.processor, "image_token", None)
    expanded, (start, end) = rendered, span
    if image_token and image_id is not None and image_id in listed:
        expanded = rendered.replace(image_token, image_token * listed.count(image_id), 1)
        if rendered.index(image_token) < start:
            growth = len(expanded) - len(rendered)
            start, end = start + growth, end + growth
    again = tokenizer(expanded, return_offsets_mapping=True, add_special_tokens=add_special)
    if again["input_ids"] != listed:
        raise RequestError("The processor and the tokenizer disagree about this prompt, so its words cannot be placed.")
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_encoder.values())
    result = []
    for token, (a, b) in zip(listed, again["offset_mapping"], strict=True):
        if token == image_id:
            result.append("image")
        elif token not in special and a < end and b > start:
            result.append("question")
        else:
            result.append("template")
    return tuple(result)


def _fold(tokenizer: Any, ids: torch.Tensor, modality: tuple[str, ...]) -> tuple[PromptToken, ...]:
    folded: list[PromptToken] = []
    for token, kind in zip(ids.tolist(), modality, strict=True):
        if kind == "image" and folded and folded[-1].modality == "image":
            folded[-1] = dataclasses.replace(folded[-1], count=folded[-1].count + 1)
        else:
            folded.append(PromptToken(tokenizer.decode([token]), token, kind))
    return tuple(folded)


def _grid(loaded: Loaded, question: Question, pixels: dict[str, Any], modality: tuple[str, ...]) -> Grid | None:
    if question.picture is None:
        return None
    height, width = question.picture.shape[:2]
    values = pixels["pixel_values"]
    patch = int(loaded.processor.patch_size)
    grid = single_grid(loaded.processor.image_processor, width, height, (values.shape[-2], values.shape[-1]), patch)
    if grid.rows * grid.cols != modality.count("image"):
        raise ModelRefused(
            f"The picture gives {modality.count('image')} image positions, not {grid.rows} × {grid.cols}; "
            "this model's patch grid is not one Sfumato can place."
        )
    return grid
