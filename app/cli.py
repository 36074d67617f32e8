"""`sfumato serve` and `sfumato ask`: the same main job with and without a browser. `sfumato check`: does it hold for a
model? (`sfumato concepts` is in conceptcli.py, `sfumato evaluate` in evaluatecli.py, `sfumato sae` in
saecli.py.)

Errors are one sentence on stderr and exit status 2; a check that does not hold is exit status 1. `--model fake`
runs the engine without a model (for development).
"""

import argparse
import errno
import json
import math
import socket
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from alembic.util import CommandError
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from app import conceptcli, evaluatecli, exports, formats, saecli, steerings
from app.settings import CHOICES, Settings
from app.uploads import BadPicture, Limits, normalise
from engine.contract import (
    METHODS,
    Asked,
    Engine,
    EngineError,
    Floats,
    ModelRefused,
    Question,
    RequestError,
    Steered,
    Steering,
)

SHADES = " ·░▒▓█"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        given = f"--{name}" if getattr(options, name, None) is not None else f"SFUMATO_{name.upper()}"
        return _fail(f"{given}: {problem['msg']}.")
    except (EngineError, BadPicture) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130


def _fail(sentence: str) -> int:
    print(f"sfumato: {sentence}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("sfumato", description="Explore the neurons of a multimodal language model.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve the web pages")
    serve.add_argument("--host", help="address to listen on (127.0.0.1)")
    serve.add_argument("--port", type=int, help="port to listen on (8000; 0 = any free one)")
    serve.add_argument("--model", help="builtin, a folder, or the name of a model on a hub")
    _add_loading(serve)
    serve.add_argument("--database-url", help="SQLAlchemy URL (an SQLite file in the data folder)")
    serve.add_argument("--data-dir", type=Path, help="folder for pictures and the database (./var)")
    serve.add_argument(
        "--sae-dir", action="append", type=Path, dest="sae_dirs", metavar="FOLDER",
        help="a folder from which pages may attach SAEs and take pictures to train on; repeatable",
    )  # fmt: skip
    serve.add_argument("--sae-hub", action="store_true", default=None, help="let pages have SAEs fetched from the hub")
    serve.set_defaults(run=_serve)
    ask = commands.add_parser("ask", help="ask a question about a picture and rank the neurons that answered")
    ask.add_argument("--question", required=True)
    ask.add_argument("--image", type=Path, help="picture file; without it the question is asked alone")
    ask.add_argument("--top", type=int, default=20, help="neurons to list (20)")
    ask.add_argument(
        "--steer", action="append", default=[], metavar="CONCEPT=LAMBDA",
        help="also answer with this concept turned: −1 suppresses, 0 leaves alone; or text.LAYER.INDEX=FACTOR, or "
        "sae.SAE.INDEX=FACTOR",
    )  # fmt: skip
    ask.add_argument("--method", choices=list(METHODS), help="gradient (direct for a model without gradients)")
    ask.add_argument("--model", help="builtin, a folder, or the name of a model on a hub")
    _add_loading(ask)
    ask.add_argument("--json", action="store_true", help="print one JSON object")
    ask.set_defaults(run=_ask)
    check = commands.add_parser("check", help="run a model's self-check; exit status 0 only if every check holds")
    check.add_argument("model", metavar="MODEL_OR_FOLDER", help="builtin, a folder, or the name of a model on a hub")
    _add_loading(check)
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.set_defaults(run=_check)
    conceptcli.add_to(commands, _add_loading, _settings)
    evaluatecli.add_to(commands, _add_loading, _settings)
    saecli.add_to(commands, _add_loading, _settings)
    return parser


def _add_loading(command: argparse.ArgumentParser) -> None:
    """How a model is loaded; the values are checked by the settings."""
    for name, (_, words) in CHOICES.items():
        command.add_argument(f"--{name}", help=words)


def _settings(options: argparse.Namespace) -> Settings:
    names = ("host", "port", "model", *CHOICES, "database_url", "data_dir", "sae_dirs", "sae_hub")
    given = {name: getattr(options, name, None) for name in names}
    return Settings(**{name: value for name, value in given.items() if value is not None})


def _serve(options: argparse.Namespace) -> int:
    import uvicorn

    from app.main import create_app

    settings = _settings(options)
    try:
        app = create_app(settings)
        app.state.services.database.upgrade()
    except (SQLAlchemyError, CommandError, ImportError, OSError, ValueError, TypeError) as error:
        # A broken URL comes as any of these: its parser and the drivers each have their own.
        words = (str(getattr(error, "orig", None) or error).strip() or type(error).__name__).splitlines()[0]
        return _fail(f"The database or the data folder cannot be used: {words}")
    try:
        listening = _bind(settings.host, settings.port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _fail(f"Port {settings.port} of {settings.host} is taken. Choose another one with --port.")
        return _fail(f"{settings.host}:{settings.port} cannot be listened on: {error.strerror}. Choose another --host.")
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    print(f"Sfumato is at http://{host}:{listening.getsockname()[1]}/ (Ctrl+C stops it)", flush=True)
    config = uvicorn.Config(
        app, log_level=settings.log_level, server_header=False, timeout_graceful_shutdown=1,
        access_log=False,
    )  # fmt: skip
    server = uvicorn.Server(config)
    server.run(sockets=[listening])
    return 0 if server.started else 1


def _bind(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def _ask(options: argparse.Namespace) -> int:
    from app.main import load_engine

    settings = _settings(options)
    steering = _steering(options.steer)
    names = [text.rpartition("=")[0].strip() for text in options.steer]
    if options.top < 1:
        raise RequestError(f"--top is {options.top}; it must be at least 1.")
    pixels = None
    if options.image is not None:
        try:
            data = options.image.read_bytes()
        except OSError as error:
            raise BadPicture(f"{options.image} cannot be read: {error.strerror}.") from None
        limits = Limits(settings.max_upload, settings.max_pixels, settings.max_side)
        picture = normalise(data, limits)
        pixels = picture.pixels
        for note in picture.notes:
            print(f"sfumato: {note}", file=sys.stderr)
    question = Question(pixels, formats.one_line(options.question), settings.max_new_tokens)
    if not question.text:
        raise RequestError("The question is empty. Type a question about the picture.")
    engine = load_engine(settings)
    try:
        _verify(engine, names)
        return _answer(engine, question, steering, options)
    finally:
        engine.close()


def _check(options: argparse.Namespace) -> int:
    from app.main import check_model

    told: dict[str, Any] = {"model": options.model, "holds": False, "checks": []}
    try:
        info = check_model(_settings(options))
    except ModelRefused as error:
        told["refused"] = str(error)
    else:
        checks = [{"name": check.name, "holds": check.holds, "detail": check.detail} for check in info.checks]
        told |= {"holds": info.holds, "family": info.family, "revision": info.revision, "checks": checks}
        told |= {"device": info.device, "dtype": info.dtype, "no_gradient": info.no_gradient}
    if options.json:
        print(json.dumps(told, ensure_ascii=False, allow_nan=False))
    else:
        print("\n".join(f"{'✓' if c['holds'] else '✗'} {c['name']}: {c['detail']}" for c in told["checks"]))
        if told.get("no_gradient"):
            print(f"no gradient methods: {told['no_gradient']}")
        reason = told.get("refused") or next((c["name"] for c in told["checks"] if not c["holds"]), None)
        print(f"{options.model}: {'every check holds' if reason is None else f'refused: {reason}'}")
    return 0 if told["holds"] else 1


def _answer(engine: Engine, question: Question, steering: Steering, options: argparse.Namespace) -> int:
    method = options.method or ("direct" if engine.info().no_gradient else "gradient")
    asked = engine.ask(question, method, top=options.top)
    steered = None
    if not steering.empty:
        steered = engine.steer(question, [token.id for token in asked.answer.tokens], steering)
    elif options.steer:  # all turns leave alone: the steered answer is the answer
        logprobs = tuple(token.logprob for token in asked.answer.tokens)
        steered = Steered(asked.answer, logprobs, logprobs, 0)
    if options.json:
        print(json.dumps(_as_json(engine, asked, steered), ensure_ascii=False, allow_nan=False))
    else:
        weak = {known.name for known in engine.library().concepts if known.figures.get("passes") == 0}
        _print(asked, steered, steering, weak)
    return 0


def _steering(given: Sequence[str]) -> Steering:
    fields = []
    for text in given:
        name, equals, value = text.rpartition("=")
        if not equals or not name:
            raise RequestError(f"“{text}” is not a steering. Write CONCEPT=LAMBDA, for example “traffic light=-1”.")
        fields.append((f"{steerings.kind_of(name)}{name.strip()}", value))
    return steerings.from_json(steerings.from_form(fields))


def _verify(engine: Engine, names: Sequence[str]) -> None:
    """Refuse concepts, neurons and latents that this model does not have, turned or not. Raises RequestError."""
    info = engine.info()
    known = [concept.name for concept in engine.library().concepts]
    for name in names:
        kind = steerings.kind_of(name)
        if kind == steerings.LATENT_FIELD:
            (sae, index), attached = steerings.latent(name), engine.saes()
            steerings.verify_latent(steerings.ids_of(attached).get(sae, sae), sae, index, attached)
        elif kind == steerings.NEURON_FIELD:
            steerings.verify_neuron(*steerings.neuron(name), {"n_layers": info.n_layers, "d_mlp": info.d_mlp})
        elif name not in known:
            raise steerings.unknown_concept(name, known)


def _as_json(engine: Engine, asked: Asked, steered: Steered | None) -> dict[str, Any]:
    attribution = asked.attribution
    box = attribution.grid.box if attribution.grid is not None else None
    made: dict[str, Any] = {
        "model": engine.info().name,
        "answer": asked.answer.text,
        "tokens": exports.tokens_as_json(asked.answer.tokens),
        "neurons": [
            {"id": neuron.neuron, "score": exports.finite(neuron.score), "image_share": neuron.image_share}
            for neuron in attribution.neurons
        ],
        "concepts": [
            {
                "name": scored.concept,
                "score": exports.finite(scored.score),
                "similarity": exports.finite(scored.similarity),
            }
            for scored in attribution.concepts
        ],
        "heatmap": exports.heat_as_json(attribution.evidence_heat, box),
        "heatmap_net": attribution.heat.tolist() if attribution.heat is not None else None,
        "timing_ms": {stage: round(value, 2) for stage, value in asked.timing_ms.items()},
    }
    if steered is not None:
        made["steered"] = {
            "answer": steered.answer.text,
            "tokens": exports.tokens_as_json(steered.answer.tokens),
            "original_under_steered": list(steered.original_under_steered),
            "steered_under_original": list(steered.steered_under_original),
        }
    return made


def _print(asked: Asked, steered: Steered | None, steering: Steering, weak: Collection[str]) -> None:
    tokens = asked.answer.tokens
    print(asked.answer.text)
    print(
        "  ".join(
            f"{token.text.strip() or ('␣' if token.text else '▯')} {formats.percent(math.exp(token.logprob))}"
            for token in tokens
        )
    )
    neurons = asked.attribution.neurons
    power, unit = formats.unit(max((abs(neuron.score) for neuron in neurons), default=0.0))
    print(f"\n{'neuron':<16}{'score':>9}  image{f'   scores in {unit}' if unit else ''}")
    for neuron in neurons:
        print(f"{neuron.neuron:<16}{formats.in_unit(neuron.score, power):>9}  {formats.percent(neuron.image_share):>6}")
    leading = asked.attribution.concepts[:5]
    if leading:
        named = [
            f"{scored.concept} {formats.membership(scored.similarity)}{' (weak)' if scored.concept in weak else ''}"
            for scored in leading
        ]
        print("\nmost like the concepts: " + " · ".join(named))
    heat = asked.attribution.evidence_heat
    if heat is not None:
        print("\nwhere the neurons that carried it found it:\n" + "\n".join(_shaded(heat)))
    if steered is not None:
        words = steerings.in_words(steerings.to_json(steering), steered.n_neurons)
        print(f"\nsteered ({words}): {steered.answer.text}")


def _shaded(heat: Floats) -> list[str]:
    """The patches that raise the answer, darker = more; two characters a patch, which is about square."""
    largest = float(heat.max())
    if largest <= 0:
        return ["(no patch raises this answer)"]
    steps = (heat.clip(0) / largest * (len(SHADES) - 1)).round().astype(int)
    return ["".join(2 * SHADES[step] for step in row) for row in steps]


if __name__ == "__main__":
    sys.exit(main())
