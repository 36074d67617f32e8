"""From a probe to its scores (METHODS.md §2.1–2.2); what follows from many is in `engine.concepts.evidence`.

1. The target of a probe of concept c is the part of the expected answer that says c; its `gradient` scores are summed
   over all positions. A probe with a contrast has two sides, and its score is their difference.
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
from engine.concepts.probes import Probe, find_form
from engine.contract import PromptTooLong, Question, RequestError, Target
from engine.features import Seen
from engine.loading import Loaded
from engine.prompts import Prompt, build_prompt
from engine.running import embed, end_tokens, forward, picture_features, with_answer
from engine.targets import Part

__all__ = [
    "Probe", "Ready", "encode_answer", "evidence", "memberships", "prepare", "prepare_one", "probe_scores", "says_it",
    "specific",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Ready:
    """A probe tokenised, its picture's features computed. `target` = the span of `answer_ids` that says the concept;
    `other` = the side that is subtracted, where the probe has a contrast."""

    prompt: Prompt
    features: Seen | None
    answer_ids: tuple[int, ...]
    target: Target
    probe: Probe
    other: Part | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The sides of its target."""
        own = Part(1, self.answer_ids, self.target)
        return (own,) if self.other is None else (own, self.other)


def leading_space(prompt: Prompt) -> str:
    """What stands before an answer's first word: nothing where the prompt ends in white space or with a mark like
    `<|assistant|>` or `[/INST]`, as chat templates with a line for the role do, else a space."""
    last = prompt.tokens[-1].text
    return "" if not last or last[-1].isspace() or last[-1] in ">]}|" else " "


def encode_answer(loaded: Loaded, answer: str, says: str, lead: str = " ") -> tuple[tuple[int, ...], Target]:
    """An expected answer's ids as the model writes them (after `lead`), and the token span that says `says`.

    It is tokenised behind a mark, since some tokenizers put a space before the first word of what they are given.
    Raises RequestError if the answer does not contain it."""
    place = find_form(answer, says)
    if place is None:
        raise RequestError(f"The expected answer {answer!r} does not contain {says!r}.")
    start, end = (len(lead) + edge for edge in place)
    tokenizer = loaded.processor.tokenizer
    mark = tokenizer(":", add_special_tokens=False)["input_ids"]
    behind = tokenizer(f":{lead}{answer}", add_special_tokens=False, return_offsets_mapping=True)
    if behind["input_ids"][: len(mark)] == mark:
        ids, offsets = (
            behind["input_ids"][len(mark) :],
            [(a - 1, b - 1) for a, b in behind["offset_mapping"][len(mark) :]],
        )
    else:
        whole = tokenizer(f"{lead}{answer}", add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = whole["input_ids"], whole["offset_mapping"]
    reserved = {*tokenizer.all_special_ids, *tokenizer.added_tokens_encoder.values()}
    if reserved & set(ids):
        raise RequestError(f"The expected answer {answer!r} holds a token that the model reserves. Leave it out.")
    inside = [k for k, (a, b) in enumerate(offsets) if a < end and b > start]
    return tuple(ids), Target(inside[0], inside[-1] + 1)


def _other_side(loaded: Loaded, probe: Probe, lead: str, quantity: str) -> Part | None:
    """The contrast's side: the answer with `against` in the place of `says`."""
    if probe.against is None:
        return None
    place = find_form(probe.answer, probe.says)
    assert place is not None
    text = probe.answer[: place[0]] + probe.against + probe.answer[place[1] :]
    ids, target = encode_answer(loaded, text, probe.against, lead)
    return Part(-1, ids, dataclasses.replace(target, quantity=quantity))


def prepare_one(loaded: Loaded, probe: Probe, kept: dict[str, Seen] | None = None) -> Ready:
    """Tokenise a probe and compute its picture's features, or take them from `kept` (by `Prompt.key`). Raises
    RequestError (PictureTooSmall, PromptTooLong among them)."""
    prompt = build_prompt(loaded, Question(probe.picture, probe.question, 1))
    lead = leading_space(prompt)
    ids, target = encode_answer(loaded, probe.answer, probe.says, lead)
    other = _other_side(loaded, probe, lead, target.quantity)
    longest = max(len(ids), len(other.ids) if other else 0)
    limit = loaded.anatomy.max_positions
    if prompt.length + longest > limit:
        raise PromptTooLong(f"Prompt and answer need {prompt.length} + {longest} positions; the model has {limit}.")
    features = None
    if prompt.pixels:
        memory = {} if kept is None else kept
        if prompt.key not in memory:
            memory[prompt.key] = picture_features(loaded, prompt.pixels)
        features = memory[prompt.key]
    return Ready(prompt, features, ids, target, probe, other)


def prepare(loaded: Loaded, probes: Iterable[Probe]) -> list[Ready]:
    """Tokenise probes and compute their pictures' features."""
    return [prepare_one(loaded, probe) for probe in probes]


def probe_scores(loaded: Loaded, ready: Ready) -> Memberships:
    """(n_layers, d_mlp): the `gradient` scores of the part that says the concept, summed over all positions, one probe
    alone: what batches are compared with."""
    total: torch.Tensor | None = None
    for part in ready.parts:
        embeddings = embed(loaded, with_answer(ready.prompt, part.ids), ready.features)
        scored = gradient(loaded, embeddings, part.ids, part.target)
        side = part.sign * torch.stack([layer.sum(0) for layer in scored.scores])
        total = side if total is None else total + side
    assert total is not None
    return np.asarray(total.cpu().numpy(), dtype=np.float32)


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
