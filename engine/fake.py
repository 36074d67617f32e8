"""FakeEngine: the `Engine` protocol without a model, for the web tests and for developing pages. Torch-free.

Everything is a pure function of what is asked (no clock, no state), by five rules:

1. Every candidate answer names a concept of a twelve-concept library. A hash of question and picture gives each
   candidate a strength; the strongest is the answer. Steering adds 6 · Σ_n μ(n) (m(n) − 1) / Σ_n μ(n)² to a
   concept's strength, m(n) = the neuron's multiplier: suppressing the named concept changes the answer.
2. The logits over a small vocabulary are noise drawn from a hash, with the answer's next token lifted by the lead of
   its strength: log-probabilities, alternatives and both directions of a pair come from one distribution.
3. Each answer token has a score for every neuron at every earlier position, drawn from a hash, higher for members of
   the concept that the token names, and multiplied by m(n) at the steered positions. A target's scores are the
   sum over its tokens.
4. All totals of an attribution (by neuron, modality, layer, position, patch, concept) are sums of that one array.
5. `delay` seconds pass before each token and before an attribution; `cancelled` is asked before and after each.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from engine.concepts.fuzzy import evidence_share, linear
from engine.contract import (
    LAMBDA_RANGE,
    MAPPED,
    METHODS,
    MODALITIES,
    NEURON_VALUE_LIMIT,
    PLAIN,
    POSITIONS,
    UNITS,
    Alternative,
    Answer,
    AnswerToken,
    Asked,
    Attribution,
    Check,
    Faithfulness,
    Floats,
    Grid,
    InputHeat,
    IsCancelled,
    Library,
    ModelInfo,
    NoiseBand,
    OnProgress,
    OnToken,
    PictureTooSmall,
    PromptToken,
    PromptTooLong,
    Question,
    RequestError,
    Steered,
    Steering,
    Target,
    UnknownName,
    Variant,
    never,
)
from engine.fake_concepts import FakeConcepts
from engine.fake_measures import (
    READING,
    by_method,
    concept_score,
    encode,
    faithfulness_of,
    in_batches,
    input_heat_of,
    neurons_of,
    noise_bands_of,
    padded,
    set_apart,
    shares,
)  # fmt: skip
from engine.fake_neurons import FakeNeurons
from engine.fake_saes import FakeSaes
from engine.fake_steering import FakeSteering
from engine.fake_world import (
    COLS,
    CONCEPTS,
    D_MLP,
    N_LAYERS,
    ROWS,
    VOCABULARY,
    candidates,
    key_of,
    library,
    modalities_of,
    noise,
    prompt_of,
    steers,
    strongest,
    tokens_of,
    unknown,
)  # fmt: skip
from engine.sides import Part, parts_of, resolve, ways_to_write
from engine.turns import in_layers

MIN_SIDE = 2
MAX_QUESTION = 2000
REVISION = "fake-1"


class FakeEngine(FakeSteering, FakeConcepts, FakeNeurons, FakeSaes):
    """See the module's docstring. `delay`: seconds before each token; `load_delay`: seconds the constructor takes."""

    def __init__(self, delay: float = 0.0, load_delay: float = 0.0) -> None:
        time.sleep(load_delay)
        self.delay = delay
        self._ship(library())

    def info(self) -> ModelInfo:
        checks = (Check("logits equal the model's own", True, "largest difference 0"),)
        return ModelInfo(
            "fake", REVISION, "fake", "cpu", "float32", N_LAYERS, 16, D_MLP, 12_000, "fake-processor 1", False, checks
        )

    def library(self) -> Library:
        return self._known

    def grid(self, question: Question) -> Grid | None:
        if question.picture is None:
            return None
        height, width = question.picture.shape[:2]
        if min(height, width) < MIN_SIDE:
            raise PictureTooSmall(
                f"The picture is {width} × {height} pixels; the model needs at least {MIN_SIDE} on each side. "
                "Use a larger picture."
            )
        return Grid(ROWS, COLS, (0.0, 0.0, float(width), float(height)))

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
        self._verify(question, steering, method)
        began = time.perf_counter()
        answer = self._generate(question, steering, on_token, cancelled)
        generated = time.perf_counter()
        if on_answer is not None:
            on_answer(answer)
        ids = [token.id for token in answer.tokens]
        attribution = self.attribute(question, ids, Target(), method, steering, top, cancelled)
        ended = time.perf_counter()
        timing = {"picture": 0.0, "generate": generated - began, "attribute": ended - generated, "total": ended - began}
        return Asked(answer, attribution, {stage: 1000 * seconds for stage, seconds in timing.items()})

    def steer(
        self,
        question: Question,
        original_ids: Sequence[int],
        steering: Steering,
        on_token: OnToken | None = None,
        cancelled: IsCancelled = never,
    ) -> Steered:
        multipliers = self._verify(question, steering, "gradient")
        answer = self._generate(question, steering, on_token, cancelled)
        steered_ids = [token.id for token in answer.tokens]
        return Steered(
            answer,
            tuple(self._logprobs(question, steering, original_ids)),
            tuple(self._logprobs(question, PLAIN, steered_ids)),
            int(np.count_nonzero(multipliers != 1)),
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
        self._verify(question, steering, method)
        sides = parts_of(target, answer_ids, encode)
        if any(part.target.quantity == "logit" for part in sides) and method == "logprob_increase":
            raise RequestError("logprob_increase explains log-probabilities; choose another method to explain logits.")
        if method == "ablation":
            in_batches(self._pause, cancelled, on_progress)
        else:
            self._pause(cancelled)
        asked = prompt_of(question)
        modalities = modalities_of(asked, max(len(part.ids) for part in sides))
        image = [p for p, modality in enumerate(modalities) if modality == "image"]
        scores, value = np.zeros((N_LAYERS, D_MLP, len(modalities)), np.float32), 0.0
        for part in sides:
            mine, worth = self._side(question, part, method, steering, asked)
            scores += part.sign * padded(mine, len(modalities))
            value += part.sign * worth
        scores, apart = set_apart(scores, modalities, target.leave_out)
        parts = np.stack(
            [scores[:, :, [m == modality for m in modalities]].sum(axis=2) for modality in MODALITIES], axis=2
        )
        total = parts.sum(axis=2)
        grid = self.grid(question)
        mapped = grid is not None and method in MAPPED
        heats = scores[:, :, image].reshape(N_LAYERS, D_MLP, ROWS, COLS) if mapped else None
        layer_heats = None if heats is None else heats.sum(axis=1)
        seen = None if grid is None or method in READING else key_of(question)
        neurons = neurons_of(scores, parts, heats, top, seen)
        own = linear(evidence_share(total), 0.9)
        concepts = sorted(
            (concept_score(concept, total, heats, own) for concept in self._known.concepts),
            key=lambda scored: (-scored.similarity, scored.concept),
        )
        gap = float(abs(parts.sum() - scores.sum()))
        return Attribution(
            method, replace(target, start=sides[0].target.start, end=sides[0].target.end), value, grid,
            None if layer_heats is None else layer_heats.sum(axis=0), neurons, tuple(concepts), total,
            parts.sum(axis=1), scores.sum(axis=1), modalities,
            None if heats is None else np.tensordot(own, heats, axes=2).astype(np.float32), shares(parts),
            (Check("Σ by modality = Σ by position", gap < 1e-3, f"largest difference {gap:.1e}"),),
            sides[0].explained, sides[1].explained if len(sides) > 1 else (), apart, layer_heats,
        )  # fmt: skip

    def input_heat(
        self,
        question: Question,
        answer_ids: Sequence[int],
        target: Target,
        steering: Steering = PLAIN,
        cancelled: IsCancelled = never,
    ) -> InputHeat:
        return input_heat_of(self.attribute(question, answer_ids, target, "gradient", steering, 0, cancelled))

    def variants(self, question: Question, text: str, before: Sequence[int] = ()) -> tuple[Variant, ...]:
        self._verify(question, PLAIN, "gradient")
        found: dict[tuple[int, ...], Variant] = {}
        for written in ways_to_write(text):
            (part,) = parts_of(Target(len(before), text=written), before, encode)
            logprobs = self._logprobs(question, PLAIN, part.ids)[len(before) :]
            pieces = tuple(VOCABULARY[i] for i in part.explained)
            found.setdefault(part.explained, Variant(written, part.explained, pieces, sum(logprobs)))
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
        found = self.attribute(question, answer_ids, target, method, steering, cancelled=cancelled)
        value = self.attribute(question, answer_ids, target, "gradient", steering).value
        in_batches(self._pause, cancelled, on_progress)
        return faithfulness_of(found.scores, value, method, target.quantity)

    def noise(
        self, question: Question, answer_ids: Sequence[int], target: Target, cancelled: IsCancelled = never
    ) -> tuple[NoiseBand, ...]:
        found = self.attribute(question, answer_ids, target, top=20, cancelled=cancelled)
        self._pause(cancelled)
        return noise_bands_of([neuron.neuron for neuron in found.neurons])

    def close(self) -> None: ...

    def _verify(self, question: Question, steering: Steering, method: str) -> Floats:
        """Refuse what cannot be answered; else each neuron's multiplier (n_layers, d_mlp)."""
        if method not in METHODS:
            raise unknown("method", method, METHODS)
        if len(question.text) > MAX_QUESTION:
            raise PromptTooLong(
                f"The question has {len(question.text)} characters; the model reads at most {MAX_QUESTION}. Shorten it."
            )
        self.grid(question)
        if steering.positions not in POSITIONS:
            raise unknown("choice of positions", steering.positions, POSITIONS)
        in_layers(steering.layers, N_LAYERS)
        self._check_latents(steering)
        multipliers = np.ones((N_LAYERS, D_MLP), np.float32)
        low, high = LAMBDA_RANGE
        for turn in steering.concepts:
            if turn.concept not in self._by_name:
                raise unknown("concept", turn.concept, self._by_name)
            if not low <= turn.lam <= high:
                raise RequestError(f"λ = {turn.lam:g} is outside {low:g} … {high:g}. Choose a λ inside the range.")
            multipliers += turn.lam * strongest(self._by_name[turn.concept].memberships, steering.layers)
        for edit in steering.neurons:
            if not (0 <= edit.layer < N_LAYERS and 0 <= edit.index < D_MLP):
                raise UnknownName(
                    f"There is no neuron {edit.neuron}: layers go from 0 to {N_LAYERS - 1}, indices to {D_MLP - 1}."
                )
            if edit.operation not in ("scale", "add", "set"):
                raise unknown("operation", edit.operation, ("scale", "add", "set"))
            if not abs(edit.value) <= NEURON_VALUE_LIMIT:
                raise RequestError(f"The value for {edit.neuron} is {edit.value}; at most {NEURON_VALUE_LIMIT:g} is.")
            here = multipliers[edit.layer, edit.index]
            turned = {"scale": here * edit.value, "add": here + edit.value, "set": edit.value}
            multipliers[edit.layer, edit.index] = turned[edit.operation]
        if steering.control is not None:
            dealt = noise("control", steering.control).permutation(multipliers.size)
            multipliers = multipliers.reshape(-1)[dealt].reshape(N_LAYERS, D_MLP)
        return multipliers

    def _strengths(self, question: Question, steering: Steering) -> dict[str, float]:
        multipliers = self._verify(question, steering, "gradient")
        if steering.positions == "image" and question.picture is None:
            multipliers = np.ones_like(multipliers)
        known = candidates(question.text)
        drawn = noise("strength", key_of(question)).permutation(np.linspace(0.5, 3, len(known)))
        base = dict(zip(known, drawn, strict=True))
        base[max(base, key=base.__getitem__)] = 5.0
        for name, pushed in self._pushes(question, steering, list(base)).items():
            memberships = self._by_name[name].memberships
            base[name] += 6 * float((memberships * (multipliers - 1)).sum() / (memberships**2).sum()) + pushed
        return base

    def _words(self, question: Question, steering: Steering) -> tuple[tuple[int, ...], float]:
        """The answer's ids before any limit, and the lead of its strength."""
        strengths = self._strengths(question, steering)
        ranked = sorted(strengths, key=lambda name: (-strengths[name], name))
        text = ranked[0]
        if "describe" in question.text.casefold():
            text = f"the picture shows a {ranked[0]} on the left and something else on the right of it"
        return tokens_of(text), strengths[ranked[0]] - strengths[ranked[1]]

    def _distribution(self, question: Question, steering: Steering, position: int) -> npt.NDArray[np.float64]:
        """Log-probabilities over the vocabulary at one answer position."""
        ids, lead = self._words(question, steering)
        logits = noise("logits", key_of(question), position).uniform(0, 2, len(VOCABULARY))
        chosen = ids[position] if position < len(ids) else 1
        logits[chosen] = 5.5 + float(np.clip(lead, 0, 4)) / 2
        peak = logits.max()
        return np.asarray(logits - peak - np.log(np.exp(logits - peak).sum()))

    def _logprobs(self, question: Question, steering: Steering, ids: Sequence[int]) -> list[float]:
        for i in ids:
            if not 0 <= i < len(VOCABULARY):
                raise RequestError(f"There is no token {i}: ids go from 0 to {len(VOCABULARY) - 1}.")
        return [float(self._distribution(question, steering, p)[i]) for p, i in enumerate(ids)]

    def _generate(
        self, question: Question, steering: Steering, on_token: OnToken | None, cancelled: IsCancelled
    ) -> Answer:
        ids, _ = self._words(question, steering)
        tokens: list[AnswerToken] = []
        for position, chosen in enumerate(ids[: question.max_new_tokens]):
            self._pause(cancelled)
            logprobs = self._distribution(question, steering, position)
            best = sorted(range(len(VOCABULARY)), key=lambda i: (-logprobs[i], i))[:5]
            alternatives = tuple(Alternative(VOCABULARY[i], i, float(logprobs[i])) for i in best)
            token = AnswerToken(VOCABULARY[chosen], chosen, float(logprobs[chosen]), alternatives)
            tokens.append(token)
            if on_token is not None:
                on_token(token)
        stopped = "length" if len(ids) > question.max_new_tokens else "end"
        return Answer("".join(token.text for token in tokens).strip(), tuple(tokens), stopped, prompt_of(question))

    def _side(
        self, question: Question, part: Part, method: str, steering: Steering, asked: Sequence[PromptToken]
    ) -> tuple[Floats, float]:
        """One side's scores (n_layers, d_mlp, pos) and value; a logit is its log-probability and 12."""
        start, end = resolve(part.target, len(part.ids))
        kinds = modalities_of(asked, len(part.ids))
        span = range(start, start + 1) if method == "pan" else range(start, end)
        scores = self._scores(question, part.ids, span, method, steering, kinds)
        value = float(sum(self._logprobs(question, steering, part.ids)[start:end]))
        logit = part.target.quantity == "logit" or method in UNITS
        return by_method(scores, method, kinds), value + (12.0 * (end - start) if logit else 0.0)

    def _scores(
        self,
        question: Question,
        answer_ids: Sequence[int],
        span: range,
        method: str,
        steering: Steering,
        modalities: Sequence[str],
    ) -> Floats:
        """Scores (n_layers, d_mlp, pos) of the span's tokens together; zero where a token cannot be influenced."""
        first = len(modalities) - len(answer_ids) - 1
        scores = np.zeros((N_LAYERS, D_MLP, len(modalities)), np.float64)
        for k in span:
            drawn = noise("scores", key_of(question), k, answer_ids[k]).standard_normal(scores.shape) / 200
            for name in CONCEPTS:  # the concept that a token names carries it
                if answer_ids[k] in tokens_of(name):
                    drawn += 0.04 / len(modalities) * self._by_name[name].memberships[:, :, None]
            drawn[:, :, first + k + 1 :] = 0
            if method in READING:
                drawn[:, :, : first + k] = 0
            scores += drawn
        if not steering.empty:
            where = [steers(steering.positions, m, p, first) for p, m in enumerate(modalities)]
            scores[:, :, where] *= self._verify(question, steering, method)[:, :, None]
        return scores.astype(np.float32)
