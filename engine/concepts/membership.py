"""From probes to memberships (METHODS.md §2.1–2.3).

1. For each probe of concept c the target is the part of the expected answer that says c; its `gradient` scores are
   summed over all positions.
2. They become evidence shares ŝ = max(s, 0) / Σ max(s, 0), so that a confident probe counts like an unsure one.
3. Evidence E_c = mean of ŝ over the probes of c.
4. `specific`: E_c − (mean evidence of the other concepts of the same kind), floored at 0, so that what every question
   of the kind needs — the neurons that say "a colour is wanted" — belongs to none of them.
5. Membership μ_c = φ(E_c) with one of `fuzzy.MAPS`.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from engine.attribution.gradient import gradient
from engine.concepts.fuzzy import MAPS, Memberships, evidence_share
from engine.contract import Pixels, Question, RequestError, Target
from engine.features import Seen
from engine.loading import Loaded
from engine.prompts import Prompt, build_prompt
from engine.running import embed, end_tokens, forward, picture_features, with_answer


@dataclasses.dataclass(frozen=True)
class Probe:
    """A picture (height, width, 3; None for text), a question, the expected answer, and the part of it, `says`, that
    expresses the concept. `box` = (left, top, right, bottom) of the thing in the picture's pixels, where known."""

    picture: Pixels | None
    question: str
    answer: str
    says: str
    box: tuple[float, float, float, float] | None = None


@dataclasses.dataclass(frozen=True)
class Ready:
    """A probe tokenised, its picture's features computed. `target` = the span of `answer_ids` that says the concept."""

    prompt: Prompt
    features: Seen | None
    answer_ids: tuple[int, ...]
    target: Target
    probe: Probe


def encode_answer(loaded: Loaded, answer: str, says: str) -> tuple[tuple[int, ...], Target]:
    """An expected answer's ids as the model writes them (with a leading space), and the token span that says `says`.

    Raises RequestError if the answer does not contain it."""
    text = f" {answer}"
    start = text.rfind(f" {says}")
    if start < 0:
        raise RequestError(f"The expected answer {answer!r} does not contain {says!r}.")
    end = start + 1 + len(says)
    encoded = loaded.processor.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    inside = [k for k, (a, b) in enumerate(encoded["offset_mapping"]) if a < end and b > start + 1]
    return tuple(encoded["input_ids"]), Target(inside[0], inside[-1] + 1)


def prepare(loaded: Loaded, probes: Iterable[Probe]) -> list[Ready]:
    """Tokenise probes and compute their pictures' features."""
    result = []
    for probe in probes:
        prompt = build_prompt(loaded, Question(probe.picture, probe.question))
        ids, target = encode_answer(loaded, probe.answer, probe.says)
        features = picture_features(loaded, prompt.pixels) if prompt.pixels else None
        result.append(Ready(prompt, features, ids, target, probe))
    return result


def probe_scores(loaded: Loaded, ready: Ready) -> Memberships:
    """(n_layers, d_mlp): the `gradient` scores of the span that says the concept, summed over all positions."""
    embeddings = embed(loaded, with_answer(ready.prompt, ready.answer_ids), ready.features)
    scored = gradient(loaded, embeddings, ready.answer_ids, ready.target)
    return np.asarray(torch.stack([layer.sum(0) for layer in scored.scores]).cpu().numpy(), dtype=np.float32)


def evidence(loaded: Loaded, probes: Sequence[Ready]) -> Memberships:
    """E_c (n_layers, d_mlp): the mean evidence share over the probes."""
    shares = [evidence_share(probe_scores(loaded, ready)) for ready in probes]
    return np.asarray(np.mean(shares, axis=0, dtype=np.float32))


def specific(own: Memberships, others: Sequence[Memberships]) -> Memberships:
    """max(E_c − mean of the others' evidence, 0)."""
    if not others:
        return own
    return np.asarray(np.maximum(own - np.mean(others, axis=0, dtype=np.float32), 0.0), dtype=np.float32)


def memberships(evidence_of: Memberships, name: str, quantile: float) -> Memberships:
    """μ = φ(E) with the named map."""
    return MAPS[name](evidence_of, quantile)


@torch.no_grad()
def says_it(loaded: Loaded, ready: Ready) -> bool:
    """Would greedy generation give exactly the expected answer and then end? One teacher-forced pass, inside whatever
    interventions are active: greedy decoding gives it if and only if every argmax along it is right."""
    embeddings = embed(loaded, with_answer(ready.prompt, ready.answer_ids), ready.features)
    best = forward(loaded, embeddings, len(ready.answer_ids) + 1)[0].argmax(-1).tolist()
    return tuple(best[:-1]) == ready.answer_ids and best[-1] in end_tokens(loaded)
