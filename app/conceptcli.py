"""`sfumato concepts …`: the concepts of a model without a browser, in the same database as the pages'.

What a person waits for goes to stderr, the result to stdout. Exit status 2 for what cannot be done, with one sentence;
`validate` ends with 1 where a concept is weak. No worker runs here: each job is done at once, and kept in its row as
any other.
"""

import argparse
import contextlib
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from alembic.util import CommandError
from sqlalchemy.exc import SQLAlchemyError

from app import conceptqueries, examining, exchange, library, longjobs, own, owning, runners, runs
from app.broker import Broker
from app.conceptjobs import Room
from app.database import Database
from app.errors import Missing
from app.importing import Files
from app.pictures import Store
from app.rendering import Renderer
from app.services import Services
from app.settings import Settings
from app.tables import ConceptRow, JobRow, OwnConcept, now
from app.validating import ALPHA
from app.views import concepts as pages
from app.worker import Worker
from engine.contract import RequestError, never

TOP = 20
NOBODY_READS = 141
"""Exit status where the reader of a pipe has gone, as shells have it: 128 + SIGPIPE."""
Options = argparse.Namespace
TOLD = (Missing, owning.NoSuchConcept, runs.QueueFull, runs.NoModel)


def add_to(
    commands: Any, add_loading: Callable[[argparse.ArgumentParser], None], settings: Callable[[Options], Settings]
) -> None:
    """Add the command and its own commands to a parser's."""
    parser = commands.add_parser("concepts", help="list, build, validate, export and import concepts")
    own_commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, words: str, do: Callable[[Services, Room, Options], int]) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = own_commands.add_parser(name, help=words)
        made.add_argument("--model", help="builtin, a folder, or the name of a model on a hub")
        add_loading(made)
        made.add_argument("--database-url", help="SQLAlchemy URL (an SQLite file in the data folder)")
        made.add_argument("--data-dir", type=Path, help="folder for pictures and the database (./var)")
        made.add_argument("--json", action="store_true", help="print JSON")
        made.set_defaults(run=lambda options: _run(settings(options), do, options))
        return made

    listing = add("list", "all concepts of the model", _list)
    listing.add_argument("--kind", help="only those of this kind")
    add("show", "one concept with its strongest members", _show).add_argument("name", metavar="NAME")
    build = add("build", "make a concept of your own from probes, or go on with one", _build)
    build.add_argument("file", type=Path, metavar="FILE", help="CSV, JSONL, or JSON shaped as COCO captions or VQAv2")
    build.add_argument("--pictures", type=Path, metavar="FOLDER_OR_ZIP", help="where the probes' pictures are")
    build.add_argument("--annotations", type=Path, help="VQAv2's second file")
    build.add_argument("--name", help="of the concept (the file's)")
    build.add_argument("--kind", default=own.KIND, help="a word for its group (own)")
    build.add_argument("--form", action="append", default=[], help="a surface form by which answers say it; repeatable")
    build.add_argument("--map", help=f"membership map ({own.MAP})")
    build.add_argument("--quantile", help=f"of the map ({own.QUANTILE:g})")
    build.add_argument("--mode", help=f"raw, or specific against --contrast ({own.MODE})")
    build.add_argument("--contrast", action="append", default=[], metavar="NAME", help="own concept; repeatable")
    validate = add("validate", "do concepts work on held-out probes?", _validate)
    validate.add_argument("names", nargs="*", metavar="NAME", help="concepts (default: all)")
    export = add("export", "write your own concepts to a file", _export)
    export.add_argument("file", type=Path, metavar="FILE")
    export.add_argument("names", nargs="*", metavar="NAME", help="concepts (default: all of your own)")
    add("import", "take in the concepts of such a file", _import).add_argument("file", type=Path, metavar="FILE")


