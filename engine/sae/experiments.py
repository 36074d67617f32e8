"""Run the experiment of `engine.sae.masking`:  python -m engine.sae.experiments --items 100 [--drop-error]

On questions about scenes of the little world that no training has seen, or on a file shaped as SQuAD's (--file)."""

import argparse
import dataclasses
import functools
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from engine import evaluation
from engine.builtin import scenes
from engine.contract import Question, RequestError, saes
from engine.sae.activations import scene_of
from engine.sae.items import items_of
from engine.sae.results import Item, experiment_as_json, experiment_table

PURPOSE = "experiment"
SCENES = 1_000_000
"""Scenes of one seed."""
AHEAD = 2000
"""Scenes that are looked through for one with the same question."""


def world_items(n: int, each: int = 2, max_new_tokens: int = 16, seed: int = 0) -> list[Item]:
    """`n` questions about scenes of the little world that neither training nor the SAE has seen, `each` a picture.
    After each picture comes the next one that one of its questions can be put to with another answer, if there is one
    within AHEAD."""
    questions = functools.cache(lambda number: scene_of(PURPOSE, number)[1])
    made: list[Item] = []
    taken: set[int] = set()

    def take(number: int, asked: Sequence[tuple[str, str]]) -> None:
        taken.add(number)
        pixels = scenes.render(scene_of(PURPOSE, number)[0]).pixels
        made.extend(Item(Question(pixels, text, max_new_tokens), (answer,), number) for text, answer in asked[:each])

    for start in itertools.count(seed * SCENES):
        if len(made) >= n:
            return made[:n]
        if start in taken:
            continue
        own = questions(start)[:each]
        take(start, own)
        for number in range(start + 1, start + AHEAD):
            if number in taken:
                continue
            same = [one for one in questions(number) for text, said in own if one[0] == text and one[1] != said]
            if same:
                take(number, (same[0], *(one for one in questions(number) if one != same[0])))
                break
    return made


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=100, help="questions (100)")
    parser.add_argument("--ablated", type=int, default=10, help="items with exact ablation of all active latents (10)")
    parser.add_argument("--swapped", type=int, default=40, help="pairs of items that swap their latents (40)")
    parser.add_argument("--seed", type=int, default=0, help="another draw of the questions (0)")
    parser.add_argument("--sae", help="a folder (the shipped one)")
    parser.add_argument("--drop-error", action="store_true", help="Ẑ in place of Z, as in the paper")
    parser.add_argument("--model", default="builtin", help="builtin, a folder, or the name of a model on a hub")
    parser.add_argument("--file", type=Path, help="questions of SQuAD's shape (the little world's)")
    parser.add_argument("--out", type=Path, help="also write the report as JSON")
    options = parser.parse_args()
    import torch

    from engine.local import load_engine

    torch.set_num_threads(1)
    engine = load_engine(options.model)
    name = engine.attach_sae(options.sae).name if options.sae else engine.saes()[0].name
    settings = dataclasses.replace(saes.DEFAULT, keep_error=not options.drop_error)

    told = -1

    def tell(done: int, whole: int) -> None:
        nonlocal told
        if done != told and done % 10 == 0:
            told = done
            print(f"{done} of {whole}", file=sys.stderr, flush=True)

    items: Sequence[Item] = ()
    if options.file:
        most = evaluation.contract.MAX_ITEMS
        every = evaluation.Settings(limit=most, dev=most, build=most)
        try:
            data = options.file.read_bytes()
        except OSError as error:
            raise RequestError(f"{options.file} cannot be read: {error.strerror}.") from error
        found = evaluation.file_items(every, "squad", {options.file.name: data}, None)
        for bad in found.bad:
            print(f"question {bad.line} is left out: {bad.reason}", file=sys.stderr)
        items = items_of(found.items, options.items, options.seed, 24)
    else:
        items = world_items(options.items, seed=options.seed)
    report = engine.latent_experiment(items, name, settings, options.ablated, tell, swapped=options.swapped)
    print(experiment_table(report))
    if options.out:
        options.out.write_text(json.dumps(experiment_as_json(report), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
