"""What the FakeEngine tells of sparse autoencoders: H and ∂S/∂H drawn from hashes, and every total made from them."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.contract import (
    MODALITIES,
    PLAIN,
    Answer,
    AnswerToken,
    BadTarget,
    Cancelled,
    Floats,
    Grid,
    IsCancelled,
    OnProgress,
    Question,
    RequestError,
    Steering,
    never,
)
from engine.fake_latents import N_LATENTS, FakeLatents, K
from engine.fake_memberships import DRAWN, FakeMemberships
from engine.fake_world import (
    COLS,
    N_LAYERS,
    ROWS,
    VOCABULARY,
    key_of,
    modalities_of,
    noise,
    prompt_of,
    tokens_of,
    unknown,
)
from engine.sae import masking
from engine.sae.contract import (
    CHECKPOINT,
    DEFAULT,
    SITES,
    Influence,
    Item,
    LatentScore,
    OnPoint,
    Recipe,
    Report,
    SaeFit,
    SaeInfo,
    Settings,
    TrainingPoint,
    check_settings,
    listed,
)

CARD = {"explained_variance": 0.8, "l0": float(K), "dead_share": 0.0, "positions": 1000, "pictures": 10}
SHIPPED = SaeInfo("fake-sae-1", "fake-residual-2", 2, "residual", "topk", 16, N_LATENTS, K, "fake-1", DRAWN, dict(CARD))


class FakeSaes(FakeLatents, FakeMemberships):
    """`engine.sae.contract.SaeEngine` without a model."""

    _standing: dict[str, SaeInfo] | None = None

    def _pause(self, cancelled: IsCancelled) -> None:
        raise AssertionError("an engine says how long it takes")

    def grid(self, question: Question) -> Grid | None:
        raise AssertionError("an engine says what its patches are")

    def _verify(self, question: Question, steering: Steering, method: str) -> Floats:
        raise AssertionError("an engine says what it refuses")

    def _logprobs(self, question: Question, steering: Steering, ids: Sequence[int]) -> list[float]:
        raise AssertionError("an engine says what it answers")

    def _strengths(self, question: Question, steering: Steering) -> dict[str, float]:
        raise AssertionError("an engine says what it answers")

    def _attached(self) -> dict[str, SaeInfo]:
        if self._standing is None:
            self._standing = {SHIPPED.name: SHIPPED}
        return self._standing

    def _sae(self, name: str) -> SaeInfo:
        known = self._attached()
        found = known.get(name) or next((info for info in known.values() if info.id == name), None)
        if found is None:
            raise unknown("SAE", name, list(known))
        return found

    def saes(self) -> tuple[SaeInfo, ...]:
        return tuple(self._attached().values())

    def attach_sae(self, path: str, layer: int | None = None, site: str | None = None, name: str = "") -> SaeInfo:
        """Of a folder with a card.json, whose numbers are drawn as all others."""
        try:
            card = json.loads((Path(path) / "card.json").read_text(encoding="utf-8"))
            place = (card["layer"] if layer is None else layer, site or card["site"])
            own, width = re.sub(r"[^A-Za-z0-9._-]+", "-", str(card["name"])), int(card["d_model"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RequestError(f"{path} holds no SAE that is known: {error!r}") from error
        if not 0 <= place[0] < N_LAYERS or place[1] not in SITES or width != SHIPPED.d_model:
            raise RequestError(f"{own} stands at {place[1]} {place[0]} and reads {width} numbers; this model has 16.")
        known = self._attached()
        same = next((info for info in known.values() if info.source == path), None)
        if same is not None:
            return same
        info = dataclasses.replace(SHIPPED, id=f"fake-{own}", layer=place[0], site=place[1], source=path)
        known[name or own] = info = dataclasses.replace(info, name=name or own)
        return info

    def check_sae(self, sae: str, questions: Sequence[Question] = ()) -> SaeFit:
        info = self._sae(sae)
        asked = questions or [Question(np.full((40, 60, 3), 16 * k, np.uint8), "what is this?", 1) for k in range(4)]
        H = np.concatenate([self._activations(info, one, modalities_of(prompt_of(one), 0), 1) for one in asked])
        warnings = (
            () if info.layer == SHIPPED.layer else ("It explains 40 % of the variance here; its card says 80 %.",)
        )
        active = float((H > 0).any(0).mean())
        return SaeFit(0.4 if warnings else 0.78, float((H > 0).sum(1).mean()), 1 - active, warnings, len(H))

    def detach_sae(self, sae: str) -> None:
        del self._attached()[self._sae(sae).name]

    def _entries(
        self, question: Question, ids: Sequence[int], sae: str, settings: Settings, steering: Steering
    ) -> tuple[SaeInfo, tuple[str, ...], int, Floats, npt.NDArray[np.float64], float]:
        """(SAE, modality of each position, first counted position, H, H · ∂S/∂H, S)."""
        info = self._sae(sae)
        check_settings(settings)
        self._verify(question, steering, "gradient")
        if not ids:
            raise BadTarget(
                "The answer is empty: there is nothing that a latent could influence. Ask another question."
            )
        own = tuple(ids) if settings.of == "answer" else (ids[0],)
        modalities, first = modalities_of(prompt_of(question), len(own)), 0 if settings.bos else 1
        H = self._activations(info, question, modalities, first)
        value = sum(self._logprobs(question, steering, own)) - (0.0 if settings.keep_error else 0.05)
        slope = noise("slopes", info.id, key_of(question), own).normal(0.002, 0.004, (len(modalities), N_LATENTS))
        entries = H * slope[first:]
        if settings.quantity == "probability":
            value = float(np.exp(value))
            entries = entries * value
        return info, modalities, first, H, entries, value

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
        info, modalities, first, H, entries, value = self._entries(question, answer_ids, sae, settings, steering)
        self._pause(cancelled)
        whole = entries.clip(0).mean(0) if settings.positive == "entry" else entries.mean(0).clip(0)
        influence, means, grid = whole.astype(np.float32), H.mean(0), self.grid(question)
        kinds = np.array(modalities[first:])
        parts = np.stack([entries[kinds == kind].sum(0) for kind in MODALITIES])
        image = kinds == "image"
        heats = None if grid is None else entries[image].T.reshape(N_LATENTS, ROWS, COLS).astype(np.float32)
        seen = None if grid is None else H[image].T.reshape(N_LATENTS, ROWS, COLS)
        latents = tuple(
            LatentScore(
                c,
                float(influence[c]),
                float(means[c]),
                (float(parts[0, c]), float(parts[1, c]), float(parts[2, c]), float(parts[3, c])),
                float(H[:, c].max()),
                int(H[:, c].argmax()) + first,
                None if heats is None else heats[c],
                None if seen is None else seen[c],
            )
            for c in listed(influence, means, top)
        )
        active = np.asarray((H > 0).any(0))
        fit = SaeFit(0.78, float((H > 0).sum(1).mean()), 1 - float(active.mean()))
        last = int(np.flatnonzero(kinds != "answer")[-1])
        heat = None if grid is None else entries[image].clip(0).sum(1).reshape(ROWS, COLS).astype(np.float32)
        return Influence(
            info, settings, float(value), fit, influence, means, active, latents, grid, heat, int((H[last] > 0).sum())
        )

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
        """The first order is exact here."""
        for c in latents:
            self._require(self._sae(sae), c)
        entries = self._entries(question, answer_ids, sae, settings, steering)[4]
        self._pause(cancelled)
        if on_progress is not None:
            on_progress(len(latents), len(latents))
        return np.asarray(entries.sum(0)[list(latents)], np.float32)

    def latent_answers(
        self,
        question: Question,
        sae: str,
        zeroed: Sequence[Sequence[int]],
        settings: Settings = DEFAULT,
        cancelled: IsCancelled = never,
    ) -> tuple[Answer, ...]:
        """The second strongest answer where latents of half of the influence are gone."""
        info = self._sae(sae)
        strengths = self._strengths(question, PLAIN)
        ranked = sorted(strengths, key=lambda name: (-strengths[name], name))
        influence = self.latent_influence(question, tokens_of(ranked[0]), info.name, settings).influence
        made = []
        for row in zeroed:
            for c in row:
                self._require(info, c)
            self._pause(cancelled)
            gone = float(influence[sorted(set(row))].sum()) > float(influence.sum()) / 2
            ids = tokens_of(ranked[int(gone)])[: question.max_new_tokens]
            logprobs = self._logprobs(question, PLAIN, ids)
            tokens = tuple(AnswerToken(VOCABULARY[i], i, value) for i, value in zip(ids, logprobs, strict=True))
            text = "".join(token.text for token in tokens).strip()
            made.append(Answer(text, tokens, "end", prompt_of(question)))
        return tuple(made)

    def answers(
        self,
        asked: Sequence[tuple[Question, Steering]],
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> tuple[Answer, ...]:
        raise AssertionError("an engine says what it answers")

    def experiment_items(self, n: int, seed: int = 0) -> tuple[Item, ...]:
        """About colours, two questions a picture; every third picture is asked the same."""
        made = []
        for number in range(1000 * seed, 1000 * seed + n):
            picture = np.full((40, 60, 3), 16 * (number // 2) % 256, np.uint8)
            question = Question(picture, f"what is thing {number % 6}?", 4)
            (answer,) = self.latent_answers(question, SHIPPED.name, [[]])
            made.append(Item(question, (answer.text,), number // 2))
        return tuple(made)

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
        """Writes a card alone; its checkpoint holds the step."""
        if not 0 <= recipe.layer < N_LAYERS or recipe.site not in SITES:
            raise RequestError(f"{recipe.site} {recipe.layer} is no site; layers go from 0 to {N_LAYERS - 1}.")
        if folder and not (Path(folder) / "questions.csv").is_file():
            raise RequestError(f"{folder} holds no questions.csv. Put one beside the pictures.")
        checkpoint, step = Path(out) / CHECKPOINT, 0
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        try:
            if resume:
                step = int(json.loads(checkpoint.read_text(encoding="utf-8"))["step"])
            elif on_point is not None:
                on_point(TrainingPoint(0, recipe.steps, math.nan, math.nan, math.nan, math.nan, recipe.kept))
            while step < recipe.steps:
                self._pause(cancelled)
                step += 1
                share = step / recipe.steps
                point = TrainingPoint(step, recipe.steps, 1 - 0.8 * share, 0.8 * share, float(recipe.k), 0.1 * share)
                if on_point is not None:
                    on_point(point)
        except Cancelled:
            checkpoint.write_text(json.dumps({"step": step}), encoding="utf-8")
            raise
        except (OSError, ValueError, KeyError) as error:
            raise RequestError(
                f"{checkpoint} cannot be gone on from: {error!r}. Train anew without resuming."
            ) from error
        name = recipe.name or f"fake-{recipe.site}-{recipe.layer}-own"
        made = {"name": name, "layer": recipe.layer, "site": recipe.site, "d_model": SHIPPED.d_model}
        (Path(out) / "card.json").write_text(json.dumps(made), encoding="utf-8")
        return self.attach_sae(out)
