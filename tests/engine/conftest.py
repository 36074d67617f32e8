"""Models of the engine's tests: two tiny random ones and the built-in one, each loaded once a session."""

import pytest
import torch

from engine.contract import Question
from engine.loading import Loaded, load
from engine.local import LocalEngine
from tests.engine import tiny

torch.set_num_threads(1)
"""Small models: a second thread waits more than it helps, and far more where the cores are busy."""


@pytest.fixture(scope="session")
def cropping(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """CLIP tower, shortest edge + centre crop, a tokenizer that adds the BOS which the template leaves out."""
    return tiny.make(tmp_path_factory.mktemp("cropping"), tiny.Kind(adds_bos=True, template=tiny.NO_BOS))


@pytest.fixture(scope="session")
def resizing(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """SigLIP tower (no class token), all its features, resized to the square; a template that writes the BOS."""
    return tiny.make(tmp_path_factory.mktemp("resizing"), tiny.Kind(crop=False, tower="siglip", strategy="full"))


@pytest.fixture(scope="session")
def builtin() -> Loaded:
    return load()


@pytest.fixture(scope="session")
def builtin_engine(builtin: Loaded) -> LocalEngine:
    return LocalEngine(builtin)


@pytest.fixture(scope="session", params=["cropping", "resizing"])
def model(request: pytest.FixtureRequest) -> Loaded:
    """Each tiny model."""
    loaded: Loaded = request.getfixturevalue(request.param)
    return loaded


@pytest.fixture(scope="session")
def engine(model: Loaded) -> LocalEngine:
    return LocalEngine(model)


@pytest.fixture(scope="session", params=["cropping", "resizing", "builtin"])
def any_model(request: pytest.FixtureRequest) -> Loaded:
    """Each tiny model and the built-in one."""
    loaded: Loaded = request.getfixturevalue(request.param)
    return loaded


@pytest.fixture(scope="session")
def any_engine(any_model: Loaded) -> LocalEngine:
    return LocalEngine(any_model)


@pytest.fixture(scope="session")
def question() -> Question:
    return Question(tiny.picture(), "what is on the left?", max_new_tokens=5)
