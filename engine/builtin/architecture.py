"""What the model is made of: a frozen ViT-S/14 (8 layers), a two-layer projector, a small Llama decoder; one LLaVA.

The tower's hidden states 3 and 8 are concatenated (768 numbers a patch). Training sees them standardised; `fold` and
`unfold` move the mean and scale into the projector's first layer and out of it, so that the saved model needs no such
step."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import (
    BitImageProcessorPil,
    Dinov2Config,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from engine.builtin import packing, scenes, tokenizer

FEATURE_LAYERS: Final = (3, 8)
IMAGE_MEAN: Final = (0.485, 0.456, 0.406)
IMAGE_STD: Final = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Size:
    """Of the decoder: width, layers, MLP width, vocabulary. The head size is 64."""

    hidden: int = 256
    layers: int = 6
    mlp: int = 768
    vocabulary: int = tokenizer.VOCABULARY


@dataclass(frozen=True)
class Standard:
    """Mean and scale of each of the 768 features, over patches of the world's pictures."""

    mean: Tensor
    scale: Tensor


def config(size: Size) -> LlavaConfig:
    """The configuration of the whole model."""
    vision = Dinov2Config(
        hidden_size=384,
        num_hidden_layers=max(FEATURE_LAYERS),
        num_attention_heads=6,
        mlp_ratio=4,
        image_size=scenes.SIZE,
        patch_size=packing.PATCH,
    )
    text = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.mlp,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 64,
        num_key_value_heads=size.hidden // 64,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.BOS,
        eos_token_id=tokenizer.EOS,
        pad_token_id=tokenizer.PAD,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.IMAGE,
        vision_feature_layer=list(FEATURE_LAYERS),
        vision_feature_select_strategy="default",
        image_seq_length=packing.N_PATCHES,
        tie_word_embeddings=False,
    )


def from_folder(folder: Path) -> LlavaForConditionalGeneration:
    """The saved model in float32, its tower frozen."""
    model: LlavaForConditionalGeneration = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    model.model.vision_tower.requires_grad_(False)
    return model


def size_of(model: LlavaForConditionalGeneration) -> Size:
    """The size of a model's decoder."""
    text: Any = model.config.text_config
    return Size(text.hidden_size, text.num_hidden_layers, text.intermediate_size, text.vocab_size)


def fresh(size: Size, tower_from: LlavaForConditionalGeneration) -> LlavaForConditionalGeneration:
    """A model with an untrained decoder and projector and another model's tower."""
    model = LlavaForConditionalGeneration(config(size))
    model.model.vision_tower.load_state_dict(tower_from.model.vision_tower.state_dict())
    model.model.vision_tower.requires_grad_(False)
    return model


def pixel_values(pictures: NDArray) -> Tensor:  # type: ignore[type-arg]  # uint8 here; tests pass what they like
    """(batch, SIZE, SIZE, 3) of 0 to 255 -> (batch, 3, SIZE, SIZE), normalised as the processor does."""
    values = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255
    return (values - torch.tensor(IMAGE_MEAN).view(3, 1, 1)) / torch.tensor(IMAGE_STD).view(3, 1, 1)


@torch.no_grad()
def features(tower: nn.Module, pixels: Tensor) -> Tensor:
    """(batch, patches, 768): the tower's hidden states at FEATURE_LAYERS, without the class token, in the tower's
    precision."""
    states = tower(pixels.to(next(tower.parameters()).dtype), output_hidden_states=True).hidden_states
    return torch.cat([states[layer][:, 1:] for layer in FEATURE_LAYERS], -1).float()


def unfold(model: LlavaForConditionalGeneration, standard: Standard) -> None:
    """Make the projector expect standardised features, in place: the opposite of `fold`."""
    first = model.model.multi_modal_projector.linear_1
    with torch.no_grad():
        first.bias += first.weight @ standard.mean
        first.weight *= standard.scale


def fold(model: LlavaForConditionalGeneration, standard: Standard) -> None:
    """Make the projector expect raw features, in place: W(f - mean)/scale + b = (W/scale) f + (b - (W/scale) mean)."""
    first = model.model.multi_modal_projector.linear_1
    with torch.no_grad():
        first.weight /= standard.scale
        first.bias -= first.weight @ standard.mean


def processor(tok: PreTrainedTokenizerFast) -> LlavaProcessor:
    """The processor that is saved with the model: squeeze to SIZE x SIZE, normalise; no crop."""
    image = BitImageProcessorPil(
        size={"height": scenes.SIZE, "width": scenes.SIZE},
        do_center_crop=False,
        image_mean=list(IMAGE_MEAN),
        image_std=list(IMAGE_STD),
    )
    return LlavaProcessor(
        image_processor=image,
        tokenizer=tok,
        patch_size=packing.PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tok.chat_template,
    )
