"""Tiny LLaVA models with random weights, saved to a folder and loaded like any other model; and plain-torch oracles.

The oracles call the model by its own forward pass with the processor's tensors and hooks of their own: they share no
code with what they test. Axes as in the engine: batch pos d_model d_mlp n_layers.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers.processors import TemplateProcessing
from transformers import (
    BitImageProcessorPil,
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    SiglipVisionConfig,
)

from engine.anatomy import find_anatomy
from engine.contract import Pixels
from engine.loading import BUILTIN_FOLDER, Loaded, load, quiet
from engine.prompts import Prompt

SIDE, PATCH, IMAGE_ID = 56, 14, 3
NO_BOS = (
    "{% for m in messages %}USER:{% for c in m['content'] %}{% if c['type']=='image' %}<image>\n{% else %}"
    "{{ c['text'] }}{% endif %}{% endfor %}{% endfor %} ASSISTANT:"
)
"""A chat template that leaves the beginning-of-sequence token to the tokenizer."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """What varies between tiny models. `crop`: shortest edge + centre crop as LLaVA 1.5, else resize to the square.
    `tower`: "clip" has a class token, "siglip" none. `adds_bos`: the tokenizer writes a BOS; `template`: the chat
    template, "" = none, None = the built-in model's, which writes a BOS."""

    crop: bool = True
    tower: str = "clip"
    strategy: str = "default"
    adds_bos: bool = False
    template: str | None = None


def image_processor(crop: bool, shortest: int = SIDE, side: int = SIDE) -> Any:
    if crop:
        return CLIPImageProcessorPil(
            size={"shortest_edge": shortest},
            crop_size={"height": side, "width": side},
            do_center_crop=True,
            do_resize=True,
        )
    return BitImageProcessorPil(size={"height": side, "width": side}, do_center_crop=False, do_resize=True)


def _tokenizer(kind: Kind) -> Any:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(BUILTIN_FOLDER))
    if kind.adds_bos:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def processor(kind: Kind) -> LlavaProcessor:
    tokenizer = _tokenizer(kind)
    template = tokenizer.chat_template if kind.template is None else kind.template
    tokenizer.chat_template = None
    return LlavaProcessor(
        image_processor=image_processor(kind.crop),
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy=kind.strategy,
        chat_template=template or None,
        image_token="<image>",
        num_additional_image_tokens=1 if kind.tower == "clip" else 0,
    )


def _config(kind: Kind) -> LlavaConfig:
    vision = CLIPVisionConfig if kind.tower == "clip" else SiglipVisionConfig
    return LlavaConfig(
        vision_config=vision(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=SIDE,
            patch_size=PATCH,
        ),
        text_config=LlamaConfig(
            vocab_size=1536,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            tie_word_embeddings=False,
        ),
        image_token_id=IMAGE_ID,
        image_seq_length=(SIDE // PATCH) ** 2,
        vision_feature_select_strategy=kind.strategy,
        vision_feature_layer=-2 if kind.strategy == "default" else -1,
        tie_word_embeddings=False,
    )


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Weights of a size that keeps logits apart: matrices scaled by their fan-in, embeddings of unit variance."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1:
            parameter.copy_((0 if name.endswith("bias") else 1) + 0.2 * noise)
        elif "embed" in name:
            parameter.copy_(noise)
        else:
            parameter.copy_(noise * (4 if "lm_head" in name else 1.3) / parameter[0].numel() ** 0.5)


def save(folder: Path, kind: Kind) -> Path:
    """Write the model as a person would have it on disk: config, safetensors, tokenizer, processor."""
    model = LlavaForConditionalGeneration(_config(kind)).eval()
    randomise(model)
    model.generation_config.eos_token_id = 2
    quiet()
    model.save_pretrained(folder)
    processor(kind).save_pretrained(folder)
    return folder


def make(folder: Path, kind: Kind | None = None) -> Loaded:
    return load(str(save(folder, kind or Kind())), device="cpu")


def changed(loaded: Loaded) -> Loaded:
    """A copy of its own, whose weights a test may change."""
    model = copy.deepcopy(loaded.model)
    return dataclasses.replace(loaded, model=model, anatomy=find_anatomy(model))


def picture(seed: int = 0, height: int = 70, width: int = 90) -> Pixels:
    """Blocks of random colour (height, width, 3)."""
    blocks = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return blocks[np.arange(height) * 5 // height][:, np.arange(width) * 6 // width]


# Oracles


def decoder_of(model: Any) -> Any:
    return model.model.language_model


def inputs(prompt: Prompt, answer: Sequence[int] = ()) -> dict[str, torch.Tensor]:
    """The model's own arguments for prompt + answer."""
    ids = torch.cat([prompt.ids, torch.tensor(list(answer), dtype=prompt.ids.dtype)])[None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **prompt.pixels}


def logits(model: Any, prompt: Prompt, answer: Sequence[int] = ()) -> torch.Tensor:
    """(pos, d_vocab) by the model's own forward pass, without a cache."""
    with torch.no_grad():
        result: torch.Tensor = model(**inputs(prompt, answer), use_cache=False).logits[0]
    return result


def span_logprob(rows: torch.Tensor, prompt: Prompt, answer: Sequence[int], start: int, end: int) -> torch.Tensor:
    """Σ log p of answer tokens start:end, from logits (pos, d_vocab)."""
    first = prompt.length - 1
    logprobs = rows.float().log_softmax(-1)
    return torch.stack([logprobs[first + k, answer[k]] for k in range(start, end)]).sum()


Edit = Callable[[int, torch.Tensor], torch.Tensor]


@contextmanager
def edited(model: Any, edit: Edit) -> Iterator[None]:
    """Inside, layer l's activations (batch, pos, d_mlp) are `edit(l, activations)`; whole sequences only, no cache."""
    handles = [
        layer.mlp.down_proj.register_forward_pre_hook(lambda _module, args, number=number: (edit(number, args[0]),))
        for number, layer in enumerate(decoder_of(model).layers)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def greedy(model: Any, prompt: Prompt, steps: int) -> tuple[list[int], list[float]]:
    """Greedy decoding, each step a whole forward pass; the picture's placeholder cannot be chosen."""
    chosen: list[int] = []
    logprobs: list[float] = []
    for _ in range(steps):
        last = logits(model, prompt, chosen)[-1].clone()
        last[IMAGE_ID] = -torch.inf
        best = int(last.argmax())
        if best == 2:
            break
        logprobs.append(float(last.log_softmax(-1)[best]))
        chosen.append(best)
    return chosen, logprobs


def all_hooks(model: torch.nn.Module) -> int:
    """Every hook in every hook table of every module, by name; transformers leaves its own on a CLIP tower."""
    return sum(
        not hook.__module__.startswith("transformers")
        for module in model.modules()
        for name, table in vars(module).items()
        if name.endswith("_hooks") and isinstance(table, dict)
        for hook in table.values()
    )
