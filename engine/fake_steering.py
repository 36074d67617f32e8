"""The FakeEngine's sweeps and batches of answers: what its `steer` says, value by value."""

import dataclasses
import time
from collections.abc import Sequence

from engine.contract import (
    Answer,
    Cancelled,
    ConceptTurn,
    IsCancelled,
    LatentTurn,
    NeuronTurn,
    OnProgress,
    OnToken,
    Question,
    RequestError,
    Steered,
    Steering,
    never,
)
from engine.sweeps import SWEEP_LIMIT, OnPoints, SweepPoint, varied

BATCH = 8


class FakeSteering:
    """Mixed into the FakeEngine."""

    delay: float

    def steer(
        self,
        question: Question,
        original_ids: Sequence[int],
        steering: Steering,
        on_token: OnToken | None = None,
        cancelled: IsCancelled = never,
    ) -> Steered:
        raise AssertionError("the engine says how")

    def _generate(
        self, question: Question, steering: Steering, on_token: OnToken | None, cancelled: IsCancelled
    ) -> Answer:
        raise AssertionError("the engine says how")

    def _pause(self, cancelled: IsCancelled) -> None:
        if cancelled():
            raise Cancelled("Stopped before the next token.")
        if self.delay:
            time.sleep(self.delay)
            if cancelled():
                raise Cancelled("Stopped before the next token.")

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
        if not 1 <= len(values) <= SWEEP_LIMIT:
            raise RequestError(f"A sweep takes 1 to {SWEEP_LIMIT} values; {len(values)} were given.")
        whole = []
        for value in values:
            steered = self._undelayed(question, original_ids, varied(steering, turn, value))
            tokens = steered.answer.tokens
            logprob, original = sum(t.logprob for t in tokens), sum(steered.original_under_steered)
            ids = tuple(token.id for token in tokens)
            whole.append((SweepPoint(value, steered.answer.text, ids, logprob, original), tokens))
        points: tuple[SweepPoint, ...] = ()
        for step in range(1, max(len(tokens) for _, tokens in whole) + 1):
            self._pause(cancelled)
            points = tuple(
                dataclasses.replace(
                    point,
                    text="".join(token.text for token in tokens[:step]).strip(),
                    ids=point.ids[:step],
                    logprob=sum(token.logprob for token in tokens[:step]),
                    live=len(tokens) > step,
                )
                for point, tokens in whole
            )
            if on_points is not None:
                on_points(points)
        return points or tuple(point for point, _ in whole)

    def _undelayed(self, question: Question, original_ids: Sequence[int], steering: Steering) -> Steered:
        """What `steer` says, without its delays: a batch takes as long as its longest answer."""
        kept, self.delay = self.delay, 0.0
        try:
            return self.steer(question, original_ids, steering)
        finally:
            self.delay = kept

    def answers(
        self,
        asked: Sequence[tuple[Question, Steering]],
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> tuple[Answer, ...]:
        given: list[Answer] = []
        for question, steering in asked:
            if cancelled():
                raise Cancelled("Stopped between two answers.")
            given.append(self._generate(question, steering, None, cancelled))
            if on_progress is not None and (len(given) % BATCH == 0 or len(given) == len(asked)):
                on_progress(len(given), len(asked))
        return tuple(given)
