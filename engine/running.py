"""Running the model: kept prompts and picture features, and greedy generation with streaming.

Picture features do not depend on the question nor on any steering of the decoder, so they are kept for the last few
pictures, by content. Everything after them is computed anew for each request; no key–value cache outlives its call.
"""

import hashlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from engine.contract import Alternative, Answer, AnswerToken, Cancelled, IsCancelled, OnToken, Question, never
from engine.features import Inputs, Seen, embed, forget, forward, picture_features, recall, with_prompt
from engine.hooks import require_finite
from engine.loading import Loaded
from engine.pieces import alone
from engine.prompts import Prompt, build_prompt

__all__ = [
    "FeatureCache", "PromptCache", "Row", "answer_ids", "embed", "end_tokens", "forward", "generate", "generate_rows",
    "picture_features", "with_answer",
]  # fmt: skip

ALTERNATIVES = 5

OnStep = Callable[[Sequence["Row"]], None]


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


class Row:
    """One row's answer as it grows: at most `limit` tokens. `ended` = the model ended it."""

    def __init__(self, text: Detokeniser, limit: int) -> None:
        self.text, self.limit = text, limit
        self.tokens: list[AnswerToken] = []
        self.ended = False

    @property
    def live(self) -> bool:
        return not self.ended and len(self.tokens) < self.limit

    def answer(self, prompt: Prompt) -> Answer:
        text = "".join(token.text for token in self.tokens).strip()
        return Answer(text, tuple(self.tokens), "end" if self.ended else "length", prompt.tokens)

    def take(self, token: int, logprob: float, top: tuple[list[float], list[int]]) -> None:
        """The token chosen at this step, with its alternatives (log-probabilities, ids)."""
        if token in self.text.ends:
            self.ended = True
            return
        alternatives = tuple(Alternative(self.text.one(index), index, value) for value, index in zip(*top, strict=True))
        self.tokens.append(AnswerToken(self.text.push(token), token, logprob, alternatives))


class _Watch:
    """One generation's steps: logits come in through `_Scores`, chosen tokens through `_Stops`."""

    def __init__(self, rows: Sequence[Row], image_token: int | None, on_step: OnStep | None, cancelled: IsCancelled):
        self.rows, self.image_token, self.on_step, self.cancelled = rows, image_token, on_step, cancelled
        self.logprobs: torch.Tensor | None = None
        self.steps = 0

    def scores(self, scores: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        live = scores if len(self.rows) == 1 else scores[[k for k, row in enumerate(self.rows) if row.live]]
        require_finite(live, f"the logits of answer token {self.steps}")
        self.logprobs = torch.log_softmax(scores.float(), -1)
        if self.image_token is not None:  # a steered model can emit the picture's placeholder, which has no meaning
            scores = scores.clone()
            scores[:, self.image_token] = -torch.inf
            # Left out only now: the other tokens keep the probability that a teacher-forced pass gives them.
            self.logprobs[:, self.image_token] = -torch.inf
        return scores

    def step(self, chosen: torch.Tensor) -> list[bool]:
        """Take the tokens (rows,) chosen at this step; which rows stop here."""
        assert self.logprobs is not None
        top = self.logprobs.topk(min(ALTERNATIVES, self.logprobs.shape[-1]))
        logprobs = self.logprobs.gather(-1, chosen.to(self.logprobs.device)[:, None])[:, 0].tolist()
        values, indices = top.values.tolist(), top.indices.tolist()
        for k, token in enumerate(chosen.tolist()):
            if self.rows[k].live:
                self.rows[k].take(token, logprobs[k], (values[k], indices[k]))
        if self.on_step:
            self.on_step(self.rows)
        stop = self.cancelled()
        return [stop or not row.live for row in self.rows]


class _Scores(LogitsProcessor):
    def __init__(self, watch: _Watch) -> None:
        self.watch = watch

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return self.watch.scores(scores)


class _Stops(StoppingCriteria):
    def __init__(self, watch: _Watch) -> None:
        self.watch = watch

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.tensor(self.watch.step(input_ids[:, -1]), device=input_ids.device)


def end_tokens(loaded: Loaded) -> frozenset[int]:
    """The ids that end an answer."""
    ends = loaded.model.generation_config.eos_token_id
    if ends is None:
        ends = loaded.processor.tokenizer.eos_token_id
    return frozenset(ends if isinstance(ends, list) else [ends])


@torch.no_grad()
def generate_rows(
    loaded: Loaded,
    inputs: Inputs,
    limits: Sequence[int],
    on_step: OnStep | None = None,
    cancelled: IsCancelled = never,
) -> list[Row]:
    """Greedy generation of each row of `inputs` (prompts of one length, so that nothing is padded), inside whatever
    hooks are active: at most `limits[k]` tokens for row k. A row that has ended is run on with a padding token, and
    nothing of it is read. `on_step(rows)` is called after each token. Raises Cancelled within one token."""
    if cancelled():
        raise Cancelled("Stopped before the answer began.")
    ends = end_tokens(loaded)
    tokenizer = loaded.processor.tokenizer
    rows = [Row(Detokeniser(tokenizer, ends), limit) for limit in limits]
    watch = _Watch(rows, loaded.anatomy.image_token_id, on_step, cancelled)
    recall(loaded, inputs)
    try:
        loaded.anatomy.runner.generate(
            **inputs.arguments(),
            attention_mask=torch.ones_like(inputs.ids),
            max_new_tokens=max(limits),
            do_sample=False,
            num_beams=1,
            use_cache=True,
            eos_token_id=sorted(ends),
            pad_token_id=tokenizer.pad_token_id or min(ends),
            logits_processor=LogitsProcessorList([_Scores(watch)]),
            stopping_criteria=StoppingCriteriaList([_Stops(watch)]),
        )
    finally:
        forget(loaded)
    if cancelled():
        raise Cancelled("Stopped on request.")
    return rows


def generate(
    loaded: Loaded,
    prompt: Prompt,
    inputs: Inputs,
    max_new_tokens: int,
    on_token: OnToken | None = None,
    cancelled: IsCancelled = never,
) -> Answer:
    """Greedy generation of one row, `inputs` = the prompt's, inside whatever hooks are active. Raises Cancelled within
    one token."""

    def tell(rows: Sequence[Row]) -> None:
        if on_token and not rows[0].ended:
            on_token(rows[0].tokens[-1])

    (row,) = generate_rows(loaded, inputs, [max_new_tokens], tell, cancelled)
    return row.answer(prompt)


def answer_ids(answer: Answer) -> list[int]:
    return [token.id for token in answer.tokens]


def with_answer(prompt: Prompt, ids: Sequence[int]) -> torch.Tensor:
    """(pos,) prompt and answer ids together, for a teacher-forced pass."""
    return torch.cat([prompt.ids, torch.as_tensor(list(ids), dtype=prompt.ids.dtype)])
