"""Running the model: kept prompts and picture features, and greedy generation with streaming.

Picture features do not depend on the question nor on any steering of the decoder, so they are kept for the last few
pictures, by content. Everything after them is computed anew for each request; no key–value cache outlives its call.
"""

import hashlib
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from engine.contract import Alternative, Answer, AnswerToken, Cancelled, IsCancelled, OnToken, Question
from engine.features import Seen, embed, forget, forward, picture_features, with_prompt
from engine.hooks import require_finite
from engine.loading import Loaded
from engine.pieces import alone
from engine.prompts import Prompt, build_prompt

__all__ = [
    "FeatureCache", "PromptCache", "answer_ids", "embed", "end_tokens", "forward", "generate", "picture_features",
    "with_answer",
]  # fmt: skip

ALTERNATIVES = 5


class FeatureCache:
    """The projected picture features of the last `size` pictures, keyed by `Prompt.key`. Holds results only."""

    def __init__(self, size: int = 8) -> None:
        self.size = size
        self.kept: OrderedDict[str, Seen] = OrderedDict()

    def get(self, loaded: Loaded, prompt: Prompt) -> Seen | None:
        """The prompt's picture as the decoder gets it; None for a text-only prompt."""
        if not prompt.pixels:
            return None
        if prompt.key in self.kept:
            self.kept.move_to_end(prompt.key)
            return with_prompt(loaded, self.kept[prompt.key], prompt.pixels)
        seen = picture_features(loaded, prompt.pixels)
        self.kept[prompt.key] = seen
        while len(self.kept) > self.size:
            self.kept.popitem(last=False)
        return seen


class PromptCache:
    """The last `size` prompts, by all that they depend on: a second target or a steering of the same question does not
    send the picture through the processor again. Holds results only."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.kept: OrderedDict[tuple[object, ...], Prompt] = OrderedDict()

    def get(self, loaded: Loaded, question: Question) -> Prompt:
        """Raises what `build_prompt` raises."""
        picture = question.picture
        pixels = (picture.shape, hashlib.sha256(picture.tobytes()).digest()) if picture is not None else None
        key = (pixels, question.text, question.max_new_tokens)
        prompt = self.kept.pop(key, None) or build_prompt(loaded, question)
        self.kept[key] = prompt
        while len(self.kept) > self.size:
            self.kept.popitem(last=False)
        return prompt


_PIECES: weakref.WeakKeyDictionary[Any, dict[int, str]] = weakref.WeakKeyDictionary()
"""Each tokenizer's single tokens as text, as they are met."""


class Detokeniser:
    """Ids to text, one token at a time. A character spread over several tokens is given with the token that completes
    it; an incomplete one stays empty until then, so the pieces joined are always the decoded whole."""

    def __init__(self, tokenizer: Any, ends: frozenset[int]) -> None:
        self.tokenizer, self.ends = tokenizer, ends
        self.ids: list[int] = []
        self.shown = ""

    def one(self, token: int) -> str:
        """A single token out of context; see `engine.pieces.alone`."""
        known = _PIECES.setdefault(self.tokenizer, {})
        if token not in known:
            known[token] = alone(self.tokenizer, token)
        return known[token]

    def push(self, token: int) -> str:
        """The text this token adds."""
        self.ids.append(token)
        whole = str(self.tokenizer.decode(self.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        whole = whole.rstrip("\ufffd")
        added = whole[len(self.shown) :] if whole.startswith(self.shown) else ""
        self.shown = whole if whole.startswith(self.shown) else self.shown
        return added


class _Watch:
    """One generation's steps: logits come in through `_Scores`, chosen tokens through `_Stops`."""

    def __init__(self, text: Detokeniser, image_token: int | None, on_token: OnToken | None, cancelled: IsCancelled):
        self.text, self.image_token, self.on_token, self.cancelled = text, image_token, on_token, cancelled
        self.logprobs: torch.Tensor | None = None
        self.tokens: list[AnswerToken] = []
        self.ended = False

    def scores(self, scores: torch.Tensor) -> torch.Tensor:
        require_finite(scores, f"the logits of answer token {len(self.tokens) + 1}")
        self.logprobs = torch.log_softmax(scores[0].float(), -1)
        if self.image_token is not None:  # a steered model can emit the picture's placeholder, which has no meaning
            scores = scores.clone()
            scores[:, self.image_token] = -torch.inf
            # Left out only now: the other tokens keep the probability that a teacher-forced pass gives them.
            self.logprobs[self.image_token] = -torch.inf
        return scores

    def step(self, token: int) -> bool:
        """Take the token chosen at this step; True to stop."""
        assert self.logprobs is not None
        if token in self.text.ends:
            self.ended = True
            return True
        top = self.logprobs.topk(min(ALTERNATIVES, len(self.logprobs)))
        alternatives = tuple(
            Alternative(self.text.one(index), index, value)
            for value, index in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        )
        entry = AnswerToken(self.text.push(token), token, float(self.logprobs[token]), alternatives)
        self.tokens.append(entry)
        if self.on_token:
            self.on_token(entry)
        return self.cancelled()


class _Scores(LogitsProcessor):
    def __init__(self, watch: _Watch) -> None:
        self.watch = watch

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return self.watch.scores(scores)


class _Stops(StoppingCriteria):
    def __init__(self, watch: _Watch) -> None:
        self.watch = watch

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.tensor([self.watch.step(int(input_ids[0, -1]))], device=input_ids.device)


def end_tokens(loaded: Loaded) -> frozenset[int]:
    """The ids that end an answer."""
    ends = loaded.model.generation_config.eos_token_id
    if ends is None:
        ends = loaded.processor.tokenizer.eos_token_id
    return frozenset(ends if isinstance(ends, list) else [ends])


@torch.no_grad()
def generate(
    loaded: Loaded,
    prompt: Prompt,
    features: Seen | None,
    max_new_tokens: int,
    on_token: OnToken | None = None,
    cancelled: IsCancelled = lambda: False,
) -> Answer:
    """Greedy generation of one row, inside whatever hooks are active. Raises Cancelled within one token."""
    if cancelled():
        raise Cancelled("Stopped before the answer began.")
    ends = end_tokens(loaded)
    watch = _Watch(Detokeniser(loaded.processor.tokenizer, ends), loaded.anatomy.image_token_id, on_token, cancelled)
    inputs = embed(loaded, prompt.ids, features)
    forget(loaded)
    loaded.anatomy.runner.generate(
        **inputs.arguments(),
        attention_mask=torch.ones_like(inputs.ids),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        use_cache=True,
        eos_token_id=sorted(ends),
        pad_token_id=loaded.processor.tokenizer.pad_token_id or min(ends),
        logits_processor=LogitsProcessorList([_Scores(watch)]),
        stopping_criteria=StoppingCriteriaList([_Stops(watch)]),
    )
    forget(loaded)
    if cancelled():
        raise Cancelled("Stopped on request.")
    text = "".join(token.text for token in watch.tokens).strip()
    return Answer(text, tuple(watch.tokens), "end" if watch.ended else "length", prompt.tokens)


def answer_ids(answer: Answer) -> list[int]:
    return [token.id for token in answer.tokens]


def with_answer(prompt: Prompt, ids: Sequence[int]) -> torch.Tensor:
    """(pos,) prompt and answer ids together, for a teacher-forced pass."""
    return torch.cat([prompt.ids, torch.as_tensor(list(ids), dtype=prompt.ids.dtype)])
