"""Does a ranking name the neurons that matter? Measured by ablation (METHODS.md §1).

1. *Deletion curve*: the 1, 2, 5, 10, 20, … neurons of highest score (ties by layer, index) are set to zero together, at
   every position, and S is measured. The same for equal-size sets along random rankings.
2. *Area* between the random curves' mean and the ranked one, and the ranked one's own mean loss (AUC), both as means
   over ln(size): each doubling of the set weighs the same. In units of S.
3. *Spearman* of the scores against exact single-neuron effects S − S(neuron off), over a sample: the neurons of largest
   |score| and some of the others.
4. *Completeness*: Σ of all scores against S − S(no neuron at all).

All runs are rows of batches; between batches it can be cancelled.

    python -m engine.attribution.faithfulness [--pictures 50] [--split test] [--several] [--methods gradient pan …]

measures all of it for the built-in model on held-out pictures: every method side by side, with bootstrap intervals over
pictures, and `gradient` against `pan` where the name that is explained has several tokens.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from engine.attribution.effects import BATCH, Subject, in_batches, subject_of, zeroed
from engine.attribution.scoring import score
from engine.builtin import probes as world_probes
from engine.concepts.build import world_concept_probes
from engine.concepts.membership import Ready, prepare
from engine.contract import METHODS, Faithfulness, Floats, IsCancelled, never, unit
from engine.interventions import NO_EDITS
from engine.loading import Loaded, load, quiet
from engine.measures import OnProgress, mean_over_log, spearman
from engine.targets import Part, continuation_ids

SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
RANDOM_SETS = 3
SAMPLE_TOP, SAMPLE_OTHERS = 50, 50


def sizes_for(n_neurons: int) -> tuple[int, ...]:
    """The sizes of ablated sets, up to half of all neurons."""
    return tuple(size for size in SIZES if size <= max(1, n_neurons // 2))


def descending(scores: Floats) -> npt.NDArray[np.int64]:
    """Flat indices by falling score, ties by (layer, index)."""
    return np.argsort(-scores.ravel(), kind="stable")


def sampled(scores: Floats, top: int, others: int, seed: int) -> list[int]:
    """Flat indices: the `top` of largest |score|, then `others` drawn at random from the rest."""
    flat = scores.ravel()
    first = np.argsort(-np.abs(flat), kind="stable")[:top]
    rest = np.setdiff1d(np.arange(len(flat)), first)
    drawn = np.random.default_rng(seed).choice(rest, size=min(others, len(rest)), replace=False)
    return [int(neuron) for neuron in (*first, *drawn)]


def measure(
    subject: Subject,
    scores: Floats,
    method: str,
    random_sets: int = RANDOM_SETS,
    top: int = SAMPLE_TOP,
    others: int = SAMPLE_OTHERS,
    seed: int = 0,
    batch: int = BATCH,
    on_progress: OnProgress | None = None,
    cancelled: IsCancelled = never,
) -> Faithfulness:
    """The faithfulness of `scores` (n_layers, d_mlp) for a subject's target. Raises Cancelled between batches."""
    d_mlp, device, n = scores.shape[1], subject.loaded.device, scores.size
    sizes, ranking = sizes_for(n), descending(scores)
    rng = np.random.default_rng(seed)
    rankings = [ranking, *(rng.permutation(n) for _ in range(random_sets))]
    sample = sampled(scores, top, others, seed)
    sets = [order[:size].tolist() for order in rankings for size in sizes]
    sets += [list(range(n)), *([neuron] for neuron in sample)]
    rows = [NO_EDITS, *(zeroed(neurons, d_mlp, device) for neurons in sets)]
    values = in_batches(subject, rows, batch, on_progress, cancelled)
    whole, rest = values[0], values[1:]
    curves = [tuple(rest[k * len(sizes) : (k + 1) * len(sizes)]) for k in range(len(rankings))]
    emptied, *alone = rest[len(rankings) * len(sizes) :]
    effects = [whole - value for value in alone]
    ranked, chance = np.array(curves[0]), np.array(curves[1:] or [curves[0]]).mean(0)
    mine = [float(scores.ravel()[neuron]) for neuron in sample]
    return Faithfulness(
        method=method,
        unit=unit(method if method not in ("direct", "pan") else "gradient", subject.sides[0][0].target.quantity),
        whole=whole,
        sizes=sizes,
        ranked=curves[0],
        random=tuple(curves[1:]),
        area=mean_over_log(sizes, chance - ranked),
        auc=mean_over_log(sizes, whole - ranked),
        spearman=spearman(mine, effects),
        sample=tuple(f"text.{neuron // d_mlp}.{neuron % d_mlp}" for neuron in sample),
        scores=tuple(mine),
        effects=tuple(effects),
        total=float(scores.sum(dtype=np.float64)),
        emptied=whole - emptied,
    )


