"""Is an answer right? The metric that belongs to each set. Torch-free.

- `exact`: the same text in any case, blanks at the ends left out (built-in world, GQA, tables).
- `vqa`: VQAv2's. Of ten people's answers each is left out once; the answer scores min(1, matches / 3) against the other
  nine, and the mean of the ten is taken. Before, answers are normalised: small letters, no articles, no punctuation,
  number words as digits, contractions with their apostrophe.
- `yesno`: POPE's. The first "yes" or "no" among the answer's words counts; an answer without one is wrong.
"""

import re
from collections.abc import Sequence

ARTICLES = frozenset({"a", "an", "the"})
NUMBERS = {
    word: str(number)
    for number, word in enumerate(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    )
} | {"none": "0"}
_CONTRACTED = (
    "aren't can't couldn't didn't doesn't don't hadn't hasn't haven't isn't mightn't mustn't needn't shouldn't wasn't "
    "weren't won't wouldn't could've i've might've should've they've we've would've you've i'm let's that's there's "
    "what's where's who's he's she's it'd they'd you'd they'll you'll they're you're"
)
CONTRACTIONS = {word.replace("'", ""): word for word in _CONTRACTED.split()}
"""Written without apostrophe → with it; only those that are no other word."""


def plain(text: str) -> str:
    """Small letters, single blanks, none at the ends."""
    return " ".join(text.casefold().split())


def normalised(text: str) -> str:
    """An answer as VQAv2's metric compares it."""
    text = plain(text).replace("’", "'")
    text = re.sub(r"(?<=\d),(?=\d)", "", text)
    text = re.sub(r"\.(?!\d)", "", text)  # a decimal point stays
    text = re.sub(r"[^\w\s'.:$%]", " ", text)
    words = [NUMBERS.get(word, CONTRACTIONS.get(word, word)) for word in text.split() if word not in ARTICLES]
    return " ".join(words)


def vqa_accuracy(answer: str, people: Sequence[str]) -> float:
    """Mean over the leave-one-out subsets of people's answers of min(1, matches / 3); one answer alone is matched or
    not."""
    said, given = normalised(answer), [normalised(one) for one in people]
    if len(given) < 2:
        return float(said in given)
    matches = sum(said == one for one in given)
    return sum(min(1.0, (matches - (said == one)) / 3) for one in given) / len(given)


def yes_or_no(answer: str) -> str:
    """The first "yes" or "no" among the answer's words; '' without one."""
    return next((word for word in re.findall(r"\w+", answer.casefold()) if word in ("yes", "no")), "")


def score(metric: str, answer: str, right: Sequence[str]) -> float:
    """Score in [0, 1] of an answer by a metric of METRICS, against the right answer(s)."""
    if metric == "vqa":
        return vqa_accuracy(answer, right)
    if metric == "yesno":
        said = yes_or_no(answer)
        return float(bool(said) and said == yes_or_no(right[0]))
    return float(plain(answer) in [plain(one) for one in right])


def yes_no_figures(answers: Sequence[str], right: Sequence[str]) -> dict[str, float]:
    """Precision, recall and F1 of "yes", and its share of all answers; 0 where nothing could be counted."""
    said, true = [yes_or_no(one) == "yes" for one in answers], [yes_or_no(one) == "yes" for one in right]
    hits = sum(a and b for a, b in zip(said, true, strict=True))
    precision, recall = hits / max(sum(said), 1), hits / max(sum(true), 1)
    f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
    return {"precision": precision, "recall": recall, "f1": f1, "yes_share": sum(said) / max(len(said), 1)}
