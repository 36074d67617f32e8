"""Files of SQuAD's shape, versions 1 and 2: questions about paragraphs of text, without pictures. Torch-free.

Each question is asked after its paragraph. Questions are numbered from 1 in the file's order; one that cannot be used
(version 2 has questions without an answer) is told with its number and the reason.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from engine.errors import RequestError

KIND = "reading"
MAX_CONTEXT = 20_000
"""Characters of a paragraph and its question."""


def is_squad(value: Any) -> bool:
    """Whether a parsed file has SQuAD's shape."""
    return isinstance(value, Mapping) and isinstance(value.get("data"), list)


def _list(of: Any, key: str, where: str) -> list[Any]:
    found = of.get(key) if isinstance(of, Mapping) else None
    if not isinstance(found, list):
        raise RequestError(f"{where} has no list {key!r}.")
    return found


def entries(value: Any) -> Iterator[tuple[int, Mapping[str, Any] | RequestError]]:
    """(number, question with its paragraph as `context`, or why there is none). Raises RequestError for a file of
    another shape."""
    if not is_squad(value):
        raise RequestError("A file of SQuAD's shape is an object with a list 'data' of articles with 'paragraphs'.")
    number = 0
    for place, article in enumerate(value["data"], 1):
        try:
            paragraphs = _list(article, "paragraphs", f"Article {place}")
        except RequestError as error:
            number += 1
            yield number, error
            continue
        for paragraph in paragraphs:
            try:
                asked = _list(paragraph, "qas", f"A paragraph of article {place}")
            except RequestError as error:
                number += 1
                yield number, error
                continue
            for question in asked:
                number += 1
                known = isinstance(question, Mapping)
                yield (
                    number,
                    {**question, "context": paragraph.get("context")} if known else RequestError("This is no object."),
                )


def raw(entry: Mapping[str, Any]) -> tuple[str, str, str, tuple[str, ...]]:
    """(kind, '' for no picture, paragraph and question, right answers). Raises RequestError."""
    context, question = (str(entry.get(key) or "").strip() for key in ("context", "question"))
    for name, text in (("context", context), ("question", question)):
        if not text:
            raise RequestError(f"{name!r} is missing.")
    text = f"{context}\n{question}"
    if len(text) > MAX_CONTEXT:
        raise RequestError(f"Paragraph and question have {len(text)} characters; at most {MAX_CONTEXT} are read.")
    given = entry.get("answers")
    said = [one.get("text") for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    answers = tuple(dict.fromkeys(one.strip() for one in said if isinstance(one, str) and one.strip()))
    if not answers:
        raise RequestError("It has no answer, so that no answer to it would be right.")
    return KIND, "", text, answers
