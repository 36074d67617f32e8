"""Laws of fuzzy sets, and derived concepts as expressions (METHODS.md §2.4)."""

import contextlib
import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from engine.concepts import algebra, fuzzy
from engine.concepts.algebra import BadExpression, evaluate, names_in, parse
from engine.concepts.fuzzy import CURVES, FAMILIES, MAPS, Memberships
from engine.errors import RequestError, UnknownName

degree = st.floats(0, 1, width=32, allow_subnormal=False)
fuzzy_set = arrays(np.float32, (3, 8), elements=degree)
family = st.sampled_from(sorted(FAMILIES))
laws = settings(max_examples=60, deadline=None)


def close(a: Memberships, b: Memberships) -> bool:
    return bool(np.allclose(a, b, atol=1e-6))


@laws
@given(fuzzy_set, fuzzy_set, fuzzy_set, family)
def test_norms_of_every_family(a: Memberships, b: Memberships, c: Memberships, name: str) -> None:
    ops = FAMILIES[name]
    zero, one = np.zeros_like(a), np.ones_like(a)
    for combine, neutral, absorbing in ((ops.intersection, one, zero), (ops.union, zero, one)):
        assert np.array_equal(combine(a, b), combine(b, a))
        assert close(combine(a, combine(b, c)), combine(combine(a, b), c))
        assert close(combine(a, neutral), a)
        assert close(combine(a, absorbing), absorbing)
        both = combine(a, b)
        assert both.dtype == np.float32
        assert 0 <= both.min() <= both.max() <= 1
        more = np.maximum(b, c)
        assert (combine(a, b) <= combine(a, more) + 1e-6).all()
    assert (ops.intersection(a, b) <= np.minimum(a, b) + 1e-6).all()
    assert (ops.union(a, b) >= np.maximum(a, b) - 1e-6).all()


@laws
@given(fuzzy_set, fuzzy_set, family)
def test_de_morgan_and_involution(a: Memberships, b: Memberships, name: str) -> None:
    ops = FAMILIES[name]
    assert close(ops.complement(ops.complement(a)), a)
    assert close(ops.complement(ops.intersection(a, b)), ops.union(ops.complement(a), ops.complement(b)))
    assert close(ops.complement(ops.union(a, b)), ops.intersection(ops.complement(a), ops.complement(b)))


@laws
@given(fuzzy_set, fuzzy_set, fuzzy_set)
def test_only_min_and_max_are_idempotent_and_distribute(a: Memberships, b: Memberships, c: Memberships) -> None:
    ops = FAMILIES["min-max"]
    assert np.array_equal(ops.intersection(a, a), a)
    assert np.array_equal(ops.union(a, a), a)
    assert np.array_equal(ops.union(a, ops.intersection(a, b)), a)
    left, right = ops.intersection(a, ops.union(b, c)), ops.union(ops.intersection(a, b), ops.intersection(a, c))
    assert np.array_equal(left, right)


def test_what_each_family_makes_of_a_half() -> None:
    half = np.full((1, 2), 0.5, np.float32)
    assert [float(FAMILIES[n].intersection(half, half)[0, 0]) for n in ("min-max", "product", "lukasiewicz")] == [
        0.5, 0.25, 0.0,
    ]  # fmt: skip
    assert [float(FAMILIES[n].union(half, half)[0, 0]) for n in ("min-max", "product", "lukasiewicz")] == [
        0.5, 0.75, 1.0,
    ]  # fmt: skip
    contradiction = FAMILIES["lukasiewicz"].intersection(half, FAMILIES["lukasiewicz"].complement(half))
    assert not contradiction.any()


