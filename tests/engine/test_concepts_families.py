"""A batch of probes is the same as each alone, whatever the family: padding, pictures' own arguments, offsets."""

import numpy as np
import pytest

from engine.concepts.building import probe_evidence
from engine.concepts.probes import Probe
from tests.engine import tiny
from tests.engine.families import kits, seeing

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # PaliGemma's processor

TEXTS = [Probe(None, "what is this?", answer, "red") for answer in ("red", "a red star", "a polar bear and a red star")]
SEEN = [
    Probe(tiny.picture(k, *size), question, answer, "red")
    for k, (size, question, answer) in enumerate(
        [
            ((70, 90), "what is this?", "red"),
            ((60, 120), "what is on the left?", "a red star"),
            ((70, 90), "why?", "red"),
        ]
    )
]


@pytest.mark.parametrize("name", [*kits.TEXT, *seeing.SEEING])
def test_a_batch_is_the_same_as_each_alone(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    kit = kits.TEXT[name]() if name in kits.TEXT else seeing.SEEING[name]()
    loaded = kits.make(tmp_path_factory.mktemp("batched"), kit)
    probes = [*SEEN, *TEXTS] if loaded.sees else TEXTS
    several, single = (probe_evidence(loaded, probes, batch=n) for n in (4, 1))
    assert [entry.reason for entry in several.refused] == [entry.reason for entry in single.refused]
    assert len(single.results) >= 3
    for one, other in zip(several.results, single.results, strict=True):
        a, b = one.shares.dense(), other.shares.dense()
        assert np.abs(a - b).max() <= 2e-4 * b.max()
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