def neuron_scores(subject: Subject, method: str, cancelled: IsCancelled = never) -> Floats:
    """(n_layers, d_mlp): a method's scores, summed over all positions."""
    scored = score(subject, method, cancelled)
    result: Floats = torch.stack([layer.float().sum(0).cpu() for layer in scored.scores]).numpy()
    return result


def bootstrap(values: Sequence[float], draws: int = 2000, seed: int = 0) -> tuple[float, float, float]:
    """(mean, low, high): the mean over pictures with its 95 % percentile interval."""
    array = np.asarray(values, np.float64)
    if len(array) == 0:
        return float("nan"), float("nan"), float("nan")
    drawn = np.random.default_rng(seed).integers(0, len(array), (draws, len(array)))
    low, high = np.quantile(array[drawn].mean(1), (0.025, 0.975))
    return float(array.mean()), float(low), float(high)


def held_out(loaded: Loaded, pictures: int, split: world_probes.Split, seed: int, several: bool = False) -> list[Ready]:
    """`pictures` probes of a split, of objects in turn; with `several`, only of those named by more than one token."""
    names = [concept.name for concept in world_probes.concept_names() if concept.kind == "object"]
    if several:
        names = [name for name in names if len(continuation_ids(loaded.processor.tokenizer, f" {name}")) > 1]
    order = np.random.default_rng(seed).permutation(len(names))
    chosen = [names[order[k % len(names)]] for k in range(pictures)]
    found = [world_concept_probes(name, 1, split, seed + k)[0] for k, name in enumerate(chosen)]
    return prepare(loaded, found)


def of_probe(loaded: Loaded, ready: Ready) -> Subject:
    """The target of a probe: the tokens of its answer that say the concept."""
    return subject_of(loaded, ready.prompt, ready.features, [Part(1, ready.answer_ids, ready.target)])


def compare(subject: Subject, methods: Sequence[str], top: int, batch: int, seed: int) -> dict[str, dict[str, float]]:
    """Figures of every method on one subject. Rows that methods share (single neurons) are run once each."""
    single: dict[int, float] = {}
    figures: dict[str, dict[str, float]] = {}
    for method in methods:
        scores = neuron_scores(subject, method)
        found = measure(subject, scores, method, top=0, others=0, seed=seed, batch=batch)
        first = sampled(scores, top, 0, seed)
        missing = [neuron for neuron in first if neuron not in single]
        rows = [zeroed([neuron], scores.shape[1], subject.loaded.device) for neuron in missing]
        single.update(zip(missing, (found.whole - value for value in in_batches(subject, rows, batch)), strict=True))
        figures[method] = {
            "spearman": spearman([float(scores.ravel()[n]) for n in first], [single[n] for n in first]),
            "auc": found.auc,
            "area": found.area,
            "completeness error": abs(found.total - found.emptied),
        }
    return figures


def summary(rows: list[dict[str, dict[str, float]]], methods: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """{method: {figure: [mean, low, high]}} over pictures."""
    names = list(rows[0][methods[0]])
    return {
        method: {name: list(bootstrap([row[method][name] for row in rows])) for name in names} for method in methods
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Faithfulness of all methods on held-out pictures.")
    parser.add_argument("--pictures", type=int, default=50)
    parser.add_argument("--split", choices=("dev", "test"), default="test")
    parser.add_argument("--several", action="store_true", help="only names of several tokens")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--top", type=int, default=200, help="neurons of each method whose exact effect is measured")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    quiet()
    loaded = load()
    rows, several = [], []
    for k, ready in enumerate(held_out(loaded, arguments.pictures, arguments.split, arguments.seed, arguments.several)):
        subject = of_probe(loaded, ready)
        rows.append(compare(subject, arguments.methods, arguments.top, arguments.batch, arguments.seed))
        several.append(len(subject.sides[0][0].explained) > 1)
        print(f"{k + 1}/{arguments.pictures} {ready.probe.says}", flush=True)
    report = {"all": summary(rows, arguments.methods)}
    print(f"{arguments.split} split, {len(rows)} pictures, top {arguments.top}, model {loaded.revision}")
    for method, figures in report["all"].items():
        words = "  ".join(f"{name} {mean:.3f} [{low:.3f}, {high:.3f}]" for name, (mean, low, high) in figures.items())
        print(f"  {method:18s} {words}")
    paired = {"gradient", "pan"} <= set(arguments.methods)
    chosen = [row for row, many in zip(rows, several, strict=True) if many and paired]
    gains = [row["gradient"]["auc"] - row["pan"]["auc"] for row in chosen]
    if gains:
        mean, low, high = bootstrap(gains)
        report["gradient less pan, AUC, several tokens"] = {"paired": {"auc": [mean, low, high, float(len(gains))]}}
        print(f"  gradient − pan, AUC on {len(gains)} names of several tokens: {mean:.3f} [{low:.3f}, {high:.3f}]")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
