"""Context of the page of concept algebra (templates/algebra/index.html)."""

import dataclasses

from app.contexts.concepts import LayerBar
from app.contexts.links import Choice
from app.contexts.pages import Shell


@dataclasses.dataclass(frozen=True, slots=True)
class MistakeView:
    """Where an expression cannot be read: what stands before the place, at it and after it, and what is wrong."""

    before: str
    at: str
    after: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class OperandView:
    """A concept of the expression. `text` = its cardinality."""

    name: str
    href: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class ResultMember:
    """A neuron of the result with its membership in each operand, (value, text) in their order."""

    rank: int
    neuron: str
    membership: float
    text: str
    operands: tuple[tuple[float, str], ...]
    href: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class VennPart:
    """A part of two operands together: `at` and `width` ∈ [0, 1] of the whole, `text` its Σμ."""

    label: str
    text: str
    at: float
    width: float
    kind: str


@dataclasses.dataclass(frozen=True, slots=True)
class ResultView:
    """What an expression gives. `spelled` = the expression as it was read. `words` says how large its α-cut is;
    `venn` only of two operands; `laws` = what does not hold in this family, with the numbers of this case."""

    spelled: str
    facts: tuple[tuple[str, str, str], ...]
    words: str
    layers: tuple[LayerBar, ...]
    operands: tuple[OperandView, ...]
    members: tuple[ResultMember, ...]
    venn: tuple[VennPart, ...]
    laws: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class AlgebraPage:
    """templates/algebra/index.html. `names` = all concepts, to complete what is typed; `suggestions` = expressions to
    start with. `family` and `alpha` = what is chosen. `save_name` and `save_error` = what was typed and refused."""

    shell: Shell
    expression: str
    family: str
    alpha: str
    families: tuple[Choice, ...]
    family_words: str
    names: tuple[str, ...]
    suggestions: tuple[Choice, ...]
    mistake: MistakeView | None
    result: ResultView | None
    save_name: str
    save_error: str
