"""`sfumato sae …`: sparse autoencoders of a model without a browser: list them, look at one or at a latent, rank
latents by their influence on an answer, train one.

No database is used. Results go to stdout, what a person waits for to stderr; exit status 2 for what cannot be done,
with one sentence.
"""

import argparse
import dataclasses
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app import experimentcli, exports, formats, saeoptions
from app.saeoptions import TOLD_EVERY, Options, chosen, print_json, settings_of, tell
from app.settings import Settings
from app.uploads import BadPicture, Limits, normalise
from engine.contract import Cancelled, Engine, Pixels, Question, RequestError, saes

AddLoading = Callable[[argparse.ArgumentParser], None]


def add_to(commands: Any, add_loading: AddLoading, settings: Callable[[Options], Settings]) -> None:
    """Add the command and its own commands to a parser's."""
    parser = commands.add_parser("sae", help="sparse autoencoders: list, info, influence of latents, train")
    own_commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, words: str, do: Callable[[Engine, Options], int]) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = own_commands.add_parser(name, help=words)
        made.add_argument("--model", help="builtin, a folder, or the name of a model on a hub")
        add_loading(made)
        made.add_argument("--json", action="store_true", help="print JSON")
        made.set_defaults(run=lambda options: _run(settings(options), do, options))
        return made

    saeoptions.attaching(add("list", "the SAEs that stand on the model", _list))
    info = add("info", "an SAE's card; with --latent what that latent writes and reads", _info)
    saeoptions.attaching(info)
    info.add_argument("sae", nargs="?", help="name, id, folder or hub name (the first that is listed)")
    info.add_argument("--latent", type=int, metavar="INDEX")
    influence = add("influence", "answer a question and rank latents by their influence on the answer", _influence)
    saeoptions.attaching(influence)
    influence.add_argument("--question", required=True)
    influence.add_argument("--image", type=Path, help="picture file; without it the question is asked alone")
    saeoptions.variant(influence)
    influence.add_argument("--top", type=int, default=20, help="latents to list of each order (20)")
    influence.add_argument("--ablate", action="store_true", help="also zero each listed latent, and measure the loss")
    words = "mask and swap latents by influence, by activation, the least, random ones: what does it cost?"
    experimentcli.options_of(add("experiment", words, experimentcli.run))
    train = add("train", "train one on the model, from the little world or a folder of pictures and questions", _train)
    train.add_argument("--out", type=Path, required=True, help="folder of the SAE, its card, log and checkpoint")
    train.add_argument("--folder", type=Path, help="pictures with a questions.csv, .jsonl or .json (the little world)")
    train.add_argument("--resume", action="store_true", help="go on from --out's checkpoint, to the bit")
    for field in dataclasses.fields(saes.Recipe):
        needed = field.default is dataclasses.MISSING
        words = "needed" if needed else f"({field.default})" if field.default != "" else "of the SAE"
        kind: Any = field.type
        train.add_argument(f"--{field.name.replace('_', '-')}", type=kind, required=needed, help=words)


def _run(settings: Settings, do: Callable[[Engine, Options], int], options: Options) -> int:
    from app.main import load_engine

    options.limits = Limits(settings.max_upload, settings.max_pixels, settings.max_side)
    options.max_new_tokens = settings.max_new_tokens
    pixels = _pixels(options)
    engine = load_engine(settings)
    try:
        for path in getattr(options, "attach", ()):
            engine.attach_sae(path, options.layer, options.site)
        options.pixels = pixels
        return do(engine, options)
    finally:
        engine.close()


def _pixels(options: Options) -> Pixels | None:
    if getattr(options, "image", None) is None:
        return None
    try:
        data = options.image.read_bytes()
    except OSError as error:
        raise BadPicture(f"{options.image} cannot be read: {error.strerror}.") from None
    picture = normalise(data, options.limits)
    for note in picture.notes:
        tell(note)
    return picture.pixels


def _list(engine: Engine, options: Options) -> int:
    known = engine.saes()
    if options.json:
        print_json([dataclasses.asdict(info) for info in known])
        return 0
    for info in known:
        print(_line(info))
    if not known:
        tell("no SAE stands on this model; train one with sfumato sae train, or give --attach")
    return 0


def _line(info: saes.SaeInfo) -> str:
    measured = ""
    if "explained_variance" in info.card:
        measured = f"   explains {formats.percent(info.card['explained_variance'])}, L0 {info.card['l0']:g}"
    at = f"{info.site} of layer {info.layer}"
    words = f"{info.name:<24}{info.architecture:<10}{info.n_latents:>7} latents   {at}{measured}"
    return f"{words}   {info.fits}".rstrip()


