"""Both engines that keep `engine.contract`: the fake one and a real one over the built-in model."""

import numpy as np
import pytest

from engine.contract import Asked, Concept, Engine, Library, Pixels, Question
from engine.fake import FakeEngine


def local_engine() -> Engine:
    """The built-in model, its library or — where the installation has none yet — two concepts made here."""
    import torch

    from engine.concepts.library import matrix
    from engine.loading import load
    from engine.local import LocalEngine

    torch.set_num_threads(1)
    engine = LocalEngine(load())
    if not engine.library().concepts:
        shape = (engine.info().n_layers, engine.info().d_mlp)
        rng = np.random.default_rng(0)
        made = [np.where(rng.random(shape) > part, rng.random(shape), 0).astype(np.float32) for part in (0.8, 0.99)]
        pairs = zip(("traffic light", "red"), made, strict=True)
        engine._library = Library("made", tuple(Concept(name, "object", 4, values) for name, values in pairs))
        engine._matrix = matrix(engine._library, "cpu")
    return engine


@pytest.fixture(scope="session", params=["fake", "local"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return FakeEngine() if request.param == "fake" else local_engine()


def blocks() -> Pixels:
    """Blocks of random colour (100, 140, 3)."""
    colours = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return colours.repeat(20, axis=0).repeat(20, axis=1)


@pytest.fixture(scope="session")
def question() -> Question:
    """A question that is answered in several tokens."""
    return Question(blocks(), "describe the picture.", 8)


@pytest.fixture(scope="session")
def asked(engine: Engine, question: Question) -> Asked:
    return engine.ask(question)


@pytest.fixture(scope="session")
def ids(asked: Asked) -> list[int]:
    """The answer's ids; at least two."""
    found = [token.id for token in asked.answer.tokens]
    assert len(found) >= 2
    return found
