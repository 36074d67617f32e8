"""`sfumato sae experiment`: the experiment of the pages without a browser or a database.

Questions come from the little world, or from a file: SQuAD's shape, or any that `sfumato evaluate --set` reads, with
their pictures. Records that cannot be used are told to stderr, each with its number and the reason.
"""

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from app import questionsets, saeoptions
from app.questionsets import Brought
from app.saeoptions import Options, tell
from engine.contract import Engine, RequestError, concepts, evaluation, saes


def options_of(command: argparse.ArgumentParser) -> None:
    saeoptions.attaching(command)
    saeoptions.variant(command)
    command.add_argument("--file", type=Path, help="JSON of SQuAD's shape, CSV, JSONL, or VQAv2, GQA, POPE")
    command.add_argument("--annotations", type=Path, metavar="FILE", help="VQAv2's second file")
    command.add_argument("--pictures", type=Path, metavar="DIR|ZIP", help="where the questions' pictures are")
    command.add_argument("--limit", "--items", type=int, default=100, help="questions (100)")
    command.add_argument("--seed", type=int, default=0, help="another draw of the questions (0)")
    command.add_argument("--ablated", type=int, default=10, help="items compared with exact ablation (10)")
    command.add_argument("--swapped", type=int, default=40, help="pairs of items that swap their latents (40)")


def run(engine: Engine, options: Options) -> int:
    for name, least in (("limit", 1), ("seed", 0), ("ablated", 0), ("swapped", 0)):
        if getattr(options, name) < least:
            raise RequestError(f"--{name} is {getattr(options, name)}; it must be at least {least}.")
    told = time.monotonic()

    def on_progress(done: int, whole: int) -> None:
        nonlocal told
        if time.monotonic() - told >= saeoptions.TOLD_EVERY:
            told = time.monotonic()
            tell(f"{done} of at most {whole} steps")

    info, settings = saeoptions.chosen(engine, options), saeoptions.settings_of(options)
    with _items(engine, options) as items:
        report = engine.latent_experiment(
            items, info.name, settings, options.ablated, on_progress, swapped=options.swapped
        )
    if options.json:
        saeoptions.print_json({**saes.experiment_as_json(report), "conclusions": list(saes.conclusions(report))})
    else:
        print(saes.experiment_table(report))
    return 0


@contextlib.contextmanager
def _items(engine: Engine, options: Options) -> Iterator[Sequence[saes.Item]]:
    if options.file is None:
        if options.annotations or options.pictures:
            raise RequestError("The little world takes no --annotations and no --pictures. Give --file, too.")
        found = engine.experiment_items(options.limit, options.seed)
        if not found:
            raise RequestError(
                "The little world's questions are for the built-in model. Give this one a file of questions: --file."
            )
        yield found
        return
    brought = Brought(_read(options.file), _read(options.annotations) if options.annotations else None)
    form, most = questionsets.format_of(brought), evaluation.contract.MAX_ITEMS
    every = evaluation.Settings(limit=most, dev=most, build=most)
    with contextlib.ExitStack() as stack:
        pictures = None
        if options.pictures:
            pictures = stack.enter_context(contextlib.closing(concepts.imports.Pictures(options.pictures)))
        opened = evaluation.file_items(every, form, brought.files, pictures)
        for bad in opened.bad:
            tell(f"record {bad.line} is left out: {bad.reason}")
        if not opened.items:
            raise RequestError(f"No record of {options.file} can be asked. See the reasons above.")
        yield saes.items_of(opened.items, options.limit, options.seed)


def _read(path: Path) -> tuple[str, bytes]:
    try:
        return path.name, path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}.") from error
