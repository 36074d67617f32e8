"""`engine.sae.contract.SaeEngine` over one loaded model: what `LocalEngine` can do with sparse autoencoders."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from engine.contract import (
    PLAIN,
    Answer,
    Cancelled,
    Floats,
    IsCancelled,
    OnProgress,
    Question,
    RequestError,
    Steering,
    Target,
    UnknownName,
    never,
)
from engine.features import Seen, embed
from engine.hooks import replace_site
from engine.interventions import Edits, near
from engine.loading import Loaded
from engine.neurons_contract import Survey
from engine.prompts import Prompt
from engine.running import FeatureCache, PromptCache, generate_rows
from engine.sae import experiments, fit, influence, latents, loading, masking, train
from engine.sae.contract import (
    DEFAULT,
    Influence,
    Item,
    LatentLens,
    OnPoint,
    Recipe,
    Report,
    SaeFit,
    SaeInfo,
    SeenLatent,
    Settings,
    check_settings,
)
from engine.sae.membership_calls import LatentConceptCalls
from engine.sae.sae import Sae
from engine.targets import Part

SHIPPED = Path(__file__).parent.parent / "builtin" / "sae"
SHIPPED_SOURCE = "shipped with the built-in model"
ROWS = 8
"""Answers that are generated in one batch."""


class SaeCalls(LatentConceptCalls):
    """Mixed into an engine that owns a model."""

    _prompts: PromptCache
    _features: FeatureCache
    _standing: dict[str, Sae] | None = None
    """Attached SAEs by name; None until the shipped ones are looked for."""

    @property
    def loaded(self) -> Loaded:
        """The model."""
        raise AssertionError("an engine says which model it owns")

    def _enter(self, method: str = "direct") -> None:
        """Refuse a method that does not exist, and another thread."""
        raise AssertionError("an engine says who may call it")

    def _edits(self, steering: Steering, prompt: Prompt) -> Edits:
        raise AssertionError("an engine says how it is steered")

    def _parts(self, prompt: Prompt, target: Target, ids: Sequence[int]) -> tuple[Part, ...]:
        raise AssertionError("an engine says what fits into its model")

    def answers(
        self,
        asked: Sequence[tuple[Question, Steering]],
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> tuple[Answer, ...]:
        """Greedy answers under steerings."""
        raise AssertionError("an engine says how it is steered")

    def _attached(self) -> dict[str, Sae]:
        if self._standing is None:
            folders = sorted(SHIPPED.glob("*/card.json")) if self.loaded.builtin else []
            self._standing = {}
            for folder in folders:
                sae = loading.read(str(folder.parent)).to(self.loaded.device)
                fits = ""
                if sae.info.model_revision != self.loaded.revision:
                    fits = f"It belongs to the weights {sae.info.model_revision}; these are {self.loaded.revision}."
                self._standing[sae.info.name] = _named(sae, sae.info.name, fits, SHIPPED_SOURCE)
        return self._standing

    def _sae(self, name: str) -> Sae:
        known = self._attached()
        found = known.get(name) or next((sae for sae in known.values() if sae.info.id == name), None)
        if found is None:
            hint = near(name, list(known)) if known else "None is attached to this model: attach or train one."
            raise UnknownName(f"There is no SAE “{name}”. {hint}")
        if found.info.fits:
            raise RequestError(f"The SAE “{found.info.name}” cannot be used here. {found.info.fits}")
        return found

    def _shipped_with(self, sae: Sae) -> Path | None:
        folder = SHIPPED / sae.info.name
        return folder if sae.info.source == SHIPPED_SOURCE and folder.is_dir() else None

    def saes(self) -> tuple[SaeInfo, ...]:
        return tuple(sae.info for sae in self._attached().values())

    def attach_sae(self, path: str, layer: int | None = None, site: str | None = None, name: str = "") -> SaeInfo:
        self._enter()
        return self._add(loading.attach(self.loaded, path, layer, site), name)

    def check_sae(self, sae: str, questions: Sequence[Question] = ()) -> SaeFit:
        self._enter()
        return fit.check(self.loaded, self._sae(sae), questions)

    def _add(self, sae: Sae, name: str = "") -> SaeInfo:
        known = self._attached()
        same = next((other.info for other in known.values() if other.info.id == sae.info.id), None)
        if same is not None:
            return same
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name or sae.info.name).strip("-.") or "sae"
        name, number = stem, 1
        while name in known:
            number += 1
            name = f"{stem}-{number}"
        known[name] = _named(sae, name, "", sae.info.source)
        return known[name].info

    def detach_sae(self, sae: str) -> None:
        known = self._attached()
        name = next((name for name, one in known.items() if sae in (name, one.info.id)), None)
        if name is None:
            raise UnknownName(f"There is no SAE “{sae}”. {near(sae, list(known))}")
        del known[name]

    def latent_influence(
        self,
        question: Question,
        answer_ids: Sequence[int],
        sae: str,
        settings: Settings = DEFAULT,
        steering: Steering = PLAIN,
        top: int = 50,
        cancelled: IsCancelled = never,
    ) -> Influence:
        self._enter("gradient")
        case = self._case(question, answer_ids, sae, settings, steering)
        seen = case.features
        spread = seen.spread if seen is not None and seen.spread is not None else case.prompt.spread
        return influence.influence(case, spread, top, cancelled)

    def latent_ablation(
        self,
        question: Question,
        answer_ids: Sequence[int],
        sae: str,
        latents: Sequence[int],
        settings: Settings = DEFAULT,
        steering: Steering = PLAIN,
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> Floats:
        self._enter()
        case = self._case(question, answer_ids, sae, settings, steering)
        lost: Floats = influence.ablation(case, latents, on_progress=on_progress, cancelled=cancelled).numpy()
        return lost

    def _case(
        self, question: Question, ids: Sequence[int], sae: str, settings: Settings, steering: Steering
    ) -> influence.Case:
        found = self._sae(sae)
        prompt = self._prompts.get(self.loaded, question)
        edits = self._edits(steering, prompt)
        features: Seen | None = self._features.get(self.loaded, prompt)
        if ids:
            self._parts(prompt, Target(), ids)  # refuses what does not fit
        return influence.Case.of(self.loaded, found, settings, prompt, features, ids, edits)

    def latent_answers(
        self,
        question: Question,
        sae: str,
        zeroed: Sequence[Sequence[int]],
        settings: Settings = DEFAULT,
        cancelled: IsCancelled = never,
    ) -> tuple[Answer, ...]:
        self._enter()
        found = self._sae(sae)
        check_settings(settings)
        for c in {c for row in zeroed for c in row}:
            influence.require_latent(found, c)
        prompt = self._prompts.get(self.loaded, question)
        features = self._features.get(self.loaded, prompt)
        first = influence.standing_from(self.loaded, prompt, settings)
        made: list[Answer] = []
        for start in range(0, len(zeroed), ROWS):
            if cancelled():
                raise Cancelled("Stopped between two answers.")
            some = [torch.tensor(sorted(set(row)), dtype=torch.long) for row in zeroed[start : start + ROWS]]
            change = influence.standing(found, settings, first, some)
            inputs = embed(self.loaded, prompt.ids, features).repeat(len(some))
            with replace_site(self.loaded.anatomy, found.info.layer, found.info.site, change):
                rows = generate_rows(self.loaded, inputs, [question.max_new_tokens] * len(some), None, cancelled)
            made += [row.answer(prompt) for row in rows]
        return tuple(made)

    def latent_lens(self, sae: str, index: int) -> LatentLens:
        self._enter()
        return latents.latent_lens(self.loaded, self._sae(sae), index)

    def seen_latents(
        self,
        sae: str,
        indices: Sequence[int],
        questions: Sequence[Question],
        top: int = 8,
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> tuple[tuple[SeenLatent, ...], ...]:
        self._enter()
        return latents.seen_latents(self.loaded, self._sae(sae), indices, questions, top, on_progress, cancelled)

    def latent_survey(
        self,
        sae: str,
        questions: Sequence[Question],
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> Survey:
        self._enter()
        return latents.latent_survey(self.loaded, self._sae(sae), questions, on_progress, cancelled)

    def neuron_readers(self, sae: str, layer: int, index: int, top: int = 5) -> tuple[tuple[int, float], ...]:
        self._enter()
        return latents.neuron_readers(self.loaded, self._sae(sae), layer, index, top)

    def experiment_items(self, n: int, seed: int = 0) -> tuple[Item, ...]:
        return tuple(experiments.world_items(n, seed=seed)) if self.loaded.builtin else ()

    def latent_experiment(
        self,
        items: Sequence[Item],
        sae: str,
        settings: Settings = DEFAULT,
        ablated: int = 10,
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
        swapped: int = 40,
        done: Mapping[int, Any] | None = None,
        on_item: masking.OnItem | None = None,
    ) -> Report:
        self._enter("gradient")
        return masking.experiment(self, items, sae, settings, ablated, on_progress, cancelled, swapped, done, on_item)

    def train_sae(
        self,
        recipe: Recipe,
        out: str,
        folder: str = "",
        resume: bool = False,
        on_point: OnPoint | None = None,
        cancelled: IsCancelled = never,
    ) -> SaeInfo:
        self._enter()
        if not folder and not self.loaded.builtin:
            raise RequestError(
                "The little world's pictures are for the built-in model. Give a folder with pictures and a file of "
                "questions (questions.csv, .jsonl or .json)."
            )
        source, held = train.folder_source(Path(folder), recipe.seed) if folder else (None, None)
        made = train.train(self.loaded, recipe, Path(out), source, held, resume, 0, on_point, cancelled)
        return self._add(made.to(self.loaded.device))


def _named(sae: Sae, name: str, fits: str, source: str) -> Sae:
    return dataclasses.replace(sae, info=dataclasses.replace(sae.info, name=name, fits=fits, source=source))
