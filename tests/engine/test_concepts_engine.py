"""Both engines keep the promises of `ConceptEngine`; relations of the built-in world; the library's build."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from engine.builtin import probes as world_probes
from engine.concepts import build
from engine.concepts.evidence import Evidence
from engine.concepts.library import matrix
from engine.concepts.membership import prepare_one, says_it
from engine.concepts.probes import Probe, ProbeResult, Refused
from engine.concepts.results import Candidate, collaboration_runs
from engine.contract import Cancelled, Concept, Engine, Library, RequestError
from engine.fake import FakeEngine
from engine.loading import Loaded
from engine.local import LocalEngine
from tests.engine import tiny


@pytest.fixture(scope="module", params=["fake", "local"])
def either(request: pytest.FixtureRequest) -> Engine:
    """An engine of each make, a thread's own."""
    return FakeEngine() if request.param == "fake" else LocalEngine(request.getfixturevalue("resizing"))


PROBES = [
    Probe(tiny.picture(k), "what is this?", answer, "red", (0.0, 0.0, 40.0, 40.0))
    for k, answer in enumerate(("red", "a red star", "red", "a red star", "red", "red"))
]


def test_a_build_is_resumed_to_the_same_bits_and_tells_its_progress(either: Engine) -> None:
    info = either.info()
    probes = [*PROBES, *PROBES, Probe(None, "what is it?", "dog", "red")]
    whole = either.probe_evidence(probes)
    assert [entry.index for entry in whole.results] == list(range(12))
    assert [entry.index for entry in whole.refused] == [12]
    assert "does not contain 'red'" in whole.refused[0].reason
    assert whole.seconds_per_probe >= 0
    for entry in whole.results:
        assert entry.shares.shape == (info.n_layers, info.d_mlp)
        assert entry.shares.kept == pytest.approx(1, abs=1e-4)
        assert entry.logprob <= 0
    kept: dict[int, bytes] = {}
    told: list[tuple[int, int]] = []

    def keep(results: Sequence[ProbeResult], _refused: Sequence[Refused], seconds: float) -> None:
        assert seconds >= 0
        kept.update({entry.index: entry.shares.to_bytes() for entry in results})

    with pytest.raises(Cancelled):
        either.probe_evidence(probes, on_batch=keep, cancelled=lambda: bool(kept))
    assert 0 < len(kept) < 12
    either.probe_evidence(probes, set(kept), keep, lambda n, of: told.append((n, of)))
    assert [kept[entry.index] for entry in whole.results] == [entry.shares.to_bytes() for entry in whole.results]
    assert told[-1] == (13, 13)
    assert either.probe_evidence(probes, range(13)).results == ()


def test_collaboration_and_validation_have_the_shapes_they_promise(either: Engine) -> None:
    info = either.info()
    evidence = Evidence((info.n_layers, info.d_mlp)).add(e.shares for e in either.probe_evidence(PROBES).results)
    mu = evidence.memberships("linear", 0.9)
    told: list[tuple[int, int]] = []
    found = either.collaboration(mu, PROBES[:2], 0.8, 4, lambda n, of: told.append((n, of)))
    assert found.top == found.members[:4]
    assert len(found.members) == int((mu >= 0.8).sum())
    assert told[-1] == (collaboration_runs(len(found.members), 4, 2),) * 2
    assert found.interactions.shape == found.errors.shape == (4, 4)
    assert np.array_equal(found.interactions, found.interactions.T)
    assert found.synergy.value == pytest.approx(found.joint.value - found.apart.value, abs=1e-4)
    with pytest.raises(RequestError, match=r"α-cut at 2 has 0 neurons"):
        either.collaboration(mu, PROBES, 2.0)
    with pytest.raises(Cancelled):
        either.collaboration(mu, PROBES, cancelled=lambda: True)
    baseline = either.baseline_evidence(PROBES[:2])
    assert baseline.shape == mu.shape
    assert baseline.sum() == pytest.approx(1, abs=1e-4)
    candidate = Candidate(
        "red", "colour", mu, evidence, None, baseline, np.roll(mu, 3, 1), PROBES[:3], PROBES[3:5], [baseline]
    )
    told.clear()
    result = either.validate_concept(candidate, 0.8, lambda n, of: told.append((n, of)))
    assert told[-1] == (5, 5)
    assert result.size == int((mu >= 0.8).sum())
    assert result.own.n == 3
    assert result.passes == all(c.holds for c in result.criteria if c.needed)
    assert {c.name for c in result.criteria if c.needed} >= {"leaves others' answers"}
    with pytest.raises(Cancelled):
        either.validate_concept(candidate, cancelled=lambda: True)


# Relations


@pytest.mark.parametrize("name", ["left of", "right of", "above", "below", "next to"])
def test_a_relations_probe_is_decided_by_the_relation_alone(name: str) -> None:
    assert world_probes.concept(name).kind == "relation"
    again = [world_probes.probes(name, 4, 0, "build") for _ in range(2)]
    assert [p.question for p in again[0]] == [p.question for p in again[1]]
    other = world_probes.probes(name, 4, 0, "test")
    assert not any(np.array_equal(a.picture, b.picture) for a in again[0] for b in other)
    for probe in again[0]:
        assert probe.against is not None
        assert probe.box is not None
        assert probe.against != probe.answer == probe.span_text
        if name == "next to":
            assert f"the {probe.against}?" in probe.question
        else:
            assert f" {name} the " in probe.question
            assert f"the {probe.against}?" not in probe.question
    if name != "next to":
        swapped = [(p.answer, p.against) for p in again[0]]
        assert [swapped[0][::-1], swapped[1][::-1]] == swapped[2:]


def test_the_box_lies_where_the_relation_says() -> None:
    """The contrast's thing would be on the other side: where the answer's box is left, it is the left one."""
    for name, axis, sign in (("left of", 0, -1), ("right of", 0, 1), ("above", 1, -1), ("below", 1, 1)):
        for probe in world_probes.probes(name, 5, 3, "dev"):
            assert probe.box is not None
            middle = (probe.box[axis] + probe.box[axis + 2]) / 2
            assert sign * (middle - 63) > -40


def test_the_built_in_model_answers_relations(builtin: Loaded) -> None:
    found = [says_it(builtin, prepare_one(builtin, p)) for p in build.world_concept_probes("left of", 4, "dev")]
    assert sum(found) >= 3


# The library's build


def test_evidence_is_kept_and_the_same_again(builtin: Loaded, tmp_path: Path) -> None:
    first = build.concept_evidence(builtin, tmp_path, "two", 2)
    assert first.n_probes == 2
    kept = list((tmp_path / builtin.revision).iterdir())
    assert [path.name for path in kept] == ["2-two.npz"]
    again = build.concept_evidence(builtin, tmp_path, "two", 2)
    assert again.mean().tobytes() == first.mean().tobytes()
    red = build.concept_evidence(builtin, tmp_path, "red", 1)
    made = build.concepts_from({"two": first.mean(), "red": red.mean()}, 2, "linear", 0.98)
    assert [(c.name, c.kind) for c in made] == [("two", "count"), ("red", "colour")]
    library = Library("r", tuple(made))
    assert all(isinstance(concept, Concept) for concept in library.concepts)
    assert matrix(library, "cpu").names == ("two", "red")