def _run(settings: Settings, do: Callable[[Services, Room, Options], int], options: Options) -> int:
    try:
        with opened(settings) as (services, room):
            status = do(services, room, options)
            sys.stdout.flush()
            return status
    except BrokenPipeError:  # such as `sfumato concepts list | head`
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left must not fail at the exit
        return NOBODY_READS
    except TOLD as error:
        raise RequestError(str(error)) from error
    except (CommandError, SQLAlchemyError, OSError, zipfile.BadZipFile) as error:
        words = (str(getattr(error, "orig", None) or error).strip() or type(error).__name__).splitlines()[0]
        raise RequestError(f"The database or a file cannot be used: {words}") from error


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[tuple[Services, Room]]:
    """The model with its concepts, and the database, upgraded. The worker of these services is never started."""
    from app.main import load_engine

    database, broker = Database(settings.url), Broker()
    database.upgrade()
    store = Store(settings.data_dir / "pictures")
    engine = load_engine(settings)
    try:
        worker = Worker(database, store, broker, lambda: engine, settings.ranked)
        worker.info, worker.state = engine.info(), "ready"
        room = Room(engine, worker.info, database, store)
        adopt(room)
        yield Services(settings, database, store, broker, worker, Renderer()), room
    finally:
        engine.close()
        database.close()


def adopt(room: Room) -> None:
    """What the rows say becomes the library's, and the library's the rows'."""
    with room.database.write() as session:
        own.adopt(session, room.info, room.engine)
        library.copy(session, room.info.revision, room.engine.library())


def do_job(room: Room, job_id: str, label: str) -> dict[str, Any]:
    """Do a queued job here and now, telling how far it is; its result. One that is done stays done."""
    with room.database.write() as session:
        row = session.get_one(JobRow, job_id, with_for_update=True)
        if row.state == "done":
            return row.result or {}
        row.state, row.started = "running", now()
        kind, params = row.kind, row.params
    told = -1

    def on_progress(done: int, total: int) -> None:
        nonlocal told
        percent = 100 * done // max(total, 1)
        if percent >= told + 10 or (done >= total and told < 100):
            told = percent
            longjobs.progress(room.database, job_id, done, total)
            print(f"{label}: {done} of {total}", file=sys.stderr, flush=True)

    try:
        result, arrays = runners.RUNNERS[kind](room, params, on_progress, never)
    except BaseException as error:
        longjobs.fail(room.database, job_id, str(error) or "Stopped by hand.")
        raise
    longjobs.finish(room.database, job_id, result, arrays)
    return result


def _concept(room: Room, name: str) -> ConceptRow:
    with room.database.read() as session:
        examining.find(session, room.info.revision, name)
        row = conceptqueries.concept(session, room.info.revision, name)
        assert row is not None
        return row


