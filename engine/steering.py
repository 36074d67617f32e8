"""Steering a loaded model: one steering, a sweep of one value, many questions each under a steering of its own.

Rows of a batch are prompts of one length, so nothing is ever padded: a sweep's rows are one prompt, and `answers`
gathers questions whose prompts have the same length and whose pictures lie the same way in them. Each row has edits
of its own (`hooks.intervene`), and so its answer is the one that it gets alone, to float32 rounding of batches.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from engine.concepts.batching import stack
from engine.contract import (
    PLAIN,
    Answer,
    Cancelled,
    ConceptTurn,
    IsCancelled,
    LatentTurn,
    Library,
    NeuronTurn,
    OnProgress,
    OnToken,
    Question,
    RequestError,
    Steered,
    Steering,
    never,
)
from engine.features import Inputs, Past, Seen
from engine.hooks import Captured, capture, intervene, require_finite
from engine.interventions import NO_EDITS, Edits, compile_steering
from engine.loading import Loaded
from engine.prompts import Prompt
from engine.reuse import Reuse, after
from engine.running import (
    FeatureCache,
    PromptCache,
    Row,
    answer_ids,
    embed,
    forward,
    generate,
    generate_rows,
    with_answer,
)
from engine.sae.activations import at_site, first_position
from engine.sae.sae import Sae
from engine.sae.steering import compile_latents
from engine.sweeps import SWEEP_LIMIT, OnPoints, SweepPoint, varied
from engine.targets import token_logprobs

BATCH = 16
"""Questions that `answers` runs at once."""

WAITING = 256
"""Prompts that may wait for others of their length."""

BUDGET = 2**30
"""At most this many numbers are kept in the key–value cache of one batch."""


def at_once(loaded: Loaded, positions: int, most: int) -> int:
    """How many rows of this many positions go into one batch, by the size of their key–value cache."""
    anatomy = loaded.anatomy
    return max(1, min(most, BUDGET // (2 * anatomy.n_layers * anatomy.d_model * positions)))


@torch.no_grad()
def forced_logprobs(
    loaded: Loaded, inputs: Inputs, ids: Sequence[int], edits: Sequence[Edits]
) -> list[tuple[float, ...]]:
    """The log-probability of each of `ids`, the last tokens of `inputs`, under each row's edits."""
    with intervene(loaded.anatomy, edits):
        logits = forward(loaded, inputs, len(ids) + 1)
    require_finite(logits, "the logits of the teacher-forced answer")
    return [tuple(token_logprobs(row[:-1], ids).tolist()) for row in logits]


@dataclasses.dataclass(frozen=True)
class Waiting:
    """A question that waits for its batch: its place in the list, its prompt, features and edits."""

    place: int
    question: Question
    prompt: Prompt
    inputs: Inputs
    edits: Edits

    @property
    def sort(self) -> tuple[Any, ...]:
        """Rows of one sort need no padding beside each other: as long, and the picture at the same positions."""
        pixels = tuple(sorted((name, tuple(value.shape)) for name, value in self.prompt.pixels.items()))
        return (self.prompt.length, tuple(self.prompt.image_positions), pixels)


