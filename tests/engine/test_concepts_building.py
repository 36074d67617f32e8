"""Evidence of many probes: batches against single runs, resuming, refusing (METHODS.md §2.1–2.2)."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine.concepts import building
from engine.concepts.evidence import Evidence
from engine.concepts.fuzzy import evidence_share
from engine.concepts.membership import encode_answer, leading_space, prepare, prepare_one, probe_scores, says_it
from engine.concepts.probes import ConceptPlan, Probe, ProbeResult, Refused, check_plan, find_form, said_in
from engine.contract import Cancelled, PromptToken, Question, RequestError, Target
from engine.hooks import count_hooks
from engine.loading import Loaded
from engine.prompts import build_prompt
from tests.engine import tiny

ANSWERS = ("red", "a red star", "a polar bear and a red star", "red: a colour")


def some(n: int = 9) -> list[Probe]:
    """Pictures and texts, short and long, one with a contrast."""
    probes = []
    for k in range(n):
        picture = None if k % 4 == 3 else tiny.picture(k)
        question = "what is this?" if k % 2 else "what is the thing on the left of the picture?"
        probes.append(Probe(picture, question, ANSWERS[k % 4], "red", against="blue" if k == 5 else None))
    return probes


def shares(loaded: Loaded, probe: Probe) -> np.ndarray:
    return evidence_share(probe_scores(loaded, prepare_one(loaded, probe)))


def test_a_batch_of_probes_is_the_same_as_each_alone(model: Loaded) -> None:
    probes = some()
    found = building.probe_evidence(model, probes, batch=4)
    assert [entry.index for entry in found.results] == list(range(9))
    assert not found.refused
    for entry, probe in zip(found.results, probes, strict=True):
        alone = shares(model, probe)
        assert np.abs(entry.shares.dense() - alone).max() <= 1e-4 * alone.max()
        ready = prepare_one(model, probe)
        own = tiny.span_logprob(
            tiny.logits(model.model, ready.prompt, ready.answer_ids),
            ready.prompt,
            ready.answer_ids,
            ready.target.start,
            ready.target.end or 0,
        )
        assert entry.logprob == pytest.approx(float(own), abs=1e-3)
        assert entry.right == says_it(model, ready)
    assert count_hooks(model.model) == 0


def test_batches_of_every_size_agree_on_the_built_in_model(builtin: Loaded) -> None:
    from engine.concepts.build import world_concept_probes

    probes = world_concept_probes("traffic light", 3, "build") + world_concept_probes("two", 2, "build")
    single, several = (building.probe_evidence(builtin, probes, batch=n).results for n in (1, 5))
    for one, other in zip(single, several, strict=True):
        a, b = one.shares.dense(), other.shares.dense()
        assert np.abs(a - b).max() <= 1e-4 * a.max()
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert one.right == other.right
    assert sum(entry.right for entry in single) >= 4


def test_a_contrasts_scores_are_the_difference_of_its_sides(model: Loaded) -> None:
    probe = Probe(tiny.picture(1), "what is this?", "a red star", "red", against="blue")
    ready = prepare_one(model, probe)
    assert ready.other is not None
    tokenizer = model.processor.tokenizer
    assert tokenizer.decode(ready.other.ids) == " a blue star"
    assert tokenizer.decode(ready.other.explained) == " blue"
    plain = [Probe(probe.picture, probe.question, f"a {word} star", word) for word in ("red", "blue")]
    red, blue = (probe_scores(model, prepare_one(model, one)) for one in plain)
    assert np.allclose(probe_scores(model, ready), red - blue, atol=1e-4)


class Stop(Exception):
    """The process dies."""


def test_a_build_that_was_stopped_goes_on_to_the_same_bits(model: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "WINDOW", 5)
    probes = some(12)
    whole = building.probe_evidence(model, probes, batch=2)
    kept: dict[int, bytes] = {}
    calls = itertools.count()

    def keep(results: Sequence[ProbeResult], _refused: Sequence[Refused], _seconds: float) -> None:
        kept.update({entry.index: entry.shares.to_bytes() for entry in results})
        if next(calls) == 2:
            raise Stop

    with pytest.raises(Stop):
        building.probe_evidence(model, probes, on_batch=keep, batch=2)
    assert 0 < len(kept) < 12
    del kept[min(kept)]  # a batch of which only a part was stored
    told: list[tuple[int, int]] = []
    rest = building.probe_evidence(
        model, probes, done=set(kept), on_progress=lambda n, all_: told.append((n, all_)), batch=2
    )
    assert {entry.index for entry in rest.results} == set(range(12)) - set(kept)
    kept.update({entry.index: entry.shares.to_bytes() for entry in rest.results})
    assert kept == {entry.index: entry.shares.to_bytes() for entry in whole.results}
    assert told[-1] == (12, 12)
    assert [n for n, _ in told] == sorted(n for n, _ in told)
    grown = Evidence((3, 48)).add(entry.shares for entry in whole.results)
    assert grown.n_probes == 12
    assert grown.mean().sum() == pytest.approx(1, abs=1e-4)


def test_it_stops_between_batches_and_leaves_nothing_behind(model: Loaded) -> None:
    batches: list[int] = []
    with pytest.raises(Cancelled):
        building.probe_evidence(
            model,
            some(8),
            on_batch=lambda found, *_: batches.append(len(found)),
            cancelled=lambda: len(batches) > 0,
            batch=2,
        )
    assert len(batches) == 1
    assert count_hooks(model.model) == 0


def test_a_probe_that_cannot_be_put_is_refused_and_the_others_go_on(model: Loaded) -> None:
    probes = [
        some()[0],
        Probe(tiny.picture(0, 4, 4), "what is this?", "red", "red"),
        Probe(None, "what is this?", "red", "dog"),
        Probe(None, "what is <image>?", "red", "red"),
        Probe(None, "why? " * 300, "red", "red"),
        Probe(None, "what is this?", "red </s>", "red"),
    ]
    refusals: list[Refused] = []
    told: list[tuple[int, int]] = []
    found = building.probe_evidence(
        model, probes, on_batch=lambda _, bad, __: refusals.extend(bad), on_progress=lambda n, of: told.append((n, of))
    )
    assert [entry.index for entry in found.results] == [0]
    assert [entry.index for entry in found.refused] == [1, 2, 3, 4, 5] == [entry.index for entry in refusals]
    words = [entry.reason for entry in found.refused]
    for reason, word in zip(words, ("pixels", "contain 'dog'", "reserves", "positions", "reserves"), strict=True):
        assert word in reason
    assert told[-1] == (6, 6)
    assert building.probe_evidence(model, probes[1:2]).results == ()
    assert building.probe_evidence(model, []).results == ()


def test_the_space_before_an_answer_follows_the_prompts_end(cropping: Loaded, builtin: Loaded) -> None:
    for loaded in (cropping, builtin):
        prompt = build_prompt(loaded, Question(None, "what is red?"))
        assert leading_space(prompt) == " "
        for last, lead in (("<|assistant|>", ""), ("assistant\n", ""), ("ASSISTANT:", " "), ("[/INST]", "")):
            ended = dataclasses.replace(prompt, tokens=(PromptToken(last, 0, "template"),))
            assert leading_space(ended) == lead
    ids, target = encode_answer(builtin, "red", "red", "")
    assert builtin.processor.tokenizer.decode(ids) == "red"
    assert target == Target(0, len(ids))


def test_the_part_that_says_the_concept_is_a_whole_word_in_any_case() -> None:
    assert said_in("A Traffic Light is red", ("signal", "traffic light")) == "Traffic Light"
    assert find_form("cat and category cat", "cat") == (17, 20)
    assert find_form("category", "cat") is None
    assert find_form("anything", "  ") is None
    with pytest.raises(RequestError, match=r"'a cat' contains none of the concept's surface forms \('dog', 'hound'\)"):
        said_in("a cat", ("dog", "hound"))


def test_a_plan_is_checked() -> None:
    check_plan(ConceptPlan("traffic light", surface_forms=("traffic light", "signal")))
    assert ConceptPlan("dog").forms == ("dog",)
    for plan in (
        ConceptPlan(" "),
        ConceptPlan("x" * 81),
        ConceptPlan("x", surface_forms=("",)),
        ConceptPlan("x", surface_forms=("a",) * 51),
    ):
        with pytest.raises(RequestError):
            check_plan(plan)


def test_prepared_probes_share_a_pictures_features(model: Loaded) -> None:
    probe = some()[0]
    kept: dict = {}
    one, other = prepare_one(model, probe, kept), prepare_one(model, probe, kept)
    assert one.features is other.features
    assert len(kept) == 1
    assert torch.equal(prepare(model, [probe])[0].features.features, one.features.features)  # type: ignore[union-attr]
