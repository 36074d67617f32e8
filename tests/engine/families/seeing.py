"""Kits of the families that see; see kits.py."""

from collections.abc import Callable
from typing import Any

import transformers as hf

from tests.engine import tiny
from tests.engine.families.kits import CHAT, Kit, text_config, tokenizer

QWEN = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}  # fmt: skip


def ids(made: Any, **tokens: str) -> dict[str, int]:
    return {name: made.convert_tokens_to_ids(token) for name, token in tokens.items()}


def chat(picture: str) -> str:
    return CHAT.replace("PICTURE", picture)


def llava() -> Kit:
    """LLaVA 1.5: shortest edge, centre crop, a CLIP tower without its class token."""
    kind = tiny.Kind()
    return Kit(hf.LlavaForConditionalGeneration(tiny._config(kind)), [tiny.processor(kind)])


def _qwen(config: Any, text: Any, model: Any, vision: dict[str, Any], patch: int = 14, **text_changes: Any) -> Kit:
    made = tokenizer(**QWEN)
    special = ids(
        made, image_token_id="<|image_pad|>", video_token_id="<|video_pad|>",
        vision_start_token_id="<|vision_start|>", vision_end_token_id="<|vision_end|>",
    )  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    kit = config(
        text_config=text_config(text, 1600, rope_parameters=rope, **text_changes).to_dict(),
        vision_config=vision,
        tie_word_embeddings=False,
        **special,
    )
    pictures = hf.Qwen2VLImageProcessorPil(
        patch_size=patch, size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112}, merge_size=2
    )
    return Kit(model(kit), [made, pictures], chat("<|vision_start|><|image_pad|><|vision_end|>"))


def qwen2_vl() -> Kit:
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
    return _qwen(hf.Qwen2VLConfig, hf.Qwen2VLTextConfig, hf.Qwen2VLForConditionalGeneration, vision)


def qwen2_5_vl() -> Kit:
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32,
        "patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1],
    }  # fmt: skip
    return _qwen(hf.Qwen2_5_VLConfig, hf.Qwen2_5_VLTextConfig, hf.Qwen2_5_VLForConditionalGeneration, vision)


def qwen3_vl() -> Kit:
    vision = {
        "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32,
        "patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1],
    }  # fmt: skip
    return _qwen(hf.Qwen3VLConfig, hf.Qwen3VLTextConfig, hf.Qwen3VLForConditionalGeneration, vision, patch=16)


def _clip(**changes: Any) -> Any:
    return hf.CLIPVisionConfig(
        **{
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 56, "patch_size": 14, **changes,
        }
    )  # fmt: skip


def _siglip(**changes: Any) -> Any:
    return hf.SiglipVisionConfig(
        **{
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 56, "patch_size": 14, "vision_use_head": False, **changes,
        }
    )  # fmt: skip


PINPOINTS = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]


def llava_next() -> Kit:
    """A thumbnail and any-resolution tiles, packed without their padding, a newline token after each row."""
    made = tokenizer()
    config = hf.LlavaNextConfig(
        vision_config=_clip(), text_config=text_config(hf.LlamaConfig, 1536), image_token_id=3,
        image_grid_pinpoints=PINPOINTS, vision_feature_layer=-2, tie_word_embeddings=False,
    )  # fmt: skip
    pictures = hf.LlavaNextImageProcessorPil(
        size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}, image_grid_pinpoints=PINPOINTS
    )
    processor = hf.LlavaNextProcessor(
        image_processor=pictures, tokenizer=made, patch_size=14, vision_feature_select_strategy="default",
        chat_template=chat("<image>\n"), image_token="<image>", num_additional_image_tokens=1,
    )  # fmt: skip
    return Kit(hf.LlavaNextForConditionalGeneration(config), [processor])


def llava_onevision() -> Kit:
    """As LLaVA-NeXT, with a SigLIP tower and tiles that are shrunk together beyond a limit."""
    made = tokenizer(image_token="<image>", video_token="<video>")
    config = hf.LlavaOnevisionConfig(
        vision_config=_siglip(), text_config=text_config(hf.Qwen2Config, 1600).to_dict(), image_token_id=3,
        video_token_id=made.convert_tokens_to_ids("<video>"), image_grid_pinpoints=PINPOINTS,
        vision_feature_layer=-1, vision_feature_select_strategy="full", vision_aspect_ratio="anyres_max_2",
        tie_word_embeddings=False,
    )  # fmt: skip
    pictures = hf.LlavaOnevisionImageProcessorPil(size={"height": 56, "width": 56}, image_grid_pinpoints=PINPOINTS)
    settings = {
        "processor_class": "LlavaOnevisionProcessor", "num_image_tokens": 16, "vision_feature_select_strategy": "full",
        "image_token": "<image>", "video_token": "<video>", "vision_aspect_ratio": "anyres_max_2",
    }  # fmt: skip
    parts = [made, pictures]
    return Kit(hf.LlavaOnevisionForConditionalGeneration(config), parts, chat("<image>\n"), settings)