class SteeringCalls:
    """Mixed into an engine that owns a model."""

    _prompts: PromptCache
    _features: FeatureCache
    reuse: Reuse
    _library: Library
    _sae: Callable[[str], Sae]
    """An attached SAE by name or id."""
    _last_active: tuple[tuple[bytes, str, str], torch.Tensor] | None = None
    """(prompt, SAE) last asked for, and which of its latents are active there."""

    @property
    def loaded(self) -> Loaded:
        """The model."""
        raise AssertionError("an engine says which model it owns")

    def _enter(self, method: str = "direct") -> None:
        """Refuse a method that does not exist, and another thread."""
        raise AssertionError("an engine says who may call it")

    def steer(
        self,
        question: Question,
        original_ids: Sequence[int],
        steering: Steering,
        on_token: OnToken | None = None,
        cancelled: IsCancelled = never,
    ) -> Steered:
        self._enter()
        prompt = self._prompts.get(self.loaded, question)
        edits = self._edits(steering, prompt)
        features = self._features.get(self.loaded, prompt)
        past = None if edits.nothing else self._past(prompt, features, [edits])
        answer, _ = self._generate(question, prompt, features, edits, on_token, cancelled, past=past)
        plain = None if edits.nothing else self._past(prompt, features, [NO_EDITS])
        return Steered(
            answer,
            self._logprobs(prompt, features, original_ids, edits, past),
            self._logprobs(prompt, features, answer_ids(answer), NO_EDITS, plain),
            edits.n_neurons,
        )

    def _past(self, prompt: Prompt, features: Seen | None, edits: Sequence[Edits]) -> Past | None:
        """The prompt's positions before its last one, already run: the unsteered ones that are kept, where no row acts
        there; else run under the edits, for this call alone, but for the layers below the first that they change. None
        where this model cannot go on from them."""
        inputs = embed(self.loaded, prompt.ids, features)
        if not self.reuse.holds(self.loaded, inputs):
            return None
        return self.reuse.edited(self.loaded, prompt, inputs, edits)

    def _kept(self, prompt: Prompt, features: Seen | None, edits: Edits) -> Past | None:
        """For one answer: the kept positions where the edits leave them as they are, None where they must be run."""
        acts_late = not edits.nothing and edits.from_the_end
        return self._past(prompt, features, [edits]) if acts_late else None

    def _inputs(
        self, ids: torch.Tensor, features: Seen | None, past: Past | None, rows: int = 1, last: bool = False
    ) -> Inputs:
        """`rows` times prompt (+ answer) `ids` (pos,), from `past` on where there is one; `last` as in `after`."""
        if past is None:
            return embed(self.loaded, ids, features).repeat(rows)
        return after(ids.to(self.loaded.device).repeat(rows, 1), past, self.loaded.anatomy.d_model, last)

    def sweep(
        self,
        question: Question,
        original_ids: Sequence[int],
        steering: Steering,
        turn: ConceptTurn | NeuronTurn | LatentTurn,
        values: Sequence[float],
        on_points: OnPoints | None = None,
        cancelled: IsCancelled = never,
    ) -> tuple[SweepPoint, ...]:
        self._enter()
        if not 1 <= len(values) <= SWEEP_LIMIT:
            raise RequestError(f"A sweep takes 1 to {SWEEP_LIMIT} values; {len(values)} were given.")
        prompt = self._prompts.get(self.loaded, question)
        edits = [self._edits(varied(steering, turn, value), prompt) for value in values]
        if cancelled():
            raise Cancelled("Stopped before the sweep began.")
        features = self._features.get(self.loaded, prompt)
        positions = prompt.length + max(question.max_new_tokens, len(original_ids))
        size = at_once(self.loaded, positions, len(values))
        points = [SweepPoint(value, "", (), 0.0, 0.0, True) for value in values]
        for start in range(0, len(values), size):
            self._sweep_rows(
                points, start, edits[start : start + size], question, original_ids, features, on_points, cancelled
            )
        return tuple(points)

    def _sweep_rows(
        self,
        points: list[SweepPoint],
        start: int,
        edits: Sequence[Edits],
        question: Question,
        original_ids: Sequence[int],
        features: Seen | None,
        on_points: OnPoints | None,
        cancelled: IsCancelled,
    ) -> None:
        """Fill `points` from `start` on: one batch, one row for each of `edits`."""
        prompt = self._prompts.get(self.loaded, question)
        past = self._past(prompt, features, edits)
        original = [0.0] * len(edits)
        if original_ids:
            forced = self._inputs(with_answer(prompt, original_ids), features, past, len(edits))
            original = [sum(row) for row in forced_logprobs(self.loaded, forced, original_ids, edits)]

        def tell(rows: Sequence[Row]) -> None:
            for k, row in enumerate(rows):
                answer = row.answer(prompt)
                points[start + k] = SweepPoint(
                    points[start + k].value,
                    answer.text,
                    tuple(answer_ids(answer)),
                    sum(token.logprob for token in row.tokens),
                    original[k],
                    row.live,
                )
            if on_points:
                on_points(tuple(points))

        inputs = self._inputs(prompt.ids, features, past, len(edits), last=True)
        with intervene(self.loaded.anatomy, edits):
            generate_rows(self.loaded, inputs, [question.max_new_tokens] * len(edits), tell, cancelled)

    def answers(
        self,
        asked: Sequence[tuple[Question, Steering]],
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> tuple[Answer, ...]:
        self._enter()
        given: dict[int, Answer] = {}

        def tell() -> None:
            if on_progress is not None:
                on_progress(len(given), len(asked))

        for batch in self._batches(asked, tell, cancelled):
            rows = [row.inputs for row in batch]
            with intervene(self.loaded.anatomy, [row.edits for row in batch]):
                ended = generate_rows(
                    self.loaded,
                    stack(rows, 0) if len(rows) > 1 else rows[0],
                    [row.question.max_new_tokens for row in batch],
                    None,
                    cancelled,
                )
            given.update({row.place: end.answer(row.prompt) for row, end in zip(batch, ended, strict=True)})
            tell()
        return tuple(given[place] for place in range(len(asked)))

    def _batches(
        self, asked: Sequence[tuple[Question, Steering]], tell: Callable[[], None], cancelled: IsCancelled
    ) -> Iterator[list[Waiting]]:
        """The questions in batches of one sort: a batch goes when it is full, the largest when too many wait. `tell` is
        called before each question's picture is looked at."""
        waiting: dict[tuple[Any, ...], list[Waiting]] = {}
        for place, (question, steering) in enumerate(asked):
            if cancelled():
                raise Cancelled("Stopped between two answers.")
            tell()
            prompt = self._prompts.get(self.loaded, question)
            edits = self._edits(steering, prompt)
            inputs = embed(self.loaded, prompt.ids, self._features.get(self.loaded, prompt))
            one = Waiting(place, question, prompt, inputs, edits)
            group = waiting.setdefault(one.sort, [])
            group.append(one)
            if len(group) == at_once(self.loaded, prompt.length + question.max_new_tokens, BATCH):
                yield waiting.pop(one.sort)
            elif sum(map(len, waiting.values())) >= WAITING:
                yield waiting.pop(max(waiting, key=lambda sort: len(waiting[sort])))
        yield from waiting.values()

    def generate_only(self, question: Question, steering: Steering = PLAIN) -> Answer:
        """The (steered) answer and nothing else; for measurements."""
        self._enter()
        prompt = self._prompts.get(self.loaded, question)
        features = self._features.get(self.loaded, prompt)
        return self._generate(question, prompt, features, self._edits(steering, prompt), None, never)[0]

    def _edits(self, steering: Steering, prompt: Prompt) -> Edits:
        loaded, anatomy = self.loaded, self.loaded.anatomy
        latents = compile_latents(
            steering, self._sae, first_position(loaded, prompt), lambda sae: self._active(sae, prompt)
        )
        return compile_steering(
            steering, self._library, prompt.modality, anatomy.n_layers, anatomy.d_mlp, loaded.device, latents
        )

    @torch.no_grad()
    def _active(self, sae: Sae, prompt: Prompt) -> torch.Tensor:
        """(n_latents,) bool: active at a position of the unsteered prompt where the SAE stands."""
        key = (prompt.ids.numpy().tobytes(), prompt.key, sae.info.id)
        if self._last_active is None or self._last_active[0] != key:
            inputs = embed(self.loaded, prompt.ids, self._features.get(self.loaded, prompt))
            states = at_site(self.loaded, inputs, sae.info.layer, sae.info.site)[0]
            H = sae.encode(states[first_position(self.loaded, prompt) :].to(sae.W_enc.device))
            self._last_active = key, (H > 0).any(0).cpu()
        return self._last_active[1]

    def _generate(
        self,
        question: Question,
        prompt: Prompt,
        features: Seen | None,
        edits: Edits,
        on_token: OnToken | None,
        cancelled: IsCancelled,
        capturing: bool = False,
        past: Past | None = None,
    ) -> tuple[Answer, Captured | None]:
        """The answer and, with `capturing`, what its last positions held. `past`: the prompt already run under the
        edits; else what is kept of it is gone on from."""
        inputs = self._inputs(prompt.ids, features, past or self._kept(prompt, features, edits))
        keeping: AbstractContextManager[Captured | None] = (
            capture(self.loaded.anatomy, last_only=True) if capturing else nullcontext()
        )
        with intervene(self.loaded.anatomy, [edits]), keeping as captured:
            answer = generate(self.loaded, prompt, inputs, question.max_new_tokens, on_token, cancelled)
        return answer, captured

    def _logprobs(
        self, prompt: Prompt, features: Seen | None, ids: Sequence[int], edits: Edits, past: Past | None = None
    ) -> tuple[float, ...]:
        if not ids:
            return ()
        return forced_logprobs(self.loaded, self._inputs(with_answer(prompt, ids), features, past), ids, [edits])[0]
