"""Evidence that grows: packing, increments, memberships, bootstrap intervals (METHODS.md §2.1–2.3)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.concepts import evidence as stored
from engine.concepts.evidence import Evidence, Shares, contrast_of, pack
from engine.concepts.fuzzy import MAPS, Memberships, evidence_share
from engine.errors import RequestError, UnknownName

SHAPE = (3, 48)


def shares(seed: int, n: int, shape: tuple[int, int] = SHAPE) -> list[Shares]:
    rng = np.random.default_rng(seed)
    carriers = rng.normal(0, 1, shape)
    return [pack(evidence_share(np.float32(carriers + rng.normal(0, 0.5, shape)))) for _ in range(n)]


def same(one: Memberships, other: Memberships) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.lists(st.integers(0, 12), max_size=4))
def test_grown_in_steps_is_bit_for_bit_built_at_once(seed: int, cuts: list[int]) -> None:
    rows = shares(seed, 12)
    at_once = Evidence(SHAPE).add(rows)
    grown, start = Evidence(SHAPE), 0
    for cut in [*sorted(cuts), 12]:
        grown = grown.add(Shares.from_bytes(row.to_bytes()) for row in rows[start:cut])
        start = cut
    contrast = contrast_of([Evidence(SHAPE).add(shares(seed + 1, 2)).mean()])
    assert same(grown.mean(), at_once.mean())
    for name in MAPS:
        for mode in ("raw", "specific"):
            assert same(grown.memberships(name, 0.9, mode, contrast), at_once.memberships(name, 0.9, mode, contrast))
    one, other = grown.intervals("linear", 0.9, draws=20), at_once.intervals("linear", 0.9, draws=20)
    assert same(one.low, other.low)
    assert same(one.high, other.high)


def test_shares_come_back_as_they_were() -> None:
    for shape in (SHAPE, (40, 2000)):
        (row,) = shares(5, 1, shape)
        again = Shares.from_bytes(row.to_bytes())
        assert again.shape == row.shape
        assert np.array_equal(again.index, row.index)
        assert same(again.value, row.value)
        assert row.kept == pytest.approx(1, abs=1e-4) if shape == SHAPE else row.kept < 1
    dense = evidence_share(np.random.default_rng(1).normal(size=SHAPE).astype(np.float32))
    assert same(pack(dense).dense(), dense)
    nothing = pack(np.zeros(SHAPE, np.float32))
    assert nothing.kept == 0
    assert not Shares.from_bytes(nothing.to_bytes()).dense().any()
    for damaged in (b"", b"abc", nothing.to_bytes()[:-1] + b"xx", shares(0, 1)[0].to_bytes()[:-3]):
        with pytest.raises(RequestError, match="damaged"):
            Shares.from_bytes(damaged)


def test_of_many_neurons_the_largest_shares_are_kept() -> None:
    scores = np.random.default_rng(2).exponential(size=(4, 8192)).astype(np.float32)
    row = pack(evidence_share(scores))
    assert len(row.index) == stored.KEPT
    dense = row.dense()
    assert dense[dense > 0].min() >= evidence_share(scores)[dense == 0].max()
    assert 0.5 < row.kept < 1
    tied = pack(np.full((4, 8192), 1 / 32768, np.float32))
    assert np.array_equal(tied.index, np.arange(stored.KEPT))


def test_a_concept_of_fifty_probes_stays_small() -> None:
    full = Evidence((6, 768)).add(shares(3, 50, (6, 768)))
    assert full.n_bytes < 1_000_000
    assert len(stored.to_bytes(full)) < 1_000_000


def test_a_file_of_evidence_comes_back(tmp_path: object) -> None:
    for n in (0, 1, 4):
        own = Evidence(SHAPE).add(shares(4, n))
        again = stored.from_bytes(stored.to_bytes(own))
        assert (again.shape, again.n_probes) == (own.shape, n)
        assert same(again.mean(), own.mean())
    with pytest.raises(RequestError, match="no stored evidence"):
        stored.from_bytes(b"PK\x03\x04 nothing")


def test_evidence_of_another_model_is_not_mixed_in() -> None:
    with pytest.raises(RequestError, match=r"over 3 × 48 neurons, the new probe's over 2 × 72"):
        Evidence(SHAPE).add(shares(0, 1, (2, 72)))


def test_the_mean_is_the_mean_and_the_contrast_is_taken_away() -> None:
    rows = shares(6, 5)
    own = Evidence(SHAPE).add(rows)
    assert np.allclose(own.mean(), np.mean([row.dense() for row in rows], axis=0), atol=1e-7)
    assert not Evidence(SHAPE).mean().any()
    contrast = own.mean() * np.float32(0.5)
    specific = own.memberships("linear", 0.9, "specific", contrast)
    assert np.allclose(specific, MAPS["linear"](own.mean() - contrast, 0.9), atol=1e-6)
    assert not own.memberships("linear", 0.9, "specific", own.mean()).any()
    assert same(own.memberships("linear", 0.9, "specific"), own.memberships("linear", 0.9))
    assert contrast_of([]) is None
    with pytest.raises(UnknownName, match="choose linear, s_function, logistic"):
        own.memberships("cubic", 0.9)
    with pytest.raises(RequestError, match="between 0 and 1"):
        own.memberships("linear", 1.0)


def test_intervals_are_those_of_probes_drawn_again_one_by_one() -> None:
    rows = shares(7, 8)
    own = Evidence(SHAPE).add(rows)
    contrast = Evidence(SHAPE).add(shares(8, 3)).mean()
    found = own.intervals("s_function", 0.9, "specific", contrast, draws=60, seed=4)
    counts = np.random.default_rng(4).multinomial(8, np.full(8, 1 / 8), size=60)
    drawn = []
    for times in counts:
        again = Evidence(SHAPE).add(row for row, n in zip(rows, times, strict=True) for _ in range(n))
        drawn.append(again.memberships("s_function", 0.9, "specific", contrast))
    low, high = np.quantile(np.stack(drawn), (0.025, 0.975), axis=0)
    assert np.allclose(found.low.reshape(SHAPE), low, atol=1e-4)
    assert np.allclose(found.high.reshape(SHAPE), high, atol=1e-4)
    some = own.intervals("s_function", 0.9, "specific", contrast, neurons=[5, 100], draws=60, seed=4)
    assert same(some.low, found.low[[5, 100]])
    assert not same(own.intervals("linear", 0.9, seed=1).high, own.intervals("linear", 0.9, seed=2).high)


def test_intervals_narrow_with_probes_and_hold_the_membership() -> None:
    widths = []
    for n in (4, 64):
        own = Evidence(SHAPE).add(shares(9, n))
        found = own.intervals("linear", 0.9)
        value = own.memberships("linear", 0.9).ravel()
        inside = (found.low - 1e-6 <= value) & (value <= found.high + 1e-6)
        assert inside.mean() > 0.95
        widths.append(float((found.high - found.low).mean()))
    assert widths[1] < widths[0] / 2
    single = Evidence(SHAPE).add(shares(9, 1)).intervals("linear", 0.9, draws=10)
    assert np.allclose(single.low, single.high)