@laws
@given(fuzzy_set, degree, degree)
def test_cuts_support_core_height(mu: Memberships, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert not (fuzzy.alpha_cut(mu, high) & ~fuzzy.alpha_cut(mu, low)).any()
    assert not (fuzzy.strong_alpha_cut(mu, low) & ~fuzzy.alpha_cut(mu, low)).any()
    assert np.array_equal(fuzzy.strong_alpha_cut(mu, 0), fuzzy.support(mu))
    assert np.array_equal(fuzzy.alpha_cut(mu, 1), fuzzy.core(mu))
    assert fuzzy.core(mu).any() == (fuzzy.height(mu) == 1)
    assert fuzzy.support(mu).any() == (fuzzy.height(mu) > 0)
    assert fuzzy.core(mu).sum() <= fuzzy.cardinality(mu) + 1e-5 <= fuzzy.support(mu).sum() + 2e-5


@laws
@given(fuzzy_set, fuzzy_set)
def test_cardinality_adds_up_and_comparisons_are_as_defined(a: Memberships, b: Memberships) -> None:
    both, either = np.minimum(a, b), np.maximum(a, b)
    size = fuzzy.cardinality
    assert size(both) + size(either) == pytest.approx(size(a) + size(b), abs=1e-4)
    assert fuzzy.similarity(a, b) == pytest.approx(size(both) / size(either) if size(either) else 0, abs=1e-5)
    assert fuzzy.similarity(a, b) == pytest.approx(fuzzy.similarity(b, a), abs=1e-6)
    assert fuzzy.inclusion(both, a) == pytest.approx(1)
    assert fuzzy.inclusion(a, b) == pytest.approx(size(both) / size(a) if size(a) else 1, abs=1e-5)


@laws
@given(fuzzy_set)
def test_fuzziness_is_least_for_crisp_sets_and_largest_at_a_half(mu: Memberships) -> None:
    value = fuzzy.fuzziness(mu)
    assert -1e-9 <= value <= 1 + 1e-9
    assert fuzzy.fuzziness(1 - mu) == pytest.approx(value, abs=1e-5)
    assert fuzzy.fuzziness((mu > 0.5).astype(np.float32)) == 0
    sharper = np.where(mu > 0.5, (mu + 1) / 2, mu / 2).astype(np.float32)
    assert fuzzy.fuzziness(sharper) <= value + 1e-6
    assert fuzzy.fuzziness(np.full((2, 4), 0.5, np.float32)) == pytest.approx(1)
    assert fuzzy.fuzziness(np.array([0.25], np.float32)) == pytest.approx(0.811278, abs=1e-6)


def test_maps_are_their_curves_of_the_linear_one_and_rows_are_mapped_alone() -> None:
    rows = np.random.default_rng(0).exponential(size=(4, 200)).astype(np.float32)
    rows[3] = 0
    rows[3, :2] = 1
    linear = fuzzy.linear_rows(rows, 0.9)
    for name, curve in CURVES.items():
        for k in range(4):
            assert np.array_equal(MAPS[name](rows[k], 0.9), curve(linear)[k])
    assert (linear[0] == 1).sum() == pytest.approx(20, abs=1)
    assert linear[3].sum() == 2  # E_q is 0: crisp
    assert CURVES["s_function"](np.array([0, 0.25, 0.5, 0.75, 1], np.float32)).tolist() == [0, 0.125, 0.5, 0.875, 1]
    logistic = CURVES["logistic"](np.array([0, 0.5, 1], np.float32))
    assert logistic.tolist() == pytest.approx([0, 0.5, 1])


# Whole libraries


def test_a_librarys_matrices_are_the_pairwise_figures() -> None:
    rng = np.random.default_rng(1)
    concepts = (rng.uniform(size=(6, 40)) * (rng.uniform(size=(6, 40)) > 0.5)).astype(np.float32)
    concepts[5] = 0
    both = fuzzy.shared(concepts)
    similar, inside = fuzzy.similarity_matrix(both), fuzzy.inclusion_matrix(both)
    for i, j in itertools.product(range(6), repeat=2):
        assert similar[i, j] == pytest.approx(fuzzy.similarity(concepts[i], concepts[j]), abs=1e-6)
        assert inside[i, j] == pytest.approx(fuzzy.inclusion(concepts[i], concepts[j]), abs=1e-6)


def test_similar_concepts_become_neighbours() -> None:
    rng = np.random.default_rng(2)
    kinds = rng.permutation(np.repeat([0, 1, 2], 5))
    centres = rng.uniform(size=(3, 60))
    concepts = np.clip(centres[kinds] + rng.normal(0, 0.05, (15, 60)), 0, 1).astype(np.float32)
    order = fuzzy.clustered(fuzzy.similarity_matrix(fuzzy.shared(concepts)))
    assert sorted(order) == list(range(15))
    changes = sum(kinds[a] != kinds[b] for a, b in itertools.pairwise(order))
    assert changes == 2
    assert fuzzy.clustered(np.zeros((0, 0), np.float32)) == []
    assert fuzzy.clustered(np.ones((1, 1), np.float32)) == [0]


def test_five_hundred_concepts_are_compared_in_seconds() -> None:
    concepts = np.random.default_rng(3).uniform(size=(500, 5000)).astype(np.float32)
    began = time.perf_counter()
    order = fuzzy.clustered(fuzzy.similarity_matrix(fuzzy.shared(concepts)))
    assert len(order) == 500
    assert time.perf_counter() - began < 30


# Expressions

SETS = {
    name: np.random.default_rng(k).uniform(size=(2, 5)).astype(np.float32)
    for k, name in enumerate(["animal", "red", "traffic light", "salt and pepper", 'the "best"'])
}


def test_operators_bind_as_written_in_the_grammar() -> None:
    a, r, t = SETS["animal"], SETS["red"], SETS["traffic light"]
    assert np.array_equal(evaluate(parse("animal"), SETS), a)
    assert np.array_equal(evaluate(parse("animal AND red"), SETS), np.minimum(a, r))
    assert np.array_equal(
        evaluate(parse("animal or red and not traffic light"), SETS), np.maximum(a, np.minimum(r, 1 - t))
    )
    assert np.array_equal(evaluate(parse("(animal OR red) AND traffic light"), SETS), np.minimum(np.maximum(a, r), t))
    assert np.array_equal(evaluate(parse("NOT NOT animal"), SETS), 1 - (1 - a))
    assert np.allclose(evaluate(parse("animal AND red"), SETS, "product"), a * r)
    assert np.allclose(evaluate(parse("animal OR red"), SETS, "lukasiewicz"), np.minimum(a + r, 1))
    assert np.array_equal(
        evaluate(parse('"salt and pepper"  AND  traffic   light'), SETS), np.minimum(SETS["salt and pepper"], t)
    )
    assert np.array_equal(evaluate(parse(r'"the \"best\""'), SETS), SETS['the "best"'])
    assert names_in(parse("red AND (animal OR red)")) == ("red", "animal")


@pytest.mark.parametrize(
    ("text", "at", "words"),
    [
        ("", 0, "a concept, not or \\( should stand here, but the expression ends"),
        ("animal AND", 10, "the expression ends"),
        ("AND red", 0, "there is 'AND'"),
        ("animal AND OR red", 11, "there is 'OR'"),
        ("(animal OR red", 14, "opened and not closed"),
        ("animal) AND red", 6, "closed that was not opened"),
        ('animal AND "red', 11, "quote is opened"),
        ('animal "red"', 7, "AND or OR should stand before 'red'"),
        ("animal NOT red", 7, "AND or OR should stand before 'NOT'"),
        ('""', 0, "the name is empty"),
        ("NOT " * 50 + "red", 164, "More than 40"),
        ("x" * 1001, 1000, "at most 1000"),
    ],
)
def test_what_cannot_be_read_is_shown_where(text: str, at: int, words: str) -> None:
    with pytest.raises(BadExpression, match=f"(?i){words}") as caught:
        parse(text)
    assert caught.value.at == at
    assert f"(character {at + 1})" in str(caught.value)
    assert isinstance(caught.value, RequestError)


def test_unknown_names_and_families_are_said_with_near_misses() -> None:
    with pytest.raises(UnknownName, match=r"no concept 'aminal' \(character 9\)\. Did you mean animal\?"):
        evaluate(parse("red AND aminal"), SETS)
    with pytest.raises(UnknownName, match="choose min-max, product, lukasiewicz"):
        evaluate(parse("red"), SETS, "einstein")


names = st.sampled_from(sorted(SETS)).map(algebra.Name)
expressions = st.recursive(
    names,
    lambda part: st.one_of(
        part.map(algebra.Not), st.builds(algebra.Both, part, part), st.builds(algebra.Either, part, part)
    ),
    max_leaves=12,
)


@laws
@given(expressions, family)
def test_an_expression_written_out_reads_back_the_same(expression: algebra.Expression, name: str) -> None:
    again = parse(str(expression))
    assert str(again) == str(expression)
    assert np.array_equal(evaluate(again, SETS, name), evaluate(expression, SETS, name))


@laws
@given(st.text(alphabet='ab ()"\\ANDORNOT', max_size=40))
def test_whatever_is_typed_is_read_or_refused_in_words(text: str) -> None:
    with contextlib.suppress(BadExpression):
        assert names_in(parse(text))