def paligemma() -> Kit:
    """A prefix that sees all of itself, positions from 1, a prompt that the processor lays out, Gemma 2's decoder."""
    made = tokenizer(image_token="<image>")
    pictures = hf.SiglipImageProcessorPil(size={"height": 56, "width": 56})
    pictures.image_seq_length = 16
    processor = hf.PaliGemmaProcessor(image_processor=pictures, tokenizer=made)
    vocab = len(made)
    text = text_config(hf.Gemma2Config, vocab, tie_word_embeddings=True, query_pre_attn_scalar=8, sliding_window=64)
    config = hf.PaliGemmaConfig(
        vision_config=_siglip(projection_dim=32).to_dict(), text_config=text.to_dict(), image_token_id=3,
        projection_dim=32, hidden_size=32,
    )  # fmt: skip
    return Kit(hf.PaliGemmaForConditionalGeneration(config), [processor])


def gemma3() -> Kit:
    """Post-norms, two kinds of attention, pictures that see themselves both ways, patches pooled two by two."""
    made = tokenizer(boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token="<image_soft_token>")
    pictures = hf.Gemma3ImageProcessorPil(size={"height": 56, "width": 56})
    processor = hf.Gemma3Processor(
        image_processor=pictures, tokenizer=made, image_seq_length=4, chat_template=chat("<start_of_image>")
    )
    text = text_config(
        hf.Gemma3TextConfig, 1600, tie_word_embeddings=True, query_pre_attn_scalar=8, sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )  # fmt: skip
    config = hf.Gemma3Config(
        vision_config=_siglip().to_dict(), text_config=text.to_dict(), mm_tokens_per_image=4,
        boi_token_index=made.convert_tokens_to_ids("<start_of_image>"),
        eoi_token_index=made.convert_tokens_to_ids("<end_of_image>"),
        image_token_index=made.convert_tokens_to_ids("<image_soft_token>"),
    )  # fmt: skip
    return Kit(hf.Gemma3ForConditionalGeneration(config), [processor])


def _split(made: Any, model: Any, config: Any, pictures: Any, vision: dict[str, Any]) -> tuple[Any, Any]:
    """Model and image processor of the two families that split a picture and shuffle patches together."""
    given = config(
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 56, "patch_size": 14, **vision,
        },
        text_config=text_config(hf.LlamaConfig, 1600).to_dict(), image_token_id=3, scale_factor=2,
        tie_word_embeddings=False, pad_token_id=0,
    )  # fmt: skip
    return model(given), pictures(size={"longest_edge": 168}, max_image_size={"longest_edge": 56})


SPLIT = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]


def idefics3() -> Kit:
    """Tiles row by row, each behind a token that names its place, and the whole picture last; patches shuffled."""
    made = tokenizer("<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *SPLIT)
    model, pictures = _split(
        made, hf.Idefics3ForConditionalGeneration, hf.Idefics3Config, hf.Idefics3ImageProcessorPil, {}
    )
    processor = hf.Idefics3Processor(
        image_processor=pictures, tokenizer=made, image_seq_len=4, chat_template=chat("<image>")
    )
    return Kit(model, [processor])


def smolvlm() -> Kit:
    """As Idefics3; its processor also wants a package for numbers in words, for videos."""
    made = tokenizer("<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *SPLIT)
    model, pictures = _split(
        made, hf.SmolVLMForConditionalGeneration, hf.SmolVLMConfig, hf.SmolVLMImageProcessorPil, {}
    )
    settings = {"processor_class": "SmolVLMProcessor", "image_seq_len": 4}
    return Kit(model, [made, pictures], chat("<image>"), settings)


def internvl() -> Kit:
    """Tiles of the best-fitting arrangement, the whole picture last, patches shuffled two by two."""
    names = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    made = tokenizer(**names, video_token="<video>")
    config = hf.InternVLConfig(
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": [56, 56], "patch_size": [14, 14],
        },
        text_config=text_config(hf.Qwen2Config, 1600).to_dict(), downsample_ratio=0.5,
        image_token_id=made.convert_tokens_to_ids("<IMG_CONTEXT>"), tie_word_embeddings=False,
    )  # fmt: skip
    pictures = hf.GotOcr2ImageProcessorPil(
        size={"height": 56, "width": 56}, crop_to_patches=True, min_patches=1, max_patches=6
    )
    settings = {"processor_class": "InternVLProcessor", "image_seq_length": 4}
    model = hf.InternVLForConditionalGeneration(config)
    return Kit(model, [made, pictures], chat("<IMG_CONTEXT>\n"), settings)


def _pixtral() -> tuple[Any, Any]:
    vision = hf.PixtralVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=112, patch_size=14
    )
    return vision, tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]")