def _print(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _verdict(passes: float | None) -> str:
    return "not validated" if passes is None else "passes" if passes else "weak"


def _list(services: Services, room: Room, options: Options) -> int:
    with room.database.read() as session:
        rows = conceptqueries.heads(session, room.info.revision, kind=options.kind or "")
    if options.json:
        _print([pages.head_as_json(row) for row in rows])
        return 0
    wide = max((len(row.name) for row in rows), default=0)
    for row in rows:
        about = f"{row.kind:<10} {row.probes:>4} probes  Σμ {row.cardinality:8.1f}"
        print(f"{row.name:<{wide}}  {about}  {_verdict(row.figures.get('passes'))}")
    return 0


def _show(services: Services, room: Room, options: Options) -> int:
    row = _concept(room, options.name)
    with room.database.read() as session:
        mine = conceptqueries.own(session, room.info.revision, row.name)
        beside = conceptqueries.alike(session, room.info.revision)
    told = pages.as_json(row, library.exact(row.exact), ALPHA, beside, mine)
    if options.json:
        _print(told)
        return 0
    print(f"{row.name} · {row.kind} · {row.probes} probes · cardinality Σμ {row.cardinality:.1f}")
    print(_verdict(row.figures.get("passes")))
    for name, value in row.figures.items():
        print(f"  {name:<18} {value:.4g}")
    print(f"\n{len(told['alpha_cut'])} neurons of membership ≥ {ALPHA:g}")
    for member in told["alpha_cut"][:TOP]:
        print(f"  {member['id']:<16} {member['membership']:.2f}")
    return 0


def _build(services: Services, room: Room, options: Options) -> int:
    name = options.name or options.file.stem
    annotations = options.annotations.read_bytes() if options.annotations else b""
    files = Files(options.file.name, options.file.read_bytes(), annotations, options.pictures or b"")
    with room.database.read() as session:
        before = conceptqueries.own(session, room.info.revision, name)
    chosen = any((options.map, options.quantile, options.mode, options.contrast))
    phi, quantile, mode, contrast = _settings(options, before)
    owning.checked_map(phi, quantile, mode)
    if before is None:
        draft = own.Draft(name=name, kind=options.kind, forms="\n".join(options.form))
        concept_id = owning.create(services, draft, files)
    else:
        concept_id = before.id
        if options.form:
            owning.reword(services, concept_id, "\n".join([*before.forms, *options.form]))
        owning.add_file(services, concept_id, files)
    if chosen:
        owning.choose(services, concept_id, phi, quantile, mode, contrast)
    owning.build(services, concept_id)
    with room.database.read() as session:
        jobs = [job.id for job in own.builds(session, concept_id) if job.state != "done"][:1]
        jobs += [job.id for job in own.adopting(session, concept_id)]
        bad = [(row.source, row.refused) for row in own.probes(session, concept_id) if row.refused]
    for source, reason in bad:
        print(f"sfumato: {source}: {reason}", file=sys.stderr)
    for job_id in jobs:
        do_job(room, job_id, name)
    with room.database.read() as session:
        refused = [(row.source, row.refused) for row in own.probes(session, concept_id) if row.refused]
        built = len(own.built(session, concept_id))
    if not built:
        raise RequestError(f"No probe of “{name}” could be built: {refused[0][1] if refused else 'there is none.'}")
    row = _concept(room, name)
    if options.json:
        told = [{"source": source, "reason": reason} for source, reason in refused]
        _print(pages.head_as_json(row) | {"refused": told})
    else:
        print(f"{name}: {built} probes built, {len(refused)} lines refused; cardinality Σμ {row.cardinality:.1f}")
    return 0


def _settings(options: Options, before: OwnConcept | None) -> tuple[str, str, str, list[str]]:
    """Map, quantile, mode and contrast as they are asked for; where nothing is said, as they were."""
    phi, quantile, mode = own.MAP, own.QUANTILE, own.MODE
    if before is not None:
        phi, quantile, mode = before.map, before.quantile, before.mode
    mode = options.mode or mode
    contrast = options.contrast or (before.contrast if before is not None and mode == "specific" else [])
    return options.map or phi, options.quantile or str(quantile), mode, contrast


def _validate(services: Services, room: Room, options: Options) -> int:
    names = list(options.names)
    if not names:
        with room.database.read() as session:
            names = [row.name for row in conceptqueries.heads(session, room.info.revision)]
    for name in names:
        _concept(room, name)
    told: list[dict[str, Any]] = []
    for name in names:
        try:
            job_id = examining.request(services, "validate", name, ALPHA, 0)
            result = do_job(room, job_id, name)
        except RequestError as error:
            if options.names:
                raise
            print(f"sfumato: {name}: {error}", file=sys.stderr)
            continue
        told.append(result)
        if not options.json:
            print(f"{name}: {_verdict(result['passes'])}. {result['reason']}", flush=True)
    if options.json:
        _print(told)
    return 0 if all(result["passes"] for result in told) else 1


def _export(services: Services, room: Room, options: Options) -> int:
    with room.database.read() as session:
        count = exchange.write(session, room.info, room.store, options.names, options.file)
    _done(options, f"{count} concepts written to {options.file}", {"file": str(options.file), "concepts": count})
    return 0


def _import(services: Services, room: Room, options: Options) -> int:
    with room.database.write() as session:

        def free(name: str) -> None:
            owning.check(name, own.KIND, ())
            own.check_free(session, room.info.revision, name)

        names = exchange.read(session, room.info, room.store, services.limits, options.file, free)
    adopt(room)
    _done(options, f"{len(names)} concepts taken in: {', '.join(names)}", {"concepts": names})
    return 0


def _done(options: Options, words: str, told: dict[str, Any]) -> None:
    if options.json:
        _print(told)
    else:
        print(words)
