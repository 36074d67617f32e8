"""The pages of evaluations: the list with its forms, the plan of one, and one as it runs and as a report."""

import datetime as dt
import shlex
from collections.abc import Sequence

from app import evaluations, formats, questionsets
from app.contexts import (
    Choice,
    EvaluationLine,
    EvaluationPage,
    EvaluationsPage,
    EvaluationView,
    PlanForm,
    PlanPage,
    Shell,
)
from app.evaluations import Draft, Known, Plan
from app.questionsets import BUILTIN
from app.services import Services
from app.state import address
from app.tables import JobRow, QuestionSet, now
from app.views import evaluated
from engine.contract import evaluation

DEFAULTS = evaluation.Settings()
HOME, PLAN = "/evaluations", "/evaluations/plan"
FIRST = Draft(kinds=("name", "side"), conditions=(evaluation.EASY, "noise 70"))
"""What the form of the built-in set proposes: enough to see how an evaluation goes, in minutes."""
SPLIT = (
    "Questions are split in three: concepts are built on the first part, the setting — which concepts are turned for a "
    "question, how far and where — is chosen on the second (dev), and accuracy is counted once on the third (test)."
)
BLIND = (
    "Which concepts apply is decided without knowing the right answer: by the kind of question, or by what the model "
    "itself says first."
)
CONTROLS = "The same turn of as many random neurons, and of the single-token score’s, shows what any turn would do."
HONEST = (
    "Each difference has a 95 % interval over questions and McNemar’s test; where there is no gain, the report says so."
)
TEACH = (SPLIT, BLIND, CONTROLS, HONEST)
STOP = "It can be stopped, and gone on with."
SHAPES = tuple((form.words, "; ".join(form.files)) for form in evaluation.FORMATS.values())


def limits(services: Services, command: str = "sfumato evaluate") -> str:
    most = f"{services.settings.max_upload / 2**20:.0f} MB"
    return f"all files together at most {most}; larger sets by the command {command}"


def set_name(row: QuestionSet | None) -> str:
    return "The built-in set" if row is None else row.name


def about_set(row: QuestionSet | None) -> str:
    if row is None:
        return "little scenes of the built-in model’s world, easy and made harder in seven ways"

    def several(count: int, word: str) -> str:
        return f"{count:,} {word}{'' if count == 1 else 's'}"

    out = f", {several(row.left_out, 'line')} left out" if row.left_out else ""
    asked = f"{several(row.questions, 'question')} of {several(len(row.kinds), 'kind')}"
    return f"{evaluation.FORMATS[row.format].words}, {asked}{out}"


def form(draft: Draft, row: QuestionSet | None) -> PlanForm:
    kinds, conditions = evaluations.known_kinds(row)
    words = evaluated.KINDS if row is None else {}
    return PlanForm(
        action=PLAN,
        set=draft.set,
        kinds=tuple(Choice(kind, "", kind in draft.kinds, kind, words.get(kind, "")) for kind in kinds),
        conditions=tuple(Choice(name, "", name in draft.conditions, name) for name in conditions),
        limit=draft.limit or str(DEFAULTS.limit),
        dev=draft.dev,
        seed=draft.seed or "0",
        most=evaluation.contract.MAX_ITEMS,
        most_dev=DEFAULTS.dev,
    )


def index(
    around: Shell, services: Services, jobs: Sequence[JobRow], sets: Sequence[QuestionSet], error: str = ""
) -> EvaluationsPage:
    names = {row.hash: row for row in sets}
    return EvaluationsPage(
        shell=around,
        teach=TEACH,
        form=form(FIRST, None),
        sets=tuple(Choice(row.name, address(PLAN, [("set", row.hash)]), False, about_set(row)) for row in sets),
        shapes=SHAPES,
        limits=limits(services),
        lines=tuple(line(job, names.get(job.params["set"])) for job in jobs),
        error=error,
    )


def line(job: JobRow, row: QuestionSet | None) -> EvaluationLine:
    gain, polarity = "", ""
    if job.state == "done" and job.result:
        total = evaluated.whole(evaluation.evaluation_from_json(job.result["evaluation"]))
        gain, polarity = f"{evaluated.interval(total.delta)} points", evaluated.sign(total.delta)
    elif job.total and job.state != "done":
        gain = f"{formats.percent(job.done / job.total)} done"
    settings = evaluation.settings_from_json(job.params["settings"])
    return EvaluationLine(
        href=f"{HOME}/{job.id}",
        what=_title(settings, row),
        about=f"{'built-in set' if job.params['set'] == BUILTIN else set_name(row)} · {_numbers(settings)}",
        state=job.state,
        gain=gain,
        polarity=polarity,
        when=formats.ago(job.queued, now()),
        when_iso=job.queued.isoformat(timespec="seconds"),
    )