def mistral3() -> Kit:
    """A tower for any shape, patches merged two by two, a break token after each row."""
    vision, made = _pixtral()
    image = made.convert_tokens_to_ids("[IMG]")
    config = hf.Mistral3Config(
        vision_config=vision, text_config=text_config(hf.MistralConfig, 1600), image_token_index=image,
        spatial_merge_size=2, vision_feature_layer=-1, tie_word_embeddings=False,
    )  # fmt: skip
    pictures = hf.PixtralImageProcessorPil(size={"longest_edge": 112}, patch_size={"height": 14, "width": 14})
    settings = {"processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": 2}
    return Kit(hf.Mistral3ForConditionalGeneration(config), [made, pictures], chat("[IMG]"), settings)


def pixtral() -> Kit:
    """The LLaVA frame around Pixtral's tower: one position a patch."""
    vision, made = _pixtral()
    image = made.convert_tokens_to_ids("[IMG]")
    config = hf.LlavaConfig(
        vision_config=vision, text_config=text_config(hf.MistralConfig, 1600), image_token_id=image,
        vision_feature_layer=-1, vision_feature_select_strategy="full", tie_word_embeddings=False,
    )  # fmt: skip
    pictures = hf.PixtralImageProcessorPil(size={"longest_edge": 112}, patch_size={"height": 14, "width": 14})
    settings = {"processor_class": "PixtralProcessor", "patch_size": 14}
    return Kit(hf.LlavaForConditionalGeneration(config), [made, pictures], chat("[IMG]"), settings)


def _opt() -> Any:
    return hf.OPTConfig(
        vocab_size=1600, hidden_size=32, ffn_dim=48, num_hidden_layers=3, num_attention_heads=4, word_embed_proj_dim=32,
        max_position_embeddings=256, bos_token_id=2, eos_token_id=2, pad_token_id=1, tie_word_embeddings=False,
    )  # fmt: skip


def plain(bos: str) -> Any:
    """A tokenizer that knows no image token by that name; the processor adds one."""
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer().backend_tokenizer, bos_token=bos, eos_token="</s>", pad_token="<pad>"
    )


def _blip(kind: str) -> tuple[Any, Any, Any]:
    made = plain("</s>")
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": 56, "patch_size": 14,
    }  # fmt: skip
    queries = {
        "vocab_size": 1600, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "encoder_hidden_size": 32, "cross_attention_frequency": 1,
    }  # fmt: skip
    config = getattr(hf, f"{kind}Config")(
        vision_config=vision, qformer_config=queries, text_config=_opt().to_dict(), num_query_tokens=5,
        image_token_index=3,
    )  # fmt: skip
    pictures = hf.BlipImageProcessorPil(size={"height": 56, "width": 56})
    return config, made, pictures


def blip2() -> Kit:
    """Query tokens, and OPT: a plain MLP held by the block itself, which flattens rows and positions."""
    config, made, pictures = _blip("Blip2")
    processor = hf.Blip2Processor(image_processor=pictures, tokenizer=made, num_query_tokens=5)
    return Kit(hf.Blip2ForConditionalGeneration(config), [processor])


def instructblip() -> Kit:
    """As BLIP-2, and the Q-Former reads the question too: its features depend on it."""
    config, made, pictures = _blip("InstructBlip")
    processor = hf.InstructBlipProcessor(
        image_processor=pictures, tokenizer=made, qformer_tokenizer=plain("<s>"), num_query_tokens=5
    )
    return Kit(hf.InstructBlipForConditionalGeneration(config), [processor])


SEEING: dict[str, Callable[[], Kit]] = {
    "llava": llava,
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "llava_next": llava_next,
    "llava_onevision": llava_onevision,
    "paligemma": paligemma,
    "gemma3": gemma3,
    "idefics3": idefics3,
    "smolvlm": smolvlm,
    "internvl": internvl,
    "mistral3": mistral3,
    "pixtral": pixtral,
    "blip2": blip2,
    "instructblip": instructblip,
}
