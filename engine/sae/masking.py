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
6. *Swapping*: see `engine.sae.exchange`.

The work is done in *steps*: each item is one, then each pair of items. What a step finds is plain data (it survives
JSON to the bit), told as it comes and taken back as `done`: whatever stops an experiment loses one step, and the report
is the same. Everything goes through the `SaeEngine` protocol. Torch-free.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from engine.concepts.results import wilson
from engine.contract import Cancelled, IsCancelled, OnProgress, RequestError, UnknownName, never, saes, spearman
from engine.evaluation.metrics import plain
from engine.evaluation.stats import bootstrap_mean, mcnemar
from engine.sae import exchange
from engine.sae.exchange import Pair, Steerable
from engine.sae.results import Item, Masked, Report, Share, Swapped

METHODS = ("influence", "activation", "bottom", "random")
SIZES: tuple[int | str, ...] = (1, 10, 20, 30, "half last", "half")
OVERLAPS = (1, 10, 30)
DEEP = max(exchange.DEEPEST, *OVERLAPS)
"""Latents of each order that are kept with an item."""
KEYS = tuple((method, k) for method in METHODS for k in SIZES)
SWAPS = tuple((method, k) for method in exchange.METHODS for k in exchange.SIZES)
Part = dict[str, Any]
OnItem = Callable[[int, Any], None]


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


class _Experiment:
    """Steps that are done, and how to do those that are not."""

    def __init__(
        self,
        engine: Steerable,
        items: Sequence[Item],
        sae: saes.SaeInfo,
        settings: saes.Settings,
        ablated: int,
        swapped: int,
        on_progress: OnProgress | None,
        cancelled: IsCancelled,
        done: Mapping[int, Any],
        on_item: OnItem | None,
    ) -> None:
        self.engine, self.items, self.sae, self.settings = engine, items, sae, settings
        self.ablated, self.swapped, self.cancelled = ablated, swapped, cancelled
        self.on_progress, self.on_item, self.done = on_progress, on_item, done
        self.counted, self.total = 0, len(items) + min(swapped, len(items))

    def breathe(self) -> None:
        """Let others pass: nothing is left on the model."""
        if self.on_progress is not None:
            self.on_progress(self.counted, self.total)

    def step(self, number: int, compute: Callable[[], Any]) -> Any:
        """A step that is done, or done now and handed over."""
        if number in self.done:
            value = self.done[number]
        else:
            if self.cancelled():
                raise Cancelled(f"Stopped after {self.counted} of {self.total} steps.")
            value = compute()
            if self.on_item is not None:
                self.on_item(number, value)
        self.counted = number + 1
        self.breathe()
        return value

    def item(self, number: int, ablate: bool) -> Part:
        """One item's plain data. `right` is False where the answer with the SAE in place is not the right one, or the
        item is `refused`; then nothing else is done. `scores` by KEYS: (as before, F1, latents masked); `first`: each
        order's first DEEP latents with the value that a swap gives them; `agreement` of an item to `ablate`."""
        known: Part = {"question": "", "answers": [], "about": -1, "right": False}
        try:
            item = self.items[number]
            known |= {"question": item.question.text, "answers": list(item.answers), "about": item.about}
            (before,) = self.engine.latent_answers(item.question, self.sae.name, [[]], self.settings)
        except RequestError as error:
            return {**known, "refused": str(error)}
        if plain(before.text) not in {plain(right) for right in item.answers} or not before.tokens:
            return known
        self.breathe()
        ids = [token.id for token in before.tokens]
        found = self.engine.latent_influence(item.question, ids, self.sae.name, self.settings, top=self.sae.n_latents)
        order = orders(found, number)
        peaks = {latent.index: float(latent.peak) for latent in found.latents}
        sets = [order[method][: size_of(k, found)] for method, k in KEYS]
        self.breathe()
        answers = self.engine.latent_answers(item.question, self.sae.name, sets, self.settings)
        self.breathe()
        return {
            **known,
            "right": True,
            "active": int(found.active.sum()),
            "explained_variance": finite(found.fit.explained_variance),
            "first": {method: [[c, peaks[c]] for c in order[method][:DEEP]] for method in exchange.METHODS},
            "scores": [
                [plain(answer.text) == plain(before.text), token_f1(answer.text, before.text), len(chosen)]
                for answer, chosen in zip(answers, sets, strict=True)
            ],
            "agreement": self.agreement(item, ids, found) if ablate else None,
        }

    def agreement(self, item: Item, ids: Sequence[int], found: saes.Influence) -> dict[str, Any]:
        """Spearman of each ranking with exact ablation of every active latent."""
        active = np.flatnonzero(found.active).tolist()
        lost = self.engine.latent_ablation(
            item.question, ids, self.sae.name, active, self.settings, cancelled=self.cancelled
        )
        ranked = {"influence": found.influence, "mean activation": found.mean_activation}
        return {name: finite(spearman(values[active], lost)) for name, values in ranked.items()}

    def run(self) -> tuple[list[Part], list[tuple[Pair, list[Any]]]]:
        """(items' plain data, pairs with their swaps)."""
        parts: list[Part] = []
        for number in range(len(self.items)):
            ablate = sum(part["right"] for part in parts) < self.ablated
            parts.append(self.step(number, functools.partial(self.item, number, ablate)))
        chosen = exchange.pairs(parts, self.swapped)
        self.total = len(self.items) + len(chosen)
        swaps = []
        for at, pair in enumerate(chosen, len(self.items)):
            found = self.step(at, functools.partial(self.swap, pair, parts))
            if found is not None:
                swaps.append((pair, found))
        self.breathe()
        return parts, swaps

    def swap(self, pair: Pair, parts: Sequence[Part]) -> list[Any] | None:
        question = self.items[pair.mine].question
        mine, other = parts[pair.mine], parts[pair.other]
        return exchange.swap(self.engine, question, self.sae.name, mine, other, self.cancelled)


