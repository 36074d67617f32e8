"""Patches lie where the processor puts them: planted pixels of the original picture light their own patch."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from engine.contract import Grid, ModelRefused, PictureTooSmall, Question
from engine.loading import Loaded
from engine.local import LocalEngine
from engine.patches import MIN_SIDE, cell_at, cell_box, check_size, single_grid
from engine.prompts import build_prompt
from tests.engine import tiny

PROCESSORS = {
    "resize": (False, 56, 56),
    "crop": (True, 56, 56),
    "crop of more": (True, 71, 56),
    "crop that pads": (True, 41, 56),
}
SIZES = [(200, 200), (480, 160), (160, 480), (333, 217), (60, 61)]


def lit(processor: Any, image: np.ndarray) -> np.ndarray:
    """(rows, cols): how bright each patch of the processor's tensor is, black = 0."""
    both = [np.asarray(processor(Image.fromarray(p))["pixel_values"][0]) for p in (image, np.zeros_like(image))]
    bright = np.abs(both[0] - both[1]).sum(0)
    rows, cols = bright.shape[0] // 14, bright.shape[1] // 14
    return bright.reshape(rows, 14, cols, 14).sum((1, 3))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("name", PROCESSORS)
def test_a_planted_rectangle_lights_its_own_patch(name: str, width: int, height: int) -> None:
    crop, shortest, side = PROCESSORS[name]
    processor = tiny.image_processor(crop, shortest, side)
    grid = single_grid(processor, width, height, (56, 56), 14)
    assert (grid.rows, grid.cols) == (4, 4)
    for row in range(4):
        for column in range(4):
            left, top, right, bottom = (round(edge) for edge in cell_box(grid, row, column))
            if left < 0 or top < 0 or right > width or bottom > height:
                assert name == "crop that pads"
                continue
            image = np.zeros((height, width, 3), np.uint8)
            image[top:bottom, left:right] = 255
            energy = lit(processor, image)
            assert np.unravel_index(energy.argmax(), energy.shape) == (row, column)
            assert energy[row, column] > 0.75 * energy.sum()


def test_what_a_crop_takes_away_lies_outside_the_grid() -> None:
    grid = single_grid(tiny.image_processor(True), 480, 160, (56, 56), 14)
    assert grid.box == (160.0, 0.0, 320.0, 160.0)
    assert cell_at(grid, 100, 80) is None
    image = np.zeros((160, 480, 3), np.uint8)
    image[:, :140] = 255
    assert lit(tiny.image_processor(True), image).sum() == 0
    padded = single_grid(tiny.image_processor(True, 41), 200, 200, (56, 56), 14)
    assert padded.box[0] < 0 < 200 < padded.box[2]
    resized = single_grid(tiny.image_processor(False), 480, 160, (56, 56), 14)
    assert resized.box == (0.0, 0.0, 480.0, 160.0)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.tuples(st.floats(-500, 500), st.floats(-500, 500), st.floats(8, 5000), st.floats(8, 5000)),
    st.data(),
)
def test_the_patch_under_the_middle_of_a_patchs_box_is_that_patch(
    rows: int, cols: int, place: tuple[float, float, float, float], data: st.DataObject
) -> None:
    left, top, width, height = place
    grid = Grid(rows, cols, (left, top, left + width, top + height))
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, cols - 1))
    a, b, c, d = cell_box(grid, row, column)
    assert cell_at(grid, (a + c) / 2, (b + d) / 2) == (row, column)
    assert cell_at(grid, left - 1, top) is None
    assert cell_at(grid, left, top + height) is None


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_every_pixel_of_the_grid_has_a_patch_whose_box_holds_it(across: float, down: float) -> None:
    grid = Grid(4, 6, (10.0, -20.0, 310.0, 80.0))
    x, y = 10 + 300 * across, -20 + 100 * down
    found = cell_at(grid, x, y)
    if found is None:  # rounding can reach the right or lower edge itself
        assert x >= 310 or y >= 80
        return
    a, b, c, d = cell_box(grid, *found)
    assert a - 1e-9 <= x <= c + 1e-9
    assert b - 1e-9 <= y <= d + 1e-9


def test_a_picture_under_eight_pixels_is_refused_with_limit_and_remedy(model: Loaded) -> None:
    check_size(MIN_SIDE, MIN_SIDE)
    for width, height in ((7, 300), (300, 7), (1, 1)):
        with pytest.raises(PictureTooSmall, match=f"{width} × {height}.*at least 8.*larger picture"):
            build_prompt(model, Question(np.zeros((height, width, 3), np.uint8), "what?"))
    assert build_prompt(model, Question(np.zeros((8, 8, 3), np.uint8), "what?")).grid is not None


@pytest.mark.parametrize("shape", [(1542, 69), (19, 4000)])
def test_extreme_shapes_give_a_grid(model: Loaded, shape: tuple[int, int]) -> None:
    grid = build_prompt(model, Question(np.zeros((*shape, 3), np.uint8), "what?")).grid
    assert grid is not None
    assert (grid.rows, grid.cols) == (4, 4)
    assert grid.box[2] <= shape[1] + 1
    assert grid.box[3] <= shape[0] + 1


def test_grids_are_asked_without_running_the_model(engine: LocalEngine) -> None:
    assert engine.grid(Question(None, "what?")) is None
    grid = engine.grid(Question(np.zeros((120, 120, 3), np.uint8), "what?"))
    assert grid == Grid(4, 4, (0.0, 0.0, 120.0, 120.0))


def test_a_tower_whose_class_token_is_an_image_position_is_refused_when_it_is_loaded(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    loaded = tiny.make(tmp_path_factory.mktemp("full"), tiny.Kind(strategy="full"))
    with pytest.raises(ModelRefused, match="17 image positions, not 4 × 4"):
        LocalEngine(loaded)


def test_a_resize_that_is_not_known_is_refused() -> None:
    processor = tiny.image_processor(True)
    processor.size = {"longest_edge": 56}
    with pytest.raises(ModelRefused, match="not known"):
        single_grid(processor, 100, 100, (56, 56), 14)
    processor = tiny.image_processor(False)
    with pytest.raises(ModelRefused, match="should return 56 × 56 pixels but returned 70 × 56"):
        single_grid(processor, 100, 100, (70, 56), 14)