def _title(settings: evaluation.Settings, row: QuestionSet | None) -> str:
    """The questions of people's files have no conditions."""
    kinds = ", ".join(settings.kinds) or "all kinds"
    return kinds if row is not None else f"{kinds} · {', '.join(settings.conditions) or 'all conditions'}"


def _numbers(settings: evaluation.Settings) -> str:
    return f"at most {settings.limit} test and {settings.dev} dev questions each, seed {settings.seed}"


def plan(around: Shell, draft: Draft, row: QuestionSet | None, planned: Plan | None, error: str = "") -> PlanPage:
    """`planned` is None where `error` says why."""
    bad = tuple((int(line), str(reason)) for line, reason in (row.bad if row is not None else ()))
    rest = row.left_out - len(bad) if row is not None else 0
    facts: tuple[tuple[str, str], ...] = ()
    if planned is not None:
        facts = (
            ("test questions", formats.thousands(planned.test)),
            ("dev questions", formats.thousands(planned.dev)),
            ("answers, at most", formats.thousands(planned.answers)),
        )
    return PlanPage(
        shell=around,
        name=set_name(row),
        about=about_set(row),
        form=form(draft, row),
        error=error,
        estimate=_estimate(planned) if planned is not None else "",
        facts=facts,
        start=HOME if planned is not None else "",
        hidden=tuple(pairs(draft)),
        bad=bad,
        entry="line" if row is None else questionsets.entry_word(row),
        more=f"… and {rest} more" if rest > 0 else "",
    )


def pairs(draft: Draft) -> list[tuple[str, str]]:
    """A draft as fields of a form."""
    return [
        ("set", draft.set),
        *(("kind", kind) for kind in draft.kinds),
        *(("condition", name) for name in draft.conditions),
        *((name, getattr(draft, name)) for name in ("limit", "dev", "seed") if getattr(draft, name)),
    ]


def _estimate(planned: Plan) -> str:
    if planned.seconds is None:
        return f"How long that takes is measured on the first answers, and then shown. {STOP}"
    time = evaluated.wait(planned.seconds)
    if planned.measured:
        return f"{time[0].upper()}{time[1:]} on this machine, at the pace of the newest evaluation."
    return (
        f"At most {time} on this machine, if each answer took as long as one of your questions; many are asked at "
        f"once, which is faster. {STOP}"
    )


def page(around: Shell, found: Known, model: str, at: dt.datetime | None = None) -> EvaluationPage:
    title = f"{set_name(found.row)}: {_title(found.settings, found.row)}"
    return EvaluationPage(around, title, _numbers(found.settings), view(found, model, at))


def view(found: Known, model: str, at: dt.datetime | None = None) -> EvaluationView:
    job, time = found.job, at or now()
    url = f"{HOME}/{job.id}"
    stopped = job.state in ("failed", "cancelled")
    result = None
    if job.state == "done" and job.result:
        result = evaluation.evaluation_from_json(job.result["evaluation"])
    end = evaluated.reach(result.kinds if result is not None else ())
    total = evaluated.whole(result) if result is not None else None
    return EvaluationView(
        live=job.live,
        state=job.state,
        events=f"{url}/events" if job.live else "",
        headline=headline(job, found.place) if result is None else evaluated.headline(result),
        polarity="" if total is None else evaluated.sign(total.delta),
        detail=_detail(found, time) if result is None else evaluated.gains(result),
        share=(job.done / job.total if job.total else 0.0) if job.live or stopped else None,
        cancel=f"{url}/cancel" if job.live and not job.stop_requested else "",
        again=f"{url}/again" if stopped else "",
        error=job.error if job.state == "failed" else "",
        bars=evaluated.bars(total) if total is not None else (),
        over=evaluated.over(total) if total is not None else "",
        scale=(f"−{100 * end:.0f}", f"+{100 * end:.0f}"),
        cards=evaluated.cards(result, end) if result is not None else (),
        columns=evaluated.COLUMNS,
        rows=evaluated.rows(result) if result is not None else (),
        totals=evaluated.totals(result) if result is not None else (),
        rules=evaluated.rules(result) if result is not None else (),
        warnings=result.warnings if result is not None else (),
        protocol=TEACH,
        facts=_facts(found, result),
        command=_commands(found, model),
        take=(Choice("CSV", f"{url}.csv", False), Choice("JSON", f"{url}.json", False)) if result is not None else (),
        bad=tuple((int(line), str(reason)) for line, reason in (found.row.bad if found.row is not None else ())),
        entry="line" if found.row is None else questionsets.entry_word(found.row),
        graded=found.row is None,
    )


