"""Tiny random models of each family, with their real processors, saved to a folder as a person would have them.

Each kit returns the configuration's model and the parts to save beside it. The tokenizer is the built-in model's, with
the special tokens that a family needs; weights are random (`tiny.randomise`), so a kit shows that the family's code
paths are understood, not that a published checkpoint behaves.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from engine.loading import BUILTIN_FOLDER, Loaded, load, quiet
from tests.engine import tiny

CHAT = (
    "{{ bos_token }}{% for m in messages %}USER:{% for c in m['content'] %}{% if c['type']=='image' %}PICTURE"
    "{% else %} {{ c['text'] }}{% endif %}{% endfor %}{% endfor %} ASSISTANT:"
)
TEXT_CHAT = "{{ bos_token }}{% for m in messages %}USER: {{ m['content'] }}{% endfor %} ASSISTANT:"
D_MODEL, D_MLP = 32, 48


@dataclasses.dataclass
class Kit:
    """`parts` are saved beside the model; `template` is the folder's chat template ("" = none); `settings` its
    processor_config.json, for processors that cannot be built here because of their video half."""

    model: Any
    parts: list[Any]
    template: str = ""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


def tokenizer(*special: str, **named: str) -> Any:
    """The built-in tokenizer with special tokens; `named` become attributes as in the family's own tokenizer."""
    made = hf.PreTrainedTokenizerFast.from_pretrained(str(BUILTIN_FOLDER))
    made.chat_template = None
    made.add_special_tokens({"additional_special_tokens": [*special, *named.values()]})
    if named:
        made = hf.PreTrainedTokenizerFast(
            tokenizer_object=made.backend_tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
            extra_special_tokens=named,
        )  # fmt: skip
    return made


def text_config(kind: Any, vocab: int, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "vocab_size": vocab, "hidden_size": D_MODEL, "intermediate_size": D_MLP, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 2048,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
    }  # fmt: skip
    return kind(**{**given, **changes})


def text_kit(model: Any, config: Any, template: str = TEXT_CHAT) -> Kit:
    return Kit(model(config), [tokenizer()], template)


def llama() -> Kit:
    return text_kit(hf.LlamaForCausalLM, text_config(hf.LlamaConfig, 1536))


def smollm2() -> Kit:
    """A Llama with a tied unembedding and a BOS that also marks roles."""
    made = tokenizer("<|im_start|>", "<|im_end|>")
    made.bos_token, made.eos_token = "<|im_start|>", "<|im_end|>"
    config = text_config(hf.LlamaConfig, 1600, tie_word_embeddings=True)
    turn = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    return Kit(hf.LlamaForCausalLM(config), [made], turn + "<|im_start|>assistant\n")


def qwen2() -> Kit:
    """Biases in the attention, no beginning-of-sequence token."""
    made = tokenizer()
    made.bos_token = None
    config = text_config(hf.Qwen2Config, 1536, tie_word_embeddings=True)
    return Kit(hf.Qwen2ForCausalLM(config), [made], TEXT_CHAT.replace("{{ bos_token }}", ""))


def gemma2() -> Kit:
    """Post-norms, soft-capped logits and attention, scaled embeddings, a sliding window."""
    config = text_config(
        hf.Gemma2Config, 1536, tie_word_embeddings=True, sliding_window=4, query_pre_attn_scalar=8,
        final_logit_softcapping=3.0, attn_logit_softcapping=5.0,
    )  # fmt: skip
    return text_kit(hf.Gemma2ForCausalLM, config)


def gpt2() -> Kit:
    """A plain MLP with transposed weights, LayerNorms, learned positions, no chat template."""
    config = hf.GPT2Config(
        vocab_size=1536, n_embd=D_MODEL, n_inner=D_MLP, n_layer=3, n_head=4, n_positions=256, bos_token_id=2,
        eos_token_id=2,
    )  # fmt: skip
    made = tokenizer()
    made.bos_token = "</s>"
    return Kit(hf.GPT2LMHeadModel(config), [made], "")


def granite() -> Kit:
    """Logits divided by a constant; also residual multipliers, which no part of Sfumato accounts for."""
    config = text_config(hf.GraniteConfig, 1536, logits_scaling=4.0, residual_multiplier=0.5)
    return text_kit(hf.GraniteForCausalLM, config)


def cohere() -> Kit:
    """Attention and MLP side by side from one norm, a LayerNorm without bias, logits times a constant."""
    return text_kit(hf.CohereForCausalLM, text_config(hf.CohereConfig, 1536, logit_scale=0.25))


TEXT: dict[str, Callable[[], Kit]] = {
    "llama": llama,
    "smollm2": smollm2,
    "qwen2": qwen2,
    "gemma2": gemma2,
    "gpt2": gpt2,
    "cohere": cohere,
}


@torch.no_grad()
def save(folder: Path, kit: Kit) -> Path:
    """Write a folder; biases and gains random too."""
    quiet()
    model = kit.model.eval()
    tiny.randomise(model)
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    for part in kit.parts:
        part.save_pretrained(folder)
    if kit.settings:
        (folder / "processor_config.json").write_text(json.dumps(kit.settings))
    if kit.template:
        (folder / "chat_template.jinja").write_text(kit.template)
    return folder


def make(folder: Path, kit: Kit) -> Loaded:
    return load(str(save(folder, kit)), device="cpu")