def finite(value: float) -> float | None:
    """JSON has no word for what is not finite."""
    return float(value) if math.isfinite(value) else None


def experiment(
    engine: Steerable,
    items: Sequence[Item],
    sae: str,
    settings: saes.Settings = saes.DEFAULT,
    ablated: int = 10,
    on_progress: OnProgress | None = None,
    cancelled: IsCancelled = never,
    swapped: int = 40,
    done: Mapping[int, Any] | None = None,
    on_item: OnItem | None = None,
) -> Report:
    """All of the above over `items`; exact ablation on the first `ablated` of those answered right, swaps of at most
    `swapped` pairs. `on_progress` counts steps, and is called between the parts of one, too. Raises Cancelled between
    steps, RequestError where none is answered right, UnknownName."""
    saes.check_settings(settings)
    info = next((one for one in engine.saes() if sae in (one.name, one.id)), None)
    if info is None:
        raise UnknownName(f"There is no SAE “{sae}”. Attached are {', '.join(one.name for one in engine.saes())}.")
    going = _Experiment(engine, items, info, settings, ablated, swapped, on_progress, cancelled, done or {}, on_item)
    parts, swaps = going.run()
    found = [part for part in parts if part["right"]]
    refused = tuple((number, part["refused"]) for number, part in enumerate(parts, 1) if "refused" in part)
    if not found:
        why = f" Item {refused[0][0]} could not be asked: {refused[0][1]}" if refused else ""
        raise RequestError(f"None of {len(parts)} items is answered right with the SAE in place. Choose others.{why}")
    agreed = [part["agreement"] for part in found if part["agreement"] is not None]
    return Report(
        sae=info,
        settings=settings,
        asked=len(parts),
        right=len(found),
        masked=tuple(_masked(found, place) for place in _by_size(KEYS, SIZES)),
        gaps=_gaps(KEYS, SIZES, [[not row[0] for row in part["scores"]] for part in found]),
        agreement={
            name: mean_of([one[name] for one in agreed if one[name] is not None])
            for name in ("influence", "mean activation")
        },
        overlaps=_overlaps(found),
        active=mean_of([float(part["active"]) for part in found]),
        explained_variance=mean_of([v for part in found if (v := part["explained_variance"]) is not None]),
        swaps=tuple(_swapped([some for _, some in swaps], place) for place in _by_size(SWAPS, exchange.SIZES) if swaps),
        swap_gaps=_gaps(SWAPS, exchange.SIZES, [[row[1] for row in some] for _, some in swaps]),
        pairs=len(swaps),
        alike=sum(pair.alike for pair, _ in swaps),
        refused=refused,
    )


def _by_size(keys: Sequence[tuple[str, int | str]], sizes: Sequence[int | str]) -> list[int]:
    """Places of keys, K by K."""
    return sorted(range(len(keys)), key=lambda place: sizes.index(keys[place][1]))


def _masked(found: Sequence[Part], place: int) -> Masked:
    (method, k), scores = KEYS[place], [part["scores"][place] for part in found]
    em = share_of(sum(same for same, _, _ in scores), len(scores))
    size = float(np.mean([count for _, _, count in scores]))
    return Masked(method, str(k), size, em, mean_of([f1 for _, f1, _ in scores]))


def _swapped(swaps: Sequence[list[Any]], place: int) -> Swapped:
    (method, k), rows = SWAPS[place], [rows[place] for rows in swaps]
    left, became = (share_of(sum(row[which] for row in rows), len(rows)) for which in (0, 1))
    return Swapped(method, str(k), float(np.mean([row[2] for row in rows])), left, became)


def _gaps(
    keys: Sequence[tuple[str, int | str]], sizes: Sequence[int | str], outcomes: Sequence[Sequence[bool]]
) -> tuple[tuple[str, Share, float], ...]:
    """For each K how much more often an outcome comes by influence than by mean activation, item by item, and McNemar's
    p. () of none."""
    made = []
    for k in sizes if outcomes else ():
        a, b = keys.index(("influence", k)), keys.index(("activation", k))
        gained, lost = (sum(row[x] and not row[y] for row in outcomes) for x, y in ((a, b), (b, a)))
        made.append((str(k), mean_of([float(row[a]) - float(row[b]) for row in outcomes]), mcnemar(gained, lost)))
    return tuple(made)


def _shared(a: Sequence[int], b: Sequence[int], k: int) -> float:
    return len(set(a[:k]) & set(b[:k])) / max(1, min(k, len(a), len(b)))


def _overlaps(found: Sequence[Part]) -> dict[str, Share]:
    first = {name: [[c for c, _ in part["first"][name]] for part in found] for name in ("influence", "activation")}
    made: dict[str, Share] = {}
    for k in OVERLAPS:
        both = [_shared(a, b, k) for a, b in zip(first["influence"], first["activation"], strict=True)]
        made[f"influence and mean activation, first {k}"] = mean_of(both)
    for name, ranked in first.items():
        within: list[float] = []
        between: list[float] = []
        for a, b in itertools.combinations(range(len(found)), 2):
            same = found[a]["about"] == found[b]["about"]
            (within if same else between).append(_shared(ranked[a], ranked[b], 10))
        made[f"{name}, first 10, two questions about one picture"] = mean_of(within)
        made[f"{name}, first 10, about two pictures"] = mean_of(between)
    return made
