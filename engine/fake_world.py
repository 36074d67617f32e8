"""What the FakeEngine knows: a dozen concepts, a small vocabulary, what may answer a question, and its prompts."""

import hashlib
from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np

from engine.contract import MAX_SET, Concept, Floats, Library, PromptToken, Question, UnknownName

N_LAYERS, D_MLP, ROWS, COLS = 4, 64, 9, 9
OBJECTS = ("traffic light", "polar bear", "penguin", "pizza", "bicycle", "lemon")
COLOURS = ("red", "green", "blue")
NUMBERS = ("two", "three")
KINDS = {"object": OBJECTS, "colour": COLOURS, "count": NUMBERS, "category": ("animal",)}
CONCEPTS = tuple(name for names in KINDS.values() for name in names)
FILLER = ("a", "the", "picture", "shows", "and", "something", "else", "on", "left", "right", "of", "it")
WORDS = tuple(dict.fromkeys(word for name in (*CONCEPTS, *FILLER) for word in name.split()))
VOCABULARY = ("<s>", "</s>", "USER:", "<image>", "ASSISTANT:", *(f" {word}" for word in WORDS))
MEMBERS = 24
"""Neurons in each concept, of N_LAYERS · D_MLP = 256."""


def noise(*key: object) -> np.random.Generator:
    """Random numbers that depend on the key alone."""
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def memberships_of(name: str) -> Floats:
    """Memberships (N_LAYERS, D_MLP) of MEMBERS neurons, from 1 down to 0.02."""
    memberships = np.zeros(N_LAYERS * D_MLP, np.float32)
    members = noise("concept", name).choice(memberships.size, MEMBERS, replace=False)
    memberships[members] = np.linspace(1, 0.02, MEMBERS, dtype=np.float32)
    return memberships.reshape(N_LAYERS, D_MLP)


def library() -> Library:
    """All concepts."""
    concepts = tuple(
        Concept(name, kind, 8, memberships_of(name), {"own accuracy": 0.25, "other accuracy": 0.96})
        for kind, names in KINDS.items()
        for name in names
    )
    digest = hashlib.sha256()
    for concept in concepts:
        digest.update(concept.name.encode() + concept.memberships.tobytes())
    return Library(digest.hexdigest()[:16], concepts, {"method": "drawn from a hash", "probes per concept": 8})


def candidates(text: str) -> tuple[str, ...]:
    """The concepts that may answer this question."""
    lowered = text.casefold()
    if "how many" in lowered:
        return NUMBERS
    return COLOURS if "colour" in lowered or "color" in lowered else OBJECTS


def tokens_of(text: str) -> tuple[int, ...]:
    """Ids of words of the vocabulary."""
    return tuple(VOCABULARY.index(f" {word}") for word in text.split())


def strongest(memberships: Floats, layers: tuple[int, int] | None = None) -> Floats:
    """Only the MAX_SET members of highest membership, ties by (layer, index); of those in `layers`, where given."""
    if layers is not None:
        inside = (np.arange(N_LAYERS) >= layers[0]) & (np.arange(N_LAYERS) <= layers[1])
        memberships = memberships * inside[:, None]
    order = np.argsort(-memberships.reshape(-1), kind="stable")[:MAX_SET]
    kept = np.zeros(memberships.size, np.float32)
    kept[order] = memberships.reshape(-1)[order]
    return kept.reshape(memberships.shape)


def steers(positions: str, modality: str, position: int, last_of_prompt: int) -> bool:
    if positions == "answer":
        return position >= last_of_prompt
    if positions == "question":
        return modality in ("question", "template")
    return positions == "all" or modality == positions


def unknown(what: str, name: str, known: Sequence[str] | dict[str, str] | dict[str, Concept]) -> UnknownName:
    near = get_close_matches(name, list(known), 3, 0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(sorted(known)[:12])}."
    return UnknownName(f"There is no {what} “{name}”. {hint}")


def key_of(question: Question) -> str:
    """What the answer depends on: the question's words and the pixels."""
    digest = hashlib.sha256(question.text.strip().encode())
    if question.picture is not None:
        digest.update(repr(question.picture.shape).encode() + question.picture.tobytes())
    return digest.hexdigest()


def prompt_of(question: Question) -> tuple[PromptToken, ...]:
    picture = [] if question.picture is None else [PromptToken("<image>", 3, "image", ROWS * COLS)]
    words = [PromptToken(f" {word}", 1000 + len(word), "question") for word in question.text.split()]
    return (PromptToken("<s>", 0, "template"), PromptToken("USER:", 2, "template"), *picture, *words,
            PromptToken("ASSISTANT:", 4, "template"))  # fmt: skip


def modalities_of(prompt: Sequence[PromptToken], n_answer: int) -> tuple[str, ...]:
    """The modality of each absolute position of prompt + answer."""
    return (*(token.modality for token in prompt for _ in range(token.count)), *("answer",) * n_answer)
