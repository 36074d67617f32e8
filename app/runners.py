"""What does each kind of longjobs.CONCEPT_KINDS: kind → function(Room, params, on_progress, cancelled)."""

from collections.abc import Callable
from typing import Any

from app import (
    collaborating,
    conceptjobs,
    evaluating,
    experimenting,
    latentbuilding,
    latentsurveys,
    saejobs,
    surveying,
    validating,
)
from app.conceptjobs import Done, Room
from engine.contract import IsCancelled, OnProgress

RUNNERS: dict[str, Callable[[Room, dict[str, Any], OnProgress, IsCancelled], Done]] = {
    **conceptjobs.RUNNERS,
    **surveying.RUNNERS,
    **latentbuilding.RUNNERS,
    **latentsurveys.RUNNERS,
    **saejobs.RUNNERS,
    "validate": validating.validate,
    **evaluating.RUNNERS,
    **experimenting.RUNNERS,
    "collaborate": collaborating.collaborate,
}
