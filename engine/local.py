"""LocalEngine: the `Engine` protocol over one loaded model. One owner thread, one device.

It keeps between calls only results that depend on content alone: the last prompts and pictures' features. Steerings
are data that live as long as the call that carries them.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

import torch

from engine.attribution import noise as noises
from engine.attribution.apart import high_norm_positions, set_apart, special_positions
from engine.attribution.direct import from_captured
from engine.attribution.effects import Subject, subject_of
from engine.attribution.faithfulness import measure, neuron_scores
from engine.attribution.gradient import BY_GRADIENT, require_gradient
from engine.attribution.input_heat import input_heat, input_scores, note_of
from engine.attribution.result import Scored, build
from engine.attribution.scoring import score
from engine.concepts import library as libraries
from engine.concepts.calls import ConceptCalls
from engine.concepts.joining import joined
from engine.contract import (
    METHODS,
    PLAIN,
    Answer,
    Asked,
    Attribution,
    Cancelled,
    Check,
    Concept,
    EngineError,
    Faithfulness,
    Grid,
    InputHeat,
    IsCancelled,
    Library,
    ModelInfo,
    ModelRefused,
    NoiseBand,
    OnProgress,
    OnToken,
    PromptTooLong,
    Question,
    Steering,
    Target,
    UnknownName,
    Variant,
    never,
)
from engine.features import Seen
from engine.interventions import NO_EDITS, Edits, near
from engine.loading import BUILTIN, Loaded, load, processor_name, quiet
from engine.neuron_calls import NeuronCalls
from engine.pieces import pieces_of
from engine.prompts import Prompt
from engine.reuse import Reuse
from engine.running import FeatureCache, PromptCache, answer_ids
from engine.sae.calls import SaeCalls
from engine.selfcheck import checks_of, self_check, why_no_gradient
from engine.steering import SteeringCalls
from engine.targets import Part, continuation_ids, parts_of, ways_to_write


def load_engine(
    model: str = BUILTIN, device: str | None = None, dtype: str | None = None, quantize: int | None = None
) -> "LocalEngine":
    """Load `builtin`, a folder or a hub name, check it, and make it ready; arguments as `engine.loading.load`'s.
    Raises ModelRefused with the reason."""
    quiet()
    return LocalEngine(load(model, device, dtype, quantize))


def check_model(
    model: str = BUILTIN, device: str | None = None, dtype: str | None = None, quantize: int | None = None
) -> ModelInfo:
    """Load a model and run every check of the self-check, whether it holds or not. Raises ModelRefused only where
    there is nothing to check: the model cannot be loaded, or its anatomy is not found."""
    quiet()
    loaded = load(model, device, dtype, quantize)
    checks = checks_of(loaded)
    if all(check.holds for check in checks):
        loaded = dataclasses.replace(loaded, no_gradient=why_no_gradient(loaded))
    return describe(loaded, checks)


def describe(loaded: Loaded, checks: tuple[Check, ...]) -> ModelInfo:
    """What the contract tells of a loaded model."""
    anatomy = loaded.anatomy
    return ModelInfo(
        name=loaded.name,
        revision=loaded.revision,
        family=str(loaded.model.config.model_type),
        device=loaded.devices,
        dtype=loaded.number_type,
        n_layers=anatomy.n_layers,
        d_model=anatomy.d_model,
        d_mlp=anatomy.d_mlp,
        n_parameters=loaded.model.num_parameters(),
        processor=processor_name(loaded),
        builtin=loaded.builtin,
        checks=checks,
        no_gradient=loaded.no_gradient,
    )


def _builtin_library(loaded: Loaded) -> tuple[Library, tuple[Check, ...]]:
    """The built-in model's concepts. A library of other weights is left out, and the self-check says so: memberships
    of one model mean nothing in another, but its answers and neurons are still worth looking at."""
    if not loaded.builtin:
        return libraries.EMPTY, ()
    name = "the concept library belongs to these weights"
    try:
        library = libraries.load(
            libraries.BUILTIN_LIBRARY, loaded.revision, (loaded.anatomy.n_layers, loaded.anatomy.d_mlp)
        )
    except ModelRefused as refused:
        return libraries.EMPTY, (Check(name, False, str(refused)),)
    return library, (Check(name, True, f"{len(library.concepts)} concepts for revision {loaded.revision}"),)


def _spread(prompt: Prompt, features: Seen | None) -> torch.Tensor | None:
    """How image positions are brought onto the grid: read off this run, or else off the layout."""
    return features.spread if features is not None and features.spread is not None else prompt.spread


class LocalEngine(ConceptCalls, NeuronCalls, SteeringCalls, SaeCalls):
    """See `engine.contract.Engine` for what each method promises."""

    def __init__(self, loaded: Loaded) -> None:
        checks = self_check(loaded)
        loaded = dataclasses.replace(loaded, no_gradient=why_no_gradient(loaded))
        self._loaded: Loaded | None = loaded
        self._thread: int | None = None
        self.reuse = Reuse()
        self.forget()
        self._shipped, library_checks = _builtin_library(loaded)
        self._library = self._shipped
        self._info = describe(loaded, (*checks, *library_checks))
        self._matrix = libraries.matrix(self._library, loaded.device)

    @property
    def loaded(self) -> Loaded:
        """The model. Raises EngineError once the engine is closed."""
        if self._loaded is None:
            raise EngineError("This engine is closed.")
        return self._loaded

    def info(self) -> ModelInfo:
        return self._info

    def library(self) -> Library:
        return self._library

    def adopt(self, own: Sequence[Concept]) -> None:
        self._enter("gradient")
        self._library = joined(self._shipped, own, (self._info.n_layers, self._info.d_mlp))
        self._matrix = libraries.matrix(self._library, self.loaded.device)

    def grid(self, question: Question) -> Grid | None:
        return self._prompts.get(self.loaded, question).grid

    def ask(
        self,
        question: Question,
        method: str = "gradient",
        steering: Steering = PLAIN,
        top: int = 50,
        on_token: OnToken | None = None,
        on_answer: Callable[[Answer], None] | None = None,
        cancelled: IsCancelled = never,
    ) -> Asked:
        self._enter(method)
        began = time.perf_counter()
        prompt = self._prompts.get(self.loaded, question)
        edits = self._edits(steering, prompt)
        features = self._features.get(self.loaded, prompt)
        seen = time.perf_counter()
        answer, captured = self._generate(
            question, prompt, features, edits, on_token, cancelled, capturing=method == "direct"
        )
        if on_answer:
            on_answer(answer)
        answered = time.perf_counter()
        ids = answer_ids(answer)
        parts = self._parts(prompt, Target(), ids)
        if captured is not None:
            scored = from_captured(self.loaded, captured, prompt.length, ids, Target())
        else:
            scored = score(self._subject(prompt, features, parts, edits), method, cancelled)
        attribution = self._build(method, Target(), scored, prompt, features, parts, top)
        done = time.perf_counter()
        return Asked(
            answer,
            attribution,
            {
                "picture": 1000 * (seen - began),
                "generate": 1000 * (answered - seen),
                "attribute": 1000 * (done - answered),
                "total": 1000 * (done - began),
            },
        )

    def attribute(
        self,
        question: Question,
        answer_ids: Sequence[int],
        target: Target,
        method: str = "gradient",
        steering: Steering = PLAIN,
        top: int = 50,
        cancelled: IsCancelled = never,
        on_progress: OnProgress | None = None,
    ) -> Attribution:
        self._enter(method)
        prompt = self._prompts.get(self.loaded, question)
        edits = self._edits(steering, prompt)
        features = self._features.get(self.loaded, prompt)
        parts = self._parts(prompt, target, answer_ids)
        if cancelled():
            raise Cancelled("Stopped before attribution.")
        scored = score(self._subject(prompt, features, parts, edits), method, cancelled, on_progress)
        return self._build(method, target, scored, prompt, features, parts, top)

    def input_heat(
        self,
        question: Question,
        answer_ids: Sequence[int],
        target: Target,
        steering: Steering = PLAIN,
        cancelled: IsCancelled = never,
    ) -> InputHeat:
        self._enter("gradient")
        prompt = self._prompts.get(self.loaded, question)
        edits = self._edits(steering, prompt)
        features = self._features.get(self.loaded, prompt)
        subject = self._subject(prompt, features, self._parts(prompt, target, answer_ids), edits)
        scored = input_scores(subject, cancelled)
        kept, _ = set_apart(scored, self._apart(scored, prompt, subject.kinds), target.leave_out)
        note = note_of(self.loaded, subject.sides[0][1], prompt.grid)
        return input_heat(kept, subject.kinds, prompt.grid, _spread(prompt, features), note)

    def variants(self, question: Question, text: str, before: Sequence[int] = ()) -> tuple[Variant, ...]:
        self._enter()
        prompt = self._prompts.get(self.loaded, question)
        features = self._features.get(self.loaded, prompt)
        tokenizer = self.loaded.processor.tokenizer
        found: dict[tuple[int, ...], Variant] = {}
        for written in ways_to_write(text):
            (part,) = self._parts(prompt, Target(len(before), text=written), before)
            if part.explained not in found:
                logprobs = self._logprobs(prompt, features, part.ids, NO_EDITS)[len(before) :]
                pieces = tuple(pieces_of(tokenizer, part.ids)[part.target.start :])
                found[part.explained] = Variant(written, part.explained, pieces, sum(logprobs))
        return tuple(sorted(found.values(), key=lambda variant: (-variant.logprob, variant.text)))

    def faithfulness(
        self,
        question: Question,
        answer_ids: Sequence[int],
        target: Target,
        method: str = "gradient",
        steering: Steering = PLAIN,
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> Faithfulness:
        self._enter(method)
        prompt = self._prompts.get(self.loaded, question)
        edits = self._edits(steering, prompt)
        features = self._features.get(self.loaded, prompt)
        subject = self._subject(prompt, features, self._parts(prompt, target, answer_ids), edits)
        scores = neuron_scores(subject, method, cancelled)
        return measure(subject, scores, method, on_progress=on_progress, cancelled=cancelled)

    def noise(
        self, question: Question, answer_ids: Sequence[int], target: Target, cancelled: IsCancelled = never
    ) -> tuple[NoiseBand, ...]:
        self._enter("gradient")
        prompt = self._prompts.get(self.loaded, question)
        features = self._features.get(self.loaded, prompt)
        parts = self._parts(prompt, target, answer_ids)
        subject = self._subject(prompt, features, parts, NO_EDITS)
        return noises.noise_bands(self.loaded, prompt, subject, parts, cancelled)

    def forget(self) -> None:
        """Drop what is kept of the last prompts and pictures."""
        self._features, self._prompts = FeatureCache(), PromptCache()
        self.reuse.forget()

    def close(self) -> None:
        self.forget()
        self._loaded = None

    def _enter(self, method: str = "direct") -> None:
        """Refuse an unknown method, one that this model has no gradients for, and a call from another thread."""
        if method not in METHODS:
            raise UnknownName(f"There is no attribution method {method!r}. {near(method, METHODS)}")
        if method in BY_GRADIENT:
            require_gradient(self.loaded)
        here = threading.get_ident()
        if self._thread is None:
            self._thread = here
        if self._thread != here:
            raise EngineError("This engine is owned by another thread.")

    def _parts(self, prompt: Prompt, target: Target, ids: Sequence[int]) -> tuple[Part, ...]:
        """The target's sides; raises BadTarget, or PromptTooLong where a side's text does not fit."""
        parts = parts_of(target, ids, lambda text: continuation_ids(self.loaded.processor.tokenizer, text))
        longest, limit = max(len(part.ids) for part in parts), self.loaded.anatomy.max_positions
        if prompt.length + longest > limit:
            raise PromptTooLong(f"Prompt and text need {prompt.length} + {longest} positions; the model has {limit}.")
        return parts

    def _subject(self, prompt: Prompt, features: Seen | None, parts: Sequence[Part], edits: Edits) -> Subject:
        return subject_of(self.loaded, prompt, features, parts, edits)

    def _build(
        self,
        method: str,
        target: Target,
        scored: Scored,
        prompt: Prompt,
        features: Seen | None,
        parts: Sequence[Part],
        top: int,
    ) -> Attribution:
        modality = (*prompt.modality, *["answer"] * max(len(part.ids) for part in parts))
        kept, apart = set_apart(scored, self._apart(scored, prompt, modality), target.leave_out)
        own = parts[0].target
        resolved = dataclasses.replace(target, start=own.start, end=own.end)
        spread = _spread(prompt, features)
        result = build(method, resolved, kept, modality, prompt.grid, self._matrix, top, spread)
        against = parts[1].explained if len(parts) > 1 else ()
        return dataclasses.replace(result, explained=parts[0].explained, explained_against=against, apart=apart)

    def _apart(self, scored: Scored, prompt: Prompt, modality: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Positions that stand apart, by kind."""
        high = high_norm_positions(scored.norms, modality)
        return {"special": special_positions(self.loaded, prompt), "high-norm": high}
