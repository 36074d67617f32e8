"""What the FakeEngine tells of single latents of a sparse autoencoder, and of all of them over many questions."""

from collections.abc import Sequence

import numpy as np

from engine.contract import Floats, Grid, IsCancelled, LatentTurn, OnProgress, Question, Steering, UnknownName, never
from engine.fake_neurons import require, surveyed
from engine.fake_world import COLS, D_MLP, ROWS, VOCABULARY, key_of, modalities_of, noise, prompt_of, steers
from engine.neurons_contract import Survey
from engine.sae.contract import LatentLens, SaeInfo, SeenLatent
from engine.turns import check_latent

N_LATENTS, K, PUSH = 96, 8, 4.0


class FakeLatents:
    """The part of `engine.sae.contract.SaeEngine` that is about latents, whatever was answered."""

    def _pause(self, cancelled: IsCancelled) -> None:
        raise AssertionError("an engine says how long it takes")

    def grid(self, question: Question) -> Grid | None:
        raise AssertionError("an engine says what its patches are")

    def _sae(self, name: str) -> SaeInfo:
        raise AssertionError("an engine says what is attached")

    def _activations(self, sae: SaeInfo, question: Question, modalities: Sequence[str], first: int) -> Floats:
        """H (pos, N_LATENTS): K entries above 0 a position; a later position does not change an earlier one."""
        rows, key = [], key_of(question)
        for position in range(first, len(modalities)):
            drawn = noise("latents", sae.id, key, position)
            row = np.zeros(N_LATENTS)
            row[drawn.permutation(N_LATENTS)[:K]] = drawn.exponential(1, K)
            rows.append(row)
        return np.asarray(rows, np.float32)

    def _check_latents(self, steering: Steering) -> None:
        """Refuse turns of latents that do not exist."""
        for turn in steering.latents:
            check_latent(turn, self._sae(turn.sae).n_latents)

    def _pushes(self, question: Question, steering: Steering, names: Sequence[str]) -> dict[str, float]:
        """What the turns of latents add to each candidate's strength: PUSH times the mean of H' − H over the prompt's
        positions where they act, times what a hash says that the latent has to do with the candidate."""
        pushes = dict.fromkeys(names, 0.0)
        modalities = modalities_of(prompt_of(question), 0)
        acts = [steers(steering.positions, kind, p, len(modalities) - 1) for p, kind in enumerate(modalities)][1:]
        for sae in dict.fromkeys(self._sae(turn.sae).id for turn in steering.latents) if any(acts) else ():
            H = self._activations(self._sae(sae), question, modalities, 1)
            moved = self._turned(H, sae, [turn for turn in steering.latents if self._sae(turn.sae).id == sae], steering)
            for name in names:
                pull = noise("pull", sae, name).standard_normal(N_LATENTS)
                pushes[name] += PUSH * float((moved - H)[acts].mean(0) @ pull)
        return pushes

    def _turned(self, H: Floats, sae: str, turns: Sequence[LatentTurn], steering: Steering) -> Floats:
        """H' (pos, N_LATENTS); the control deals the turns to other latents, active ones first."""
        chosen = list(dict.fromkeys(turn.index for turn in turns))
        at = dict(zip(chosen, chosen, strict=True))
        if steering.control is not None:
            drawn = noise("control", sae, steering.control).permutation(N_LATENTS).tolist()
            others = sorted((c for c in drawn if c not in at), key=lambda c: not H[:, c].any())
            at = dict(zip(chosen, others, strict=False))
        moved = H.copy()
        for turn in turns:
            column, value = moved[:, at[turn.index]], np.float32(turn.value)
            moved[:, at[turn.index]] = {"scale": column * value, "add": column + value, "set": 0 * column + value}[
                turn.operation
            ]
        return moved

    def _require(self, info: SaeInfo, index: int) -> None:
        if not 0 <= index < info.n_latents:
            raise UnknownName(
                f"There is no latent sae.{info.name}.{index}: its latents go from 0 to {info.n_latents - 1}."
            )

    def latent_lens(self, sae: str, index: int) -> LatentLens:
        info = self._sae(sae)
        self._require(info, index)
        drawn = noise("latent", info.id, index)
        values = drawn.normal(0, 1, len(VOCABULARY))
        order = np.argsort(-values, kind="stable").tolist()
        tokens = [(VOCABULARY[k], k, float(values[k])) for k in order]
        neurons = [f"text.{n // D_MLP}.{n % D_MLP}" for n in drawn.permutation((info.layer + 1) * D_MLP)[:10]]
        others = [int(c) for c in drawn.permutation(N_LATENTS) if c != index][:10]
        cosines = np.sort(drawn.uniform(0, 0.6, (2, 10)))[:, ::-1]
        return LatentLens(
            tuple(tokens[:12]), tuple(reversed(tokens[-12:])),
            tuple((name, float(value)) for name, value in zip(neurons, cosines[0], strict=True)),
            tuple((c, float(value)) for c, value in zip(others, cosines[1], strict=True)),
        )  # fmt: skip

    def seen_latents(
        self,
        sae: str,
        indices: Sequence[int],
        questions: Sequence[Question],
        top: int = 8,
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> tuple[tuple[SeenLatent, ...], ...]:
        info = self._sae(sae)
        found: list[list[SeenLatent]] = [[] for _ in indices]
        for index in indices:
            self._require(info, index)
        for case, question in enumerate(questions):
            self._pause(cancelled)
            modalities, grid = modalities_of(prompt_of(question), 0), self.grid(question)
            H = self._activations(info, question, modalities, 1)
            image = [p - 1 for p, kind in enumerate(modalities) if kind == "image"]
            for k, index in enumerate(indices):
                peak, at = float(H[:, index].max()), int(H[:, index].argmax()) + 1
                heat = None if grid is None else H[image, index].reshape(ROWS, COLS)
                if peak > 0:
                    found[k].append(SeenLatent(index, case, question.text, peak, at, grid, heat))
            if on_progress is not None:
                on_progress(case + 1, len(questions))
        return tuple(tuple(sorted(rows, key=lambda one: (-one.peak, one.case))[:top]) for rows in found)

    def latent_survey(
        self,
        sae: str,
        questions: Sequence[Question],
        on_progress: OnProgress | None = None,
        cancelled: IsCancelled = never,
    ) -> Survey:
        info = self._sae(sae)

        def read(question: Question) -> Floats:
            self._pause(cancelled)
            active = self._activations(info, question, modalities_of(prompt_of(question), 0), 1)
            return np.concatenate([np.zeros((1, N_LATENTS), np.float32), active]).T

        found = surveyed(questions, N_LATENTS, read, on_progress)
        found.neurons["case"][found.neurons["value"] <= 0] = -1
        return found

    def neuron_readers(self, sae: str, layer: int, index: int, top: int = 5) -> tuple[tuple[int, float], ...]:
        info = self._sae(sae)
        require(layer, index)
        if not (layer <= info.layer if info.site == "residual" else info.site == "mlp" and layer == info.layer):
            return ()
        drawn = noise("readers", info.id, layer, index)
        cosines = np.sort(drawn.uniform(0, 0.6, top))[::-1].tolist()
        return tuple(zip(drawn.permutation(N_LATENTS)[:top].tolist(), cosines, strict=True))