def _info(engine: Engine, options: Options) -> int:
    info = chosen(engine, options)
    lens = None if options.latent is None else engine.latent_lens(info.name, options.latent)
    if options.json:
        told = dataclasses.asdict(info)
        if lens is not None:
            told["latent"] = {"id": f"sae.{info.name}.{options.latent}", **dataclasses.asdict(lens)}
        print_json(told)
        return 0
    print(_line(info))
    for name, value in info.card.items():
        print(f"  {name}: {value}")
    if lens is not None:
        print(f"\nsae.{info.name}.{options.latent}")
        print("  promotes    " + " · ".join(text.strip() or "␣" for text, _, _ in lens.promoted))
        print("  suppresses  " + " · ".join(text.strip() or "␣" for text, _, _ in lens.suppressed))
        print("  written by  " + (" · ".join(f"{name} {value:.2f}" for name, value in lens.written_by) or "none"))
        print("  like        " + " · ".join(f"{index} {value:.2f}" for index, value in lens.alike))
    return 0


def _influence(engine: Engine, options: Options) -> int:
    if options.top < 1:
        raise RequestError(f"--top is {options.top}; it must be at least 1.")
    question = Question(options.pixels, formats.one_line(options.question), options.max_new_tokens)
    if not question.text:
        raise RequestError("The question is empty. Type a question about the picture.")
    info, settings = chosen(engine, options), settings_of(options)
    (answer,) = engine.latent_answers(question, info.name, [[]], settings)
    ids = [token.id for token in answer.tokens]
    found = engine.latent_influence(question, ids, info.name, settings, top=options.top)
    for warning in found.fit.warnings:
        tell(warning)
    lost = None
    if options.ablate:
        listed = [latent.index for latent in found.latents]
        lost = engine.latent_ablation(question, ids, info.name, listed, settings).tolist()
    if options.json:
        print_json(_as_json(engine, info, answer.text, found, lost))
    else:
        _show(info, answer.text, found, lost)
    return 0


def _as_json(
    engine: Engine, info: saes.SaeInfo, answer: str, found: saes.Influence, lost: list[float] | None
) -> dict[str, Any]:
    latents = [
        {
            "id": f"sae.{info.name}.{latent.index}",
            "influence": exports.finite(latent.influence),
            "mean_activation": exports.finite(latent.mean_activation),
            "image_share": latent.image_share,
        }
        for latent in found.latents
    ]
    for k, value in enumerate(lost or ()):
        latents[k]["ablation"] = exports.finite(value)
    return {
        "model": engine.info().name,
        "sae": info.name,
        "answer": answer,
        "value": exports.finite(found.value),
        "settings": dataclasses.asdict(found.settings),
        "explained_variance": exports.finite(found.fit.explained_variance),
        "l0": exports.finite(found.fit.l0),
        "dead_share": exports.finite(found.fit.dead_share),
        "warnings": list(found.fit.warnings),
        "active": int(found.active.sum()),
        "latents": latents,
    }


def _show(info: saes.SaeInfo, answer: str, found: saes.Influence, lost: list[float] | None) -> None:
    print(answer)
    explained = formats.percent(found.fit.explained_variance)
    print(f"{info.name} explains {explained} here; {found.fit.l0:.1f} latents are active at a position\n")
    last = f"{'zeroed':>11}" if lost is not None else ""
    print(f"{'latent':<28}{'influence':>11}{'activation':>12}{last}  image")
    for k, latent in enumerate(found.latents):
        measured = f"{lost[k]:>11.3g}" if lost is not None else ""
        name = f"sae.{info.name}.{latent.index}"
        share = formats.percent(latent.image_share)
        print(f"{name:<28}{latent.influence:>11.3g}{latent.mean_activation:>12.3g}{measured}  {share:>6}")


def _train(engine: Engine, options: Options) -> int:
    names = [field.name for field in dataclasses.fields(saes.Recipe)]
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    recipe = saes.Recipe(**given)
    told = gathering = 0.0

    def on_point(point: saes.TrainingPoint) -> None:
        nonlocal told, gathering
        if point.step == 0:
            if time.monotonic() - gathering >= TOLD_EVERY:
                gathering = time.monotonic()
                tell(f"gathering positions: {point.gathered} of {recipe.kept}")
        elif time.monotonic() - told >= TOLD_EVERY or (point.step == point.steps and told < math.inf):
            told = time.monotonic() if point.step < point.steps else math.inf  # the last one comes more than once
            explained, dead = formats.percent(point.explained_variance), formats.percent(point.dead_share)
            tell(
                f"step {point.step} of {point.steps}: loss {point.loss:.4f}, explains {explained}, "
                f"L0 {point.l0:.1f}, dead {dead}"
            )

    folder, stopped = str(options.folder) if options.folder else "", False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopped
        stopped = True

    before = signal.signal(signal.SIGINT, stop)  # so that it ends with a checkpoint
    try:
        info = engine.train_sae(recipe, str(options.out), folder, options.resume, on_point, lambda: stopped)
    except Cancelled as error:
        tell(str(error))
        raise KeyboardInterrupt from error
    finally:
        signal.signal(signal.SIGINT, before)
    if options.json:
        print_json(dataclasses.asdict(info) | {"folder": str(options.out)})
    else:
        print(f"{_line(info)}\nIt is in {options.out}; use it with --attach {options.out}")
    return 0
