"""A library with a person's own concepts. Torch-free."""

import hashlib
from collections.abc import Sequence

import numpy as np

from engine.contract import Concept, Library, RequestError


def joined(library: Library, own: Sequence[Concept], shape: tuple[int, int]) -> Library:
    """The library's own concepts, then a person's; the revision covers both. Raises RequestError for a name that is
    there already, or memberships of another shape than (n_layers, d_mlp)."""
    names = {concept.name for concept in library.concepts}
    digest = hashlib.sha256(library.revision.encode())
    for concept in own:
        if concept.name in names:
            raise RequestError(f"There is a concept “{concept.name}” already. Choose another name.")
        if concept.memberships.shape != shape:
            given = concept.memberships.shape
            raise RequestError(f"The memberships of “{concept.name}” are for {given} neurons, the model has {shape}.")
        names.add(concept.name)
        digest.update(concept.name.encode() + b"\0" + np.ascontiguousarray(concept.memberships, "<f4").tobytes())
    if not own:
        return library
    return Library(digest.hexdigest()[:16], (*library.concepts, *own), library.recipe)
