"""What cannot be shown truly is refused, with the first difference named; and the self-check bites."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from engine.anatomy import find_anatomy
from engine.contract import ModelRefused, Question, RequestError
from engine.features import picture_features
from engine.layout import tile_shape
from engine.loading import Loaded, load
from engine.local import LocalEngine
from engine.planting import planted_patches
from engine.prompts import build_prompt
from engine.selfcheck import checks_of
from tests.engine import tiny
from tests.engine.families import kits, seeing


def test_residual_multipliers_are_refused_by_the_bookkeeping(tmp_path: Path) -> None:
    loaded = kits.make(tmp_path, kits.granite())
    with pytest.raises(ModelRefused, match="“contributions add up to the logit” does not hold"):
        LocalEngine(loaded)


def test_experts_are_refused_by_the_anatomy(tmp_path: Path) -> None:
    config = kits.text_config(hf.MixtralConfig, 1536, num_local_experts=2, num_experts_per_tok=1)
    with pytest.raises(ModelRefused, match="One stack of decoder blocks with an MLP each is needed; found: none"):
        kits.make(tmp_path, kits.text_kit(hf.MixtralForCausalLM, config))


def test_an_encoder_with_a_decoder_is_refused() -> None:
    model = hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1))
    with pytest.raises(ModelRefused, match="an encoder with a decoder"):
        find_anatomy(model)


pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # PaliGemma's processor


def failing(loaded: Loaded) -> list[str]:
    return [check.name for check in checks_of(loaded) if not check.holds]


def test_answers_read_as_part_of_a_two_way_prefix_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PaliGemma: one pass over prompt and answer must keep the answer causal, as generation does."""
    loaded = kits.make(tmp_path, seeing.paligemma())
    assert failing(loaded) == []
    monkeypatch.setattr(
        "engine.features._lengthened",
        lambda _name, value, ids, _token: torch.nn.functional.pad(value, (0, ids.shape[1] - value.shape[1])),
    )
    assert failing(loaded) == ["generation parity"]


def test_an_overlooked_post_norm_or_soft_cap_is_noticed(tmp_path: Path) -> None:
    loaded = kits.make(tmp_path, kits.gemma2())
    assert failing(loaded) == []
    assert all(norm is not None for norm in loaded.anatomy.mlp_norms)
    for changes in ({"mlp_norms": (None,) * 3}, {"soft_cap": None}):
        blind = dataclasses.replace(loaded, anatomy=dataclasses.replace(loaded.anatomy, **changes))
        assert "contributions add up to the logit" in failing(blind)


@pytest.mark.parametrize("family", ["qwen2_vl", "idefics3", "llava_next"])
def test_a_wrong_order_of_positions_is_noticed(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same features in reverse: what a wrong patch order, merge or packing would do."""
    loaded = kits.make(tmp_path, seeing.SEEING[family]())
    assert planted_patches(loaded).holds
    own = loaded.model.get_image_features

    def turned(*given: Any, **options: Any) -> Any:
        output = own(*given, **options)
        features = output.pooler_output
        flipped = [part.flip(0) for part in features] if isinstance(features, list | tuple) else features.flip(0, 1)
        output.pooler_output = flipped
        return output

    turned.__wrapped__ = own  # type: ignore[attr-defined]
    monkeypatch.setattr(loaded.model, "get_image_features", turned)
    assert not planted_patches(loaded).holds


@pytest.mark.parametrize("family", ["llava_next", "llava_onevision", "idefics3", "internvl"])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (90, 300), (333, 77)])
def test_every_positions_score_lands_on_the_grid_once(family: str, height: int, width: int, tmp_path: Path) -> None:
    loaded = kits.make(tmp_path, seeing.SEEING[family]())
    prompt = build_prompt(loaded, Question(tiny.picture(height=height, width=width), "what?"))
    grid = prompt.grid
    assert grid is not None
    if prompt.spread is None:
        assert grid.rows * grid.cols == len(prompt.image_positions)
        return
    assert prompt.spread.shape == (grid.rows * grid.cols, len(prompt.image_positions))
    assert bool((prompt.spread >= 0).all())
    assert torch.allclose(prompt.spread.sum(0), torch.ones(prompt.spread.shape[1]), atol=1e-5)
    assert bool((prompt.spread.sum(1) > 0).all())
    left, top, right, bottom = grid.box
    cell_width, cell_height = (right - left) / grid.cols, (bottom - top) / grid.rows
    assert (left, right) == pytest.approx((0, width), abs=cell_width)
    assert (top, bottom) == pytest.approx((0, height), abs=cell_height)


def test_query_tokens_are_shown_where_they_looked(tmp_path: Path) -> None:
    """Each query's shares sum to one, and depend on the picture; InstructBLIP's on the question too."""
    loaded = kits.make(tmp_path, seeing.instructblip())
    seen = {}
    for name, seed, text in (("first", 0, "what?"), ("picture", 1, "what?"), ("text", 0, "where is the cat?")):
        prompt = build_prompt(loaded, Question(tiny.picture(seed), text))
        spread = picture_features(loaded, prompt.pixels).spread
        assert spread is not None
        assert spread.shape == (16, 5)
        assert torch.allclose(spread.sum(0), torch.ones(5), atol=1e-5)
        seen[name] = (spread, prompt.key)
    assert len({key for _, key in seen.values()}) == 3
    assert not torch.allclose(seen["first"][0], seen["picture"][0])
    assert not torch.allclose(seen["first"][0], seen["text"][0])


def test_a_tiles_rows_and_columns_follow_its_shape() -> None:
    assert tile_shape((56, 56), 16) == (4, 4)
    assert tile_shape((28, 112), 16) == (2, 8)
    with pytest.raises(ModelRefused, match="17 image positions, not 4 × 4"):
        tile_shape((56, 56), 17)


@pytest.mark.parametrize("family", ["qwen2_vl", "llava_next", "llava_onevision", "idefics3", "internvl", "mistral3"])
def test_extreme_shapes_give_a_result_or_a_sentence(family: str, tmp_path: Path) -> None:
    engine = LocalEngine(kits.make(tmp_path, seeing.SEEING[family]()))
    results: list[bool] = []
    refusals: list[str] = []
    for height, width in ((8, 8), (19, 4000), (1542, 69)):
        question = Question(tiny.picture(height=height, width=width), "what?", 2)
        try:
            results.append(engine.ask(question, top=1).attribution.heat is not None)
        except RequestError as error:
            refusals.append(str(error))
    assert results
    assert all(results)
    sentence = r"refuses a picture of \d+ × \d+ pixels|cannot take this picture"
    assert all(re.search(sentence, words) for words in refusals)


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "gemma3", "qwen3_vl", "llava_onevision", "blip2"])
def test_the_self_check_holds_in_bfloat16_too(family: str, tmp_path: Path) -> None:
    kit = {**kits.TEXT, **seeing.SEEING}[family]()
    loaded = load(str(kits.save(tmp_path, kit)), device="cpu", dtype=torch.bfloat16)
    assert loaded.model.dtype == torch.bfloat16
    assert [check.detail for check in checks_of(loaded) if not check.holds] == []
