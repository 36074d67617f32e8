"""Run the experiment of `engine.sae.masking`:  python -m engine.sae.experiments --items 100 [--drop-error]

On questions about scenes of the little world that no training has seen, or on a file shaped as SQuAD's (--file)."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from engine.contract import Question, RequestError, saes
from engine.sae.activations import world
from engine.sae.results import Item, experiment_as_json, experiment_table


def world_items(n: int, each: int = 2, max_new_tokens: int = 16) -> list[Item]:
    """`n` questions about scenes of the little world that neither training nor the SAE has seen, `each` a picture."""
    made: list[Item] = []
    start = 0
    while len(made) < n:
        (one,) = world("experiment", start, 1)
        asked = one.questions[:each]
        made += [Item(Question(one.picture, text, max_new_tokens), (answer,), start) for text, answer in asked]
        start += 1
    return made[:n]


def squad_items(path: str, n: int, max_new_tokens: int = 24) -> list[Item]:
    """The first `n` questions of a file shaped as SQuAD's, each asked after its paragraph. Raises RequestError."""
    made: list[Item] = []
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
        paragraphs = [paragraph for article in told["data"] for paragraph in article["paragraphs"]]
        for number, paragraph in enumerate(paragraphs):
            for asked in paragraph["qas"]:
                right = tuple(dict.fromkeys(str(one["text"]) for one in asked["answers"]))
                if right:
                    text = f"{paragraph['context']}\n{asked['question']}"
                    made.append(Item(Question(None, text, max_new_tokens), right, number))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{path} cannot be read as a file of SQuAD's shape: {error!r}") from error
    return made[:n]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=100, help="questions (100)")
    parser.add_argument("--ablated", type=int, default=10, help="items with exact ablation of all active latents (10)")
    parser.add_argument("--sae", help="a folder (the shipped one)")
    parser.add_argument("--drop-error", action="store_true", help="Ẑ in place of Z, as in the paper")
    parser.add_argument("--model", default="builtin", help="builtin, a folder, or the name of a model on a hub")
    parser.add_argument("--file", help="questions of SQuAD's shape (the little world's)")
    parser.add_argument("--out", type=Path, help="also write the report as JSON")
    options = parser.parse_args()
    import torch

    from engine.local import load_engine

    torch.set_num_threads(1)
    engine = load_engine(options.model)
    name = engine.attach_sae(options.sae).name if options.sae else engine.saes()[0].name
    settings = dataclasses.replace(saes.DEFAULT, keep_error=not options.drop_error)

    def tell(done: int, whole: int) -> None:
        if done % 10 == 0:
            print(f"{done} of {whole}", file=sys.stderr, flush=True)

    items = squad_items(options.file, options.items) if options.file else world_items(options.items)
    report = engine.latent_experiment(items, name, settings, options.ablated, tell)
    print(experiment_table(report))
    if options.out:
        options.out.write_text(json.dumps(experiment_as_json(report), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
