"""Derived concepts as expressions over named ones: `animal AND NOT "traffic light"`. Torch-free (METHODS.md §2.4).

    expression = term { OR term } ;  term = factor { AND factor } ;  factor = NOT factor | ( expression ) | name

NOT binds tightest, then AND, then OR; operators may be written in any case. A name is quoted, or is the words between
two operators; a name that holds an operator's word, a bracket or a quote must be quoted (\\" inside). An error says at
which character it is and what would be right there.
"""

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from engine.concepts.fuzzy import FAMILIES, Family, Memberships
from engine.errors import RequestError, UnknownName

MAX_LENGTH, MAX_DEPTH = 1000, 40
OPERATORS = ("AND", "OR", "NOT")
_PIECES = re.compile(r'\s*(?:(?P<bracket>[()])|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>[^\s()"]+))')


class BadExpression(RequestError):
    """An expression that cannot be read; `at` = the character (from 0) where it goes wrong."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(f"{text} (character {at + 1})")
        self.at = at


class UnknownConcept(UnknownName):
    """An expression that names no concept; `at` = the character (from 0) where it does."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(text)
        self.at = at


@dataclasses.dataclass(frozen=True)
class Name:
    """One concept, by name, at character `at`."""

    name: str
    at: int = 0

    def __str__(self) -> str:
        words = self.name.split(" ")
        plain = all(re.fullmatch(r'[^\s()"]+', word) and word.upper() not in OPERATORS for word in words)
        return self.name if plain else '"' + self.name.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclasses.dataclass(frozen=True)
class Not:
    """The complement."""

    of: "Expression"

    def __str__(self) -> str:
        return f"NOT {_bracketed(self.of)}"


@dataclasses.dataclass(frozen=True)
class Both:
    """The intersection."""

    first: "Expression"
    second: "Expression"

    def __str__(self) -> str:
        return f"{_bracketed(self.first)} AND {_bracketed(self.second)}"


@dataclasses.dataclass(frozen=True)
class Either:
    """The union."""

    first: "Expression"
    second: "Expression"

    def __str__(self) -> str:
        return f"{_bracketed(self.first)} OR {_bracketed(self.second)}"


Expression = Name | Not | Both | Either


def _bracketed(part: Expression) -> str:
    return f"({part})" if isinstance(part, Both | Either) else str(part)


@dataclasses.dataclass(frozen=True)
class _Piece:
    kind: str  # a name, an operator, a bracket, or "end"
    text: str
    at: int


def _pieces(text: str) -> Iterator[_Piece]:
    """Brackets, operators and names with their places; neighbouring words are one name."""
    at, words, began = 0, list[str](), 0
    while text[at:].strip():
        found = _PIECES.match(text, at)
        if found is None:
            raise BadExpression('A quote is opened and not closed. Put a " after the name', text.index('"', at))
        word, start = found["word"], found.start() + len(found[0]) - len(found[0].lstrip())
        if word is not None and word.upper() not in OPERATORS:
            began = began if words else start
            words.append(word)
        else:
            if words:
                yield _Piece("name", " ".join(words), began)
                words = []
            if word is not None:
                yield _Piece(word.upper(), word, start)
            elif found["bracket"]:
                yield _Piece(found["bracket"], found["bracket"], start)
            else:
                yield _Piece("name", re.sub(r"\\(.)", r"\1", found["quoted"]), start)
        at = found.end()
    if words:
        yield _Piece("name", " ".join(words), began)
    yield _Piece("end", "", len(text))


class _Reader:
    """Recursive descent over the pieces."""

    def __init__(self, text: str) -> None:
        self.pieces = list(_pieces(text))
        self.next = 0

    def peek(self) -> _Piece:
        return self.pieces[self.next]

    def take(self) -> _Piece:
        piece = self.pieces[self.next]
        self.next += 1
        return piece

    def chain(self, operator: str, part: Callable[[int], Expression], depth: int) -> Expression:
        result = part(depth)
        while self.peek().kind == operator:
            self.take()
            more = part(depth)
            result = Either(result, more) if operator == "OR" else Both(result, more)
        return result

    def expression(self, depth: int) -> Expression:
        return self.chain("OR", self.term, depth)

    def term(self, depth: int) -> Expression:
        return self.chain("AND", self.factor, depth)

    def factor(self, depth: int) -> Expression:
        piece = self.take()
        if depth > MAX_DEPTH:
            raise BadExpression(
                f"More than {MAX_DEPTH} brackets or NOTs inside one another. Name a part first", piece.at
            )
        if piece.kind == "NOT":
            return Not(self.factor(depth + 1))
        if piece.kind == "(":
            inside = self.expression(depth + 1)
            if self.peek().kind != ")":
                raise BadExpression("A bracket is opened and not closed. Put a ) here", self.peek().at)
            self.take()
            return inside
        if piece.kind == "name" and piece.text.strip():
            return Name(piece.text, piece.at)
        found = {"end": "the expression ends", "name": "the name is empty"}.get(piece.kind, f"there is {piece.text!r}")
        raise BadExpression(f"A concept, NOT or ( should stand here, but {found}", piece.at)


def parse(text: str) -> Expression:
    """Read an expression. Raises BadExpression with the place."""
    if len(text) > MAX_LENGTH:
        raise BadExpression(
            f"The expression has {len(text)} characters; at most {MAX_LENGTH} can be read. Name a part of it first",
            MAX_LENGTH,
        )
    reader = _Reader(text)
    result = reader.expression(0)
    rest = reader.peek()
    if rest.kind == ")":
        raise BadExpression("A bracket is closed that was not opened. Leave this ) out", rest.at)
    if rest.kind != "end":
        raise BadExpression(f"AND or OR should stand before {rest.text!r}", rest.at)
    return result


def names_in(expression: Expression) -> tuple[str, ...]:
    """The concepts that an expression mentions, each once, in order."""
    return tuple(dict.fromkeys(name.name for name in _names(expression)))


def _names(expression: Expression) -> Iterator[Name]:
    if isinstance(expression, Name):
        yield expression
    elif isinstance(expression, Not):
        yield from _names(expression.of)
    else:
        yield from _names(expression.first)
        yield from _names(expression.second)


def family_of(name: str) -> Family:
    """The family of this name. Raises UnknownName."""
    if name not in FAMILIES:
        raise UnknownName(f"There is no family {name!r} of fuzzy operations; choose {', '.join(FAMILIES)}.")
    return FAMILIES[name]


def check_names(expression: Expression, known: Iterable[str]) -> None:
    """Raise UnknownConcept for the first name that is not `known`, with its place and near misses."""
    names = list(known)
    for name in _names(expression):
        if name.name not in names:
            close = difflib.get_close_matches(name.name, names, n=3, cutoff=0.5)
            hint = f"Did you mean {', '.join(close)}?" if close else "See the list of concepts."
            raise UnknownConcept(f"There is no concept {name.name!r} (character {name.at + 1}). {hint}", name.at)


def evaluate(expression: Expression, concepts: Mapping[str, Memberships], family: str = "min-max") -> Memberships:
    """Memberships of a derived concept from those of the named ones, all of one shape. Raises UnknownName."""
    check_names(expression, concepts)
    operations = family_of(family)

    def value(part: Expression) -> Memberships:
        if isinstance(part, Name):
            return concepts[part.name]
        if isinstance(part, Not):
            return operations.complement(value(part.of))
        combine = operations.intersection if isinstance(part, Both) else operations.union
        return combine(value(part.first), value(part.second))

    return value(expression)
