"""Running the model: picture features, greedy generation with streaming, and one teacher-forced forward pass.

Picture features do not depend on the question nor on any steering of the decoder, so they are kept for the last few
pictures, by content. Everything after them is computed anew for each request; no key–value cache outlives its call.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from engine.contract import Alternative, Answer, AnswerToken, Cancelled, IsCancelled, OnToken
from engine.hooks import require_finite
from engine.loading import Loaded
from engine.prompts import Prompt

ALTERNATIVES = 5


class FeatureCache:
    """The projected picture features of the last `size` pictures, keyed by the pixels' hash. Holds results only."""

    def __init__(self, size: int = 8) -> None:
        self.size = size
        self.kept: OrderedDict[str, torch.Tensor] = OrderedDict()

    def get(self, loaded: Loaded, prompt: Prompt) -> torch.Tensor | None:
        """(image positions, d_model) features of the prompt's picture; None for a text-only prompt."""
        if not prompt.pixels:
            return None
        if prompt.key in self.kept:
            self.kept.move_to_end(prompt.key)
            return self.kept[prompt.key]
        features = picture_features(loaded, prompt.pixels)
        self.kept[prompt.key] = features
        while len(self.kept) > self.size:
            self.kept.popitem(last=False)
        return features


@torch.no_grad()
def picture_features(loaded: Loaded, pixels: dict[str, Any]) -> torch.Tensor:
    """(image positions, d_model): the vision tower and projector, through the model's own method."""
    model = loaded.model
    moved = {
        name: value.to(loaded.device, model.dtype) if value.is_floating_point() else value.to(loaded.device)
        for name, value in pixels.items()
    }
    result = model.get_image_features(**moved)
    result = getattr(result, "pooler_output", result)
    if isinstance(result, list | tuple):
        result = torch.cat(list(result))
    features: torch.Tensor = result.reshape(-1, result.shape[-1])
    require_finite(features, "the picture's features")
    return features


@torch.no_grad()
def embed(loaded: Loaded, ids: torch.Tensor, features: torch.Tensor | None) -> torch.Tensor:
    """(1, pos, d_model) input embeddings with the picture's features at the image positions."""
    ids = ids.to(loaded.device)
    embeddings: torch.Tensor = loaded.anatomy.embedding(ids[None])
    image_token = loaded.anatomy.image_token_id
    if features is not None and image_token is not None:
        at_image = ids.eq(image_token)[None, :, None]
        embeddings = embeddings.masked_scatter(at_image, features.to(embeddings.dtype))
    return embeddings


def forward(loaded: Loaded, embeddings: torch.Tensor, keep: int) -> torch.Tensor:
    """(rows, keep, d_vocab): the logits at the last `keep` positions, by the model's own forward pass."""
    positions = torch.arange(embeddings.shape[1], device=embeddings.device)[None]
    output = loaded.model(
        inputs_embeds=embeddings, position_ids=positions, use_cache=False, logits_to_keep=keep, return_dict=True
    )
    logits: torch.Tensor = output.logits
    return logits


class Detokeniser:
    """Ids to text, one token at a time. A character spread over several tokens is given with the token that completes
    it; an incomplete one stays empty until then, so the pieces joined are always the decoded whole."""

    def __init__(self, tokenizer: Any, ends: frozenset[int]) -> None:
        self.tokenizer, self.ends = tokenizer, ends
        self.ids: list[int] = []
        self.shown = ""

    def one(self, token: int) -> str:
        """A single token out of context, with its leading space where the vocabulary writes one."""
        return str(self.tokenizer.decode([token]))

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
    features: torch.Tensor | None,
    max_new_tokens: int,
    on_token: OnToken | None = None,
    cancelled: IsCancelled = lambda: False,
) -> Answer:
    """Greedy generation of one row, inside whatever hooks are active. Raises Cancelled within one token."""
    if cancelled():
        raise Cancelled("Stopped before the answer began.")
    ends = end_tokens(loaded)
    watch = _Watch(Detokeniser(loaded.processor.tokenizer, ends), loaded.anatomy.image_token_id, on_token, cancelled)
    ids = prompt.ids[None].to(loaded.device)
    loaded.model.generate(
        input_ids=ids,
        inputs_embeds=embed(loaded, prompt.ids, features),
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        use_cache=True,
        eos_token_id=sorted(ends),
        pad_token_id=loaded.processor.tokenizer.pad_token_id or min(ends),
        logits_processor=LogitsProcessorList([_Scores(watch)]),
        stopping_criteria=StoppingCriteriaList([_Stops(watch)]),
    )
    if cancelled():
        raise Cancelled("Stopped on request.")
    text = "".join(token.text for token in watch.tokens).strip()
    return Answer(text, tuple(watch.tokens), "end" if watch.ended else "length", prompt.tokens)


def answer_ids(answer: Answer) -> list[int]:
    return [token.id for token in answer.tokens]


def with_answer(prompt: Prompt, ids: Sequence[int]) -> torch.Tensor:
    """(pos,) prompt and answer ids together, for a teacher-forced pass."""
    return torch.cat([prompt.ids, torch.as_tensor(list(ids), dtype=prompt.ids.dtype)])
