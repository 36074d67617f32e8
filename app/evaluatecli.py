"""`sfumato evaluate`: an evaluation without a browser, in the same database as the pages'.

How far it is goes to stderr, the result to stdout. What was finished is kept as it comes: Ctrl-C, or a kill, loses
little, and the same command goes on. Exit status 2 for what cannot be done, with one sentence.
"""

import argparse
import json
import re
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from app import appraising, conceptcli, evaluating, evaluations, longjobs, questionsets
from app.conceptjobs import Room
from app.evaluations import DEFAULTS, Draft
from app.questionsets import BUILTIN, Brought
from app.services import Services
from app.settings import Settings
from app.tables import JobRow
from app.views import evaluated
from app.views import evaluation as views
from engine.contract import Cancelled, RequestError, evaluation

TOLD_EVERY = 2.0
"""Seconds between two lines of progress."""
NOTED_EVERY = 0.3
"""Seconds between two notes of progress in the database."""
Options = argparse.Namespace
HASH = re.compile(r"[0-9a-f]{8,64}")


def add_to(
    commands: Any, add_loading: Callable[[argparse.ArgumentParser], None], settings: Callable[[Options], Settings]
) -> None:
    """Add the command to a parser's."""
    made: argparse.ArgumentParser = commands.add_parser(
        "evaluate", help="does turning concepts make the model answer a set of questions better?"
    )
    made.add_argument(
        "--set", default=BUILTIN, metavar="builtin|FILE", help="CSV, JSONL, or VQAv2, GQA, POPE (builtin)"
    )
    made.add_argument("--annotations", type=Path, metavar="FILE", help="VQAv2's second file")
    made.add_argument("--pictures", type=Path, metavar="DIR|ZIP", help="where the questions' pictures are")
    made.add_argument("--kinds", action="append", default=[], metavar="A,B", help="kinds of question (all)")
    made.add_argument("--conditions", action="append", default=[], metavar="A,B", help="conditions (all)")
    made.add_argument(
        "--limit", default="", metavar="N", help=f"test questions of a kind in a condition ({DEFAULTS.limit})"
    )
    made.add_argument("--dev", default="", metavar="N", help=f"dev questions of each (as many, at most {DEFAULTS.dev})")
    made.add_argument("--seed", default="", metavar="S", help="another draw of the questions (0)")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.add_argument("--model", help="builtin, a folder, or the name of a model on a hub")
    add_loading(made)
    made.add_argument("--database-url", help="SQLAlchemy URL (an SQLite file in the data folder)")
    made.add_argument("--data-dir", type=Path, help="folder for pictures, sets and the database (./var)")
    made.set_defaults(run=lambda options: _run(settings(options), options))


def _run(settings: Settings, options: Options) -> int:
    try:
        with conceptcli.opened(settings) as (services, room):
            return _evaluate(services, room, options)
    except conceptcli.TOLD as error:
        raise RequestError(str(error)) from error
    except (SQLAlchemyError, OSError, zipfile.BadZipFile) as error:
        words = (str(getattr(error, "orig", None) or error).strip() or type(error).__name__).splitlines()[0]
        raise RequestError(f"The database or a file cannot be used: {words}") from error


def _evaluate(services: Services, room: Room, options: Options) -> int:
    set_hash = _set(services, options)
    with services.database.read() as session:
        kinds, _ = evaluations.known_kinds(evaluating.row_of(session, set_hash))
    asked = _names(options.kinds, kinds), _names(options.conditions)
    draft = Draft(set_hash, *asked, options.limit, options.dev, options.seed)
    planned = appraising.plan(services, draft)
    _tell(f"{planned.test} test and {planned.dev} dev questions, at most {planned.answers} answers")
    if planned.seconds is not None and planned.measured:
        _tell(f"{evaluated.wait(planned.seconds)}, at the pace of the newest evaluation")
    job_id = appraising.request(services, draft, here=True)
    result = _do(services, room, job_id)
    found = evaluation.evaluation_from_json(result["evaluation"])
    command = views.command(found.settings, set_hash, services.settings.model)
    if options.json:
        told = {"id": job_id, **evaluated.as_json(found), "command": command}
        print(json.dumps(told, ensure_ascii=False, allow_nan=False))
    else:
        print(evaluated.table(found))
        print(f"\nThe same again: {command}\nOn the pages: /evaluations/{job_id}")
    return 0


def _names(given: list[str], known: Sequence[str] = ()) -> tuple[str, ...]:
    """Names from one or several options, with commas between; a known name may hold commas itself."""
    parts = [[text] if text in known else text.split(",") for text in given]
    return tuple(dict.fromkeys(name.strip() for some in parts for name in some if name.strip()))


def _set(services: Services, options: Options) -> str:
    """The hash of the set that is meant, kept in the data folder; or BUILTIN."""
    name = options.set
    if name == BUILTIN:
        if options.annotations or options.pictures:
            raise RequestError("The built-in set takes no --annotations and no --pictures. Give --set a file.")
        return BUILTIN
    path = Path(name)
    if not path.exists() and HASH.fullmatch(name):
        with services.database.read() as session:
            known = [row.hash for row in questionsets.listed(session) if row.hash.startswith(name)]
        if len(known) == 1:
            return known[0]
    if not path.is_file():
        raise RequestError(f"--set {name}: there is no such file. Give builtin, a file, or the hash of a kept set.")
    annotations = (options.annotations.name, options.annotations.read_bytes()) if options.annotations else None
    brought = Brought((path.name, path.read_bytes()), annotations, options.pictures or b"")
    set_hash = appraising.bring(services, brought)
    with services.database.read() as session:
        row = evaluating.row_of(session, set_hash)
    if row is not None:
        for line, reason in row.bad:
            _tell(f"{questionsets.entry_word(row)} {line} is left out: {reason}")
        asked = f"{row.questions:,} question{'' if row.questions == 1 else 's'}"
        _tell(f"{row.name}: {asked}, {row.left_out:,} left out")
    return set_hash


def _do(services: Services, room: Room, job_id: str) -> dict[str, Any]:
    """Do an evaluation here and now; its result. One that is done stays done."""
    with services.database.read() as session:
        job = session.get_one(JobRow, job_id)
        if job.state == "done":
            _tell("it is done already; this is its result")
            return job.result or {}
        params = job.params
    began, told, noted, stop = time.monotonic(), 0.0, 0.0, False

    def on_progress(done: int, total: int) -> None:
        nonlocal told, noted, stop
        at = time.monotonic()
        if at - noted >= NOTED_EVERY or done >= total:
            noted = at
            stop = longjobs.progress(services.database, job_id, done, total)
        if done and at - told >= TOLD_EVERY:
            told = at
            left = evaluated.wait((at - began) * (total - done) / done)
            _tell(f"{done} of at most {total} answers, {left} left")

    try:
        result, arrays = evaluating.evaluate(room, params, on_progress, lambda: stop)
    except (KeyboardInterrupt, Cancelled):
        appraising.cancel(services, job_id)
        longjobs.stopped(services.database, job_id)
        _tell("stopped; what was finished is kept. The same command goes on, or the evaluation's page:")
        _tell(f"/evaluations/{job_id}")
        raise KeyboardInterrupt from None
    except BaseException as error:
        longjobs.fail(services.database, job_id, str(error) or type(error).__name__)
        raise
    longjobs.finish(services.database, job_id, result, arrays)
    return result


def _tell(sentence: str) -> None:
    print(f"sfumato: {sentence}", file=sys.stderr, flush=True)
