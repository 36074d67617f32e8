"""Which files pages may open: those in `saes` of the data folder, in `Settings.sae_dirs`, and on a hub if `sae_hub`.

Whoever can open the pages can type a path, so nothing else is looked at, not even whether it is there: a path is judged
before it is touched, links resolved.
"""

import re
from pathlib import Path

from app.settings import Settings
from engine.contract import RequestError

TRAINED = "saes"
"""The folder of the data folder where SAEs that were trained here lie, each in one of its own."""
LONGEST = 500
QUESTIONS = ("questions.csv", "questions.jsonl", "questions.json")
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)+", re.ASCII)


def trained(settings: Settings) -> Path:
    return settings.data_dir / TRAINED


def roots(settings: Settings) -> tuple[Path, ...]:
    return tuple(folder.expanduser().resolve() for folder in (trained(settings), *settings.sae_dirs))


def shown(settings: Settings, source: str) -> str:
    """Where an SAE lies, below the folder from which it was opened; anything else as it is."""
    path = Path(source)
    inside = next((root for root in roots(settings) if path.is_absolute() and path.is_relative_to(root)), None)
    return source if inside is None else str(path.relative_to(inside))


def in_words(settings: Settings) -> str:
    """From where something may be attached."""
    folders = ", ".join(str(root) for root in roots(settings))
    hub = " A hub’s OWNER/NAME or OWNER/NAME/FOLDER may be given too." if settings.sae_hub else ""
    return f"A folder or file in {folders}.{hub}"


def _inside(settings: Settings, typed: str) -> Path | None:
    """What was typed, an absolute path or one in one of the roots, if it is there and may be opened."""
    known = roots(settings)
    given = Path(typed)
    for candidate in [given] if given.is_absolute() else [root / given for root in known]:
        try:
            path = candidate.resolve()
            if any(path.is_relative_to(root) for root in known) and path.exists():
                return path
        except (OSError, RuntimeError, ValueError):  # a name too long, links in a circle, a zero byte
            continue
    return None


def sae(settings: Settings, typed: str) -> str:
    """What the engine may be given for what a person typed. Raises RequestError."""
    wanted = typed.strip()
    if not wanted:
        raise RequestError("Give a folder or file of an SAE first.")
    path = _inside(settings, wanted) if len(wanted) <= LONGEST else None
    if path is not None:
        return str(path)
    hub = _HUB.fullmatch(wanted) is not None and len(wanted) <= LONGEST and not Path(wanted).exists()
    if hub and settings.sae_hub:
        return wanted
    more = " Names on a hub are not fetched by this server: it was started without --sae-hub." if hub else ""
    raise RequestError(
        f"“{wanted[:80]}” is not among what pages may open: {_allowed(settings)}{more} Put the files there, or start "
        "the server with --sae-dir FOLDER."
    )


def pictures(settings: Settings, typed: str) -> str:
    """A folder of pictures with a file of questions. Raises RequestError."""
    wanted = typed.strip()
    path = _inside(settings, wanted) if wanted and len(wanted) <= LONGEST else None
    if path is None or not path.is_dir():
        raise RequestError(
            f"“{wanted[:80]}” is no folder that pages may open: {_allowed(settings)} Put the pictures there, or start "
            "the server with --sae-dir FOLDER."
        )
    if not any((path / name).is_file() for name in QUESTIONS):
        raise RequestError(f"{wanted[:80]} holds none of {', '.join(QUESTIONS)}. Put one beside the pictures.")
    return str(path)


def _allowed(settings: Settings) -> str:
    return f"what lies in {', '.join(str(root) for root in roots(settings))}."
