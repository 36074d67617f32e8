"""What the FakeEngine knows: a dozen concepts, a small vocabulary, and which concepts may answer a question."""

import hashlib

import numpy as np

from engine.contract import Concept, Floats, Library

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
