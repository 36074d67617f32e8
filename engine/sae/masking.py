"""Does the ranking name the latents that matter? (METHODS.md §4)

1. *Items*: questions about pictures with a known answer. The model answers with the SAE in place; only items that it
   answers right, word for word, go on.
2. *Masking*: K latents are zeroed wherever the SAE stands, while the model reads and while it answers; chosen for each
   item by `influence` (largest, among those above 0), `activation` (largest mean activation, the usual ranking),
   `bottom` (smallest influence above 0), or `random` among the active ones. K is a number; `half last` = half of those
   active at the prompt's last position (the paper's 50 %); `half` = half of all that are active at any position: a
   picture makes many more active than its last position shows.
3. *Figures*: share of answers that are as before, word for word (EM, Wilson's 95 % interval) and token F1 (bootstrap
   interval over items); GradSAE's drop against that of mean activation item by item, with McNemar's exact test.
4. *Agreement*: Spearman of influence, and of mean activation, with exact single-latent ablation over all latents active
   in an item: mean over items, bootstrap interval.
5. *Overlap*: |A ∩ B| / K of both rankings' first K of an item; and of one ranking's first K between two questions about
   one picture, and about different pictures.

Everything goes through the `SaeEngine` protocol. Torch-free.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from engine.concepts.results import wilson
from engine.contract import Answer, Cancelled, IsCancelled, OnProgress, RequestError, never, saes, spearman
from engine.evaluation.metrics import plain
from engine.evaluation.stats import bootstrap_mean, mcnemar
from engine.sae.results import Item, Masked, Report, Share

METHODS = ("influence", "activation", "bottom", "random")
SIZES: tuple[int | str, ...] = (1, 10, 20, 30, "half last", "half")
OVERLAPS = (1, 10, 30)


def share_of(right: int, n: int) -> Share:
    """The share right / n with Wilson's interval."""
    low, high = wilson(right, n)
    return Share(right / n if n else math.nan, low, high, n)


def mean_of(values: Sequence[float]) -> Share:
    """The mean with its bootstrap interval."""
    low, high = bootstrap_mean(np.asarray(values, np.float64), 0)
    return Share(float(np.mean(values)) if len(values) else math.nan, low, high, len(values))


def token_f1(said: str, right: str) -> float:
    """F1 of the words of two answers, as bags (SQuAD's)."""
    a, b = plain(said).split(), plain(right).split()
    both = sum((Counter(a) & Counter(b)).values())
    return 2 * both / (len(a) + len(b)) if a or b else 1.0


