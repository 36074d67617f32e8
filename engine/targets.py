"""What is explained: token spans of a teacher-forced answer, turned into one scalar S (METHODS.md §0)."""

from collections.abc import Sequence

import torch

from engine.contract import BadTarget, Target


def resolve(target: Target, length: int) -> tuple[int, int]:
    """(start, end) of a target over an answer of `length` tokens. Raises BadTarget when it is empty or outside."""
    end = length if target.end is None else target.end
    if length == 0:
        raise BadTarget("The answer is empty, so there is nothing to attribute. Ask another question.")
    if not 0 <= target.start < end <= length:
        raise BadTarget(
            f"The target {target.start}–{end} does not lie inside the answer's {length} tokens. "
            f"Choose a start from 0 to {length - 1} and an end from start + 1 to {length}."
        )
    return target.start, end


def token_logprobs(logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """(tokens,) log-probabilities in float32: logits (tokens, d_vocab) at the positions that predict `ids`."""
    index = torch.as_tensor(list(ids), device=logits.device)
    return torch.log_softmax(logits.float(), -1).gather(-1, index[:, None])[:, 0]


def token_logits(logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """(tokens,) logits in float32 at the positions that predict `ids`."""
    index = torch.as_tensor(list(ids), device=logits.device)
    return logits.float().gather(-1, index[:, None])[:, 0]
