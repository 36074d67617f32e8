"""The form in the card of latents that swaps in another run's."""

from app.contexts import Choice, SwapRun, SwapView
from app.latentjobs import SIZES, VALUES
from app.tables import JobRow
from app.views.heat import picture_src
from app.views.load import Loaded

TEACH = (
    "This run’s most influential latents are set to 0, and those of the other run to what they are there, at every "
    "position: does its answer come with them?"
)
EMPTY = "No other run’s latents were ranked by this SAE in this variant yet. Rank those of another run on its page."


def view(loaded: Loaded, job: JobRow, panel: str) -> SwapView:
    """`job`: this run's ranking, which is done."""
    return SwapView(
        action=f"/runs/{loaded.run.id}/swap",
        hidden=(*loaded.state.pairs(), ("mine", job.id), ("panel", panel)),
        runs=tuple(
            SwapRun(one.job, f"/runs/{one.run}", one.question, one.answer, picture_src(one.picture_hash))
            for one in loaded.swappable
        ),
        sizes=tuple(Choice(str(k), "", k == SIZES[1], str(k)) for k in SIZES),
        values=tuple(
            Choice(words, "", selected=n == 0, value=value) for n, (value, words) in enumerate(VALUES.items())
        ),
        teach=TEACH,
        empty="" if loaded.swappable else EMPTY,
    )
