"""What is explained: the sides of a target, each turned into one scalar S (METHODS.md §0).

S(side) = Σ over its tokens of the natural-log probability, or of the logit, at the position that predicts each. Which
tokens those are is for `engine.sides` to say; its functions are given on here.
"""

from collections.abc import Sequence

import torch

from engine.sides import Part, continuation_ids, parts_of, resolve, ways_to_write

__all__ = [
    "Part", "continuation_ids", "parts_of", "resolve", "scalar", "token_logits", "token_logprobs", "ways_to_write",
]  # fmt: skip


def token_logprobs(logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """(tokens,) log-probabilities in float32: logits (tokens, d_vocab) at the positions that predict `ids`."""
    index = torch.as_tensor(list(ids), device=logits.device)
    return torch.log_softmax(logits.float(), -1).gather(-1, index[:, None])[:, 0]


def token_logits(logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """(tokens,) logits in float32 at the positions that predict `ids`."""
    index = torch.as_tensor(list(ids), device=logits.device)
    return logits.float().gather(-1, index[:, None])[:, 0]


def scalar(logits: torch.Tensor, ids: Sequence[int], quantity: str) -> torch.Tensor:
    """S of one side (a scalar): logits (tokens, d_vocab) at the positions that predict `ids`."""
    of = token_logprobs if quantity == "logprob" else token_logits
    return of(logits, ids).sum()
