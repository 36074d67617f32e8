"""The context of the page of presets (templates/presets/index.html)."""

import dataclasses

from app.contexts.pages import Shell


@dataclasses.dataclass(frozen=True, slots=True)
class PresetRow:
    """`words` = what it does. `url` = its address, to which actions are appended; `export` = URL of its JSON. `apply` =
    URL to POST to, '' without a run."""

    name: str
    words: str
    url: str
    export: str
    apply: str
    when: str
    when_iso: str


@dataclasses.dataclass(frozen=True, slots=True)
class PresetsPage:
    """templates/presets/index.html. `rows`: presets of the loaded model (or of the run's); `others`: of other models,
    by their revision. `run` = id of the run that a preset can be applied to, `run_href` and `question` of it, '' for
    none. `note` = what was done; `error` and `reasons` = why a file was refused; `limits` says what may be imported."""

    shell: Shell
    rows: tuple[PresetRow, ...]
    others: tuple[tuple[str, tuple[PresetRow, ...]], ...]
    run: str
    run_href: str
    question: str
    export: str
    note: str
    error: str
    reasons: tuple[str, ...]
    limits: str
