"""The tokenizer: byte-level BPE learnt on the world's own text, with what people type made plain first.

Special tokens come first in the vocabulary: <pad>, <s>, </s>, <image>, USER:, ASSISTANT:. A prompt reads
`<s>USER:<image> what is this?ASSISTANT:` and an answer ` penguin</s>`. The normaliser (NFKC, straight apostrophes,
lower case, single spaces, none at the end) leaves the special tokens alone and changes no id of a text that is
already plain."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from engine.builtin import questions, scenes, world

SPECIAL: Final = ("<pad>", "<s>", "</s>", "<image>", "USER:", "ASSISTANT:")
PAD, BOS, EOS, IMAGE, USER, ASSISTANT = range(len(SPECIAL))
VOCABULARY: Final = 1536
CHAT_TEMPLATE: Final = (
    "{{ bos_token }}{% for m in messages %}{% if m['role']=='user' %}USER:"
    "{% for c in m['content'] %}{% if c['type']=='image' %}<image>{% endif %}{% endfor %}"
    "{% for c in m['content'] %}{% if c['type']=='text' %} {{ c['text'] }}{% endif %}{% endfor %}"
    "{% else %}ASSISTANT: {{ m['content'][0]['text'] }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def normaliser() -> normalizers.Normalizer:
    """What is done to a text before it is split."""
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Replace("\u2019", "'"),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Replace(Regex(r"\s+$"), ""),
        ]
    )


def corpus(seed: int = 123, n_scenes: int = 2500) -> Iterator[str]:
    """The text that the vocabulary is learnt on: questions and answers of scenes, facts, and every name often."""
    rng = random.Random(seed)
    for _ in range(n_scenes):
        scene = scenes.make_scene(rng)
        for kind in questions.KINDS:
            qa = questions.ask(scene, kind, rng)
            if qa is not None:
                yield from (f" {qa.question}", f" {qa.answer}")
    for fact in world.FACTS:
        for _ in range(3):
            qa = questions.fact_question(fact, rng)
            yield from (f" {qa.question}", f" {qa.answer}")
    for name in world.NAMES:
        for _ in range(30):
            yield from (f" {world.plural(name)}", f" {name}")


def learn(texts: Iterator[str], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Learn a tokenizer from texts."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return dress(
        PreTrainedTokenizerFast(
            tokenizer_object=core,
            pad_token="<pad>",
            bos_token="<s>",
            eos_token="</s>",
            extra_special_tokens={"image_token": "<image>"},
        )
    )


def dress(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Give a tokenizer the normaliser and the chat template, in place."""
    tokenizer.backend_tokenizer.normalizer = normaliser()
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def load(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a model folder; its special tokens must have the ids that packing relies on."""
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(str(folder))
    ids = tokenizer.convert_tokens_to_ids(list(SPECIAL))
    if ids != list(range(len(SPECIAL))):
        raise ValueError(f"{folder}: the special tokens have ids {ids}, not 0 to {len(SPECIAL) - 1}")
    return dress(tokenizer)
