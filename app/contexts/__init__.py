"""One typed context for each template. What a template may use is declared here, and a test compares the two.

A context is built in Python from rows, rendered by `rendering.page()` or `rendering.fragment()`, and holds nothing but
finished values: strings, numbers in [0, 1] for lengths and opacities, URLs. Templates contain no arithmetic.

Naming: `XxxView` is a part that a fragment renders; `XxxPage` is a whole page. Every page has `shell: Shell`.
Polarity is always one of 'for' (raises the target) and 'against' (lowers it). `bar` ∈ [0, 1] is relative to the
largest magnitude in the same table.

How a template receives its context: a page gets the fields of its `XxxPage` as top-level variables (`shell`, `run`,
`status`, …). A run's fragment gets exactly one variable, named after its root id (`status` in runs/_status.html,
`answer` in runs/_answer.html, …), so that a page can include it as it is. error.html and _error.html both get the
fields of ErrorPage. Besides these there is one global function, `static("app.css")`: a static file's URL, versioned
by its content.
"""

from app.contexts.compare import (
    AddressField,
    CarriedGroup,
    CarriedRow,
    ChoosePage,
    ChosenView,
    ComparedView,
    ComparePage,
    LikeRow,
    PlaceView,
)
from app.contexts.links import Choice
from app.contexts.pages import (
    AskForm,
    AskPage,
    CheckLine,
    ConceptLine,
    ConceptPage,
    ConceptsPage,
    ErrorPage,
    MemberRow,
    ModelPage,
    RunLine,
    RunPage,
    RunsPage,
    SampleView,
    Shell,
)
from app.contexts.run import (
    AlternativeView,
    AnswerView,
    ConceptTurnRow,
    HeatCell,
    MembershipView,
    NeuronRow,
    NeuronsView,
    NeuronTurnRow,
    PairToken,
    PictureView,
    StatusView,
    SteeredView,
    SteerView,
    StripView,
    TokenChip,
    TokenView,
    WhereView,
)
from app.contexts.target import ApartView, PieceView, SideView, SuggestionView, TargetView, WayView
from app.contexts.trust import BandView, FigureView, MeasurementView, TrustView

__all__ = [
    "AddressField",
    "AlternativeView",
    "AnswerView",
    "ApartView",
    "AskForm",
    "AskPage",
    "BandView",
    "CarriedGroup",
    "CarriedRow",
    "CheckLine",
    "Choice",
    "ChoosePage",
    "ChosenView",
    "ComparePage",
    "ComparedView",
    "ConceptLine",
    "ConceptPage",
    "ConceptTurnRow",
    "ConceptsPage",
    "ErrorPage",
    "FigureView",
    "HeatCell",
    "LikeRow",
    "MeasurementView",
    "MemberRow",
    "MembershipView",
    "ModelPage",
    "NeuronRow",
    "NeuronTurnRow",
    "NeuronsView",
    "PairToken",
    "PictureView",
    "PieceView",
    "PlaceView",
    "RunLine",
    "RunPage",
    "RunsPage",
    "SampleView",
    "Shell",
    "SideView",
    "StatusView",
    "SteerView",
    "SteeredView",
    "StripView",
    "SuggestionView",
    "TargetView",
    "TokenChip",
    "TokenView",
    "TrustView",
    "WayView",
    "WhereView",
]