def headline(job: JobRow, place: int, step: str = "batch") -> str:
    """What a long job that has no result is at, with its place in the queue."""
    if job.state == "queued":
        return f"Number {max(place, 1)} in the queue"
    if job.state == "running":
        return f"Stopping after this {step}" if job.stop_requested else "Asking the model"
    return "It failed" if job.state == "failed" else "It was stopped"


def _detail(found: Known, at: dt.datetime) -> str:
    job = found.job
    count = f"{job.done:,} of at most {job.total:,} answers" if job.total else ""
    if not job.live:
        kept = f"{found.parts} finished parts are kept" if found.parts else "nothing was finished"
        return f"{count}; {kept}." if count else f"{kept[0].upper()}{kept[1:]}."
    if job.state == "queued" or not job.done or job.started is None:
        return f"{found.parts} finished parts are kept." if found.parts else "Nothing is answered yet."
    left = (at - job.started).total_seconds() * (job.total - job.done) / job.done
    newest = f" · last: {part_in_words(found.newest)}" if found.newest else ""
    return f"{count} · {evaluated.wait(left)} left{newest}"


PARTS = {
    "first": "own answers", "dev": "tried on dev", "test": "test", "concept": "concept built",
    "single token": "control’s set",
}  # fmt: skip


def part_in_words(key: str) -> str:
    """A finished part's key for a person: “tried on dev, side, noise 70, kind 2 all all fuzzy”."""
    first, *rest = key.split("/")
    return ", ".join([PARTS.get(first, first), *(word.replace("_", " ") for word in rest)])


def _facts(found: Known, result: evaluation.Evaluation | None) -> tuple[tuple[str, str], ...]:
    settings = found.settings
    facts = [
        ("set", "built-in" if found.row is None else found.row.name),
        ("kinds of question", ", ".join(settings.kinds) or "all"),
        *((("conditions", ", ".join(settings.conditions) or "all"),) if found.row is None else ()),
        ("test questions", f"at most {settings.limit} of a kind{' in a condition' if found.row is None else ''}"),
        ("dev questions", f"at most {settings.dev} of each"),
        ("rules tried", ", ".join(settings.rules)),
        ("λ tried", ", ".join(f"{lam:g}" for lam in settings.lambdas)),
        ("positions, layers", f"{', '.join(settings.positions)}; {', '.join(settings.layers)}"),
        ("searched on", f"{settings.screen} dev questions each, the best again on all"),
        ("chosen if", f"its gain on dev is more than {_errors(settings.margin)}, else nothing is turned"),
        ("metric", settings.metric),
        ("seed", str(settings.seed)),
        *((f"SHA-256 of {name}", f"{sha[:16]}…") for name, sha in settings.source),
    ]
    if result is not None:
        words = {"name": "model", "revision": "its revision", "library": "concept library"}
        facts += [(words.get(name, name), value[:40]) for name, value in result.model.items()]
    return tuple(facts)


def _errors(margin: float) -> str:
    return "its standard error" if margin == 1 else f"{margin:g} standard errors"


def _commands(found: Known, model: str) -> str:
    """What reproduces an evaluation here; a set of files also from the files."""
    here = command(found.settings, found.job.params["set"], model)
    if found.row is None:
        return here
    names = [name for name, _ in found.row.files]
    files = [names[0], *(("--annotations", names[1]) if len(names) > 1 else ())]
    files += ["--pictures", "FOLDER_OR_ZIP"] if questionsets.pictured(found.row) else []
    words = shlex.split(here)
    place = words.index("--set") + 1
    there = shlex.join([*words[:place], *files, *words[place + 1 :]])
    return f"{here}\n\n# with another data folder, from the same files:\n{there}"


def command(settings: evaluation.Settings, set_hash: str, model: str) -> str:
    """What reproduces an evaluation on the command line."""
    words = ["sfumato", "evaluate", "--set", set_hash if set_hash == BUILTIN else set_hash[:16]]
    several = any("," in kind for kind in settings.kinds)
    for kinds in settings.kinds if several else filter(None, [",".join(settings.kinds)]):
        words += ["--kinds", kinds]
    if settings.conditions:
        words += ["--conditions", ",".join(settings.conditions)]
    words += ["--limit", str(settings.limit)]
    if settings.dev != min(settings.limit, DEFAULTS.dev):
        words += ["--dev", str(settings.dev)]
    words += ["--seed", str(settings.seed)]
    if model != BUILTIN:
        words += ["--model", model]
    return shlex.join(words)