def size_of(k: int | str, found: saes.Influence) -> int:
    """How many latents K is for this item."""
    if k == "half last":
        return max(1, found.last_active // 2)
    return max(1, int(found.active.sum()) // 2) if k == "half" else int(k)


def orders(found: saes.Influence, seed: int) -> dict[str, list[int]]:
    """Each method's latents, those to mask first first."""
    positive = [int(c) for c in np.argsort(-found.influence, kind="stable") if found.influence[c] > 0]
    active = [int(c) for c in np.argsort(-found.mean_activation, kind="stable") if found.active[c]]
    drawn = np.random.default_rng(seed).permutation(np.asarray(sorted(active), np.int64)).tolist()
    return {"influence": positive, "activation": active, "bottom": positive[::-1], "random": drawn}


@dataclasses.dataclass
class _Done:
    """One item's results."""

    item: Item
    found: saes.Influence
    order: dict[str, list[int]]
    scores: dict[tuple[str, int | str], tuple[bool, float, int]]


def _item(engine: saes.SaeEngine, item: Item, sae: str, settings: saes.Settings, seed: int) -> _Done | None:
    """None where the answer with the SAE in place is not the right one."""
    (before,) = engine.latent_answers(item.question, sae, [[]], settings)
    if plain(before.text) not in {plain(right) for right in item.answers}:
        return None
    ids = [token.id for token in before.tokens]
    found = engine.latent_influence(item.question, ids, sae, settings, top=1)
    order = orders(found, seed)
    keys = [(method, k) for method in METHODS for k in SIZES]
    sets = [order[method][: size_of(k, found)] for method, k in keys]
    answers: tuple[Answer, ...] = engine.latent_answers(item.question, sae, sets, settings)
    scores = {
        key: (plain(answer.text) == plain(before.text), token_f1(answer.text, before.text), len(chosen))
        for key, answer, chosen in zip(keys, answers, sets, strict=True)
    }
    return _Done(item, found, order, scores)


def experiment(
    engine: saes.SaeEngine,
    items: Sequence[Item],
    sae: str,
    settings: saes.Settings = saes.DEFAULT,
    ablated: int = 10,
    on_progress: OnProgress | None = None,
    cancelled: IsCancelled = never,
) -> Report:
    """All of the above over `items`; exact ablation on the first `ablated` of those answered right. Raises Cancelled
    between items, RequestError where none is answered right."""
    done: list[_Done] = []
    agreement: dict[str, list[float]] = {"influence": [], "mean activation": []}
    info: saes.SaeInfo | None = None
    for number, item in enumerate(items):
        if cancelled():
            raise Cancelled(f"Stopped after {number} of {len(items)} items.")
        one = _item(engine, item, sae, settings, number)
        if one is not None:
            info = one.found.sae
            done.append(one)
            if len(done) <= ablated:
                _agree(engine, one, sae, settings, agreement, cancelled)
        if on_progress is not None:
            on_progress(number + 1, len(items))
    if info is None:
        raise RequestError(f"None of {len(items)} items is answered right with the SAE in place. Choose others.")
    return Report(
        info,
        settings,
        len(items),
        len(done),
        tuple(_masked(done, method, k) for k in SIZES for method in METHODS),
        tuple(_gap(done, k) for k in SIZES),
        {name: mean_of(values) for name, values in agreement.items()},
        _overlaps(done),
        mean_of([float(one.found.active.sum()) for one in done]),
        mean_of([one.found.fit.explained_variance for one in done]),
    )


def _agree(
    engine: saes.SaeEngine,
    one: _Done,
    sae: str,
    settings: saes.Settings,
    into: dict[str, list[float]],
    cancelled: IsCancelled,
) -> None:
    (before,) = engine.latent_answers(one.item.question, sae, [[]], settings)
    active = np.flatnonzero(one.found.active)
    ids = [token.id for token in before.tokens]
    lost = engine.latent_ablation(one.item.question, ids, sae, active.tolist(), settings, cancelled=cancelled)
    into["influence"].append(spearman(one.found.influence[active], lost))
    into["mean activation"].append(spearman(one.found.mean_activation[active], lost))


def _masked(done: Sequence[_Done], method: str, k: int | str) -> Masked:
    scores = [one.scores[method, k] for one in done]
    em = share_of(sum(same for same, _, _ in scores), len(scores))
    size = float(np.mean([count for _, _, count in scores]))
    return Masked(method, str(k), size, em, mean_of([f1 for _, f1, _ in scores]))


def _gap(done: Sequence[_Done], k: int | str) -> tuple[str, Share, float]:
    pairs = [(one.scores["influence", k][0], one.scores["activation", k][0]) for one in done]
    gained, lost = sum(b and not a for a, b in pairs), sum(a and not b for a, b in pairs)
    return str(k), mean_of([float(b) - float(a) for a, b in pairs]), mcnemar(gained, lost)


def _shared(a: Sequence[int], b: Sequence[int], k: int) -> float:
    return len(set(a[:k]) & set(b[:k])) / max(1, min(k, len(a), len(b)))


def _overlaps(done: Sequence[_Done]) -> dict[str, Share]:
    found: dict[str, Share] = {}
    for k in OVERLAPS:
        both = [_shared(one.order["influence"], one.order["activation"], k) for one in done]
        found[f"influence and mean activation, first {k}"] = mean_of(both)
    for name in ("influence", "activation"):
        within: list[float] = []
        between: list[float] = []
        for a, one in enumerate(done):
            for other in done[a + 1 :]:
                share = _shared(one.order[name], other.order[name], 10)
                (within if one.item.about == other.item.about else between).append(share)
        found[f"{name}, first 10, two questions about one picture"] = mean_of(within)
        found[f"{name}, first 10, about two pictures"] = mean_of(between)
    return found
