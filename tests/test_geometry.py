from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import VitrailError
from vitrail.geometry import Size, attention_elements, fit, position_id, token_count

sides = st.integers(1, 400)
sizes = st.builds(Size, sides, sides)


@pytest.mark.parametrize(
    ("image", "patch", "tokens"),
    [("224", "16", 197), ("384", "16", 577), ("32", "4", 65), ("1024", "16", 4097), ("384x640", "16x32", 481)],
)
def test_tokens_are_patches_and_the_prefix(image: str, patch: str, tokens: int):
    assert token_count(fit(Size.of(image), Size.of(patch)).grid, prefix=1) == tokens


def test_halving_the_patch_is_4x_tokens_and_16x_attention():
    fine, coarse = (fit(Size(512, 256), Size(patch, patch)).grid.area for patch in (8, 16))
    assert fine == 4 * coarse
    assert attention_elements(fine) == 16 * attention_elements(coarse)


@given(sizes, sizes)
def test_padding_never_loses_a_pixel_and_adds_less_than_a_patch(image: Size, patch: Size):
    found = fit(image, patch, remainder="pad")
    for fitted, side, window in zip(found.fitted, image, patch, strict=True):
        assert side <= fitted < side + window
    assert found.fitted == Size(found.grid.height * patch.height, found.grid.width * patch.width)


@given(sizes, sizes)
def test_cropping_keeps_whole_patches_or_refuses(image: Size, patch: Size):
    if patch.height > image.height or patch.width > image.width:
        with pytest.raises(VitrailError, match="larger than image"):
            fit(image, patch, remainder="crop")
        return
    found = fit(image, patch, remainder="crop")
    assert found.grid == Size(image.height // patch.height, image.width // patch.width)
    assert found.cropped_pixels == image.area - found.grid.area * patch.area


@given(sizes, sizes)
def test_resizing_moves_each_side_by_at_most_half_a_patch_or_up_to_one(image: Size, patch: Size):
    found = fit(image, patch, remainder="resize")
    for fitted, side, window in zip(found.fitted, image, patch, strict=True):
        assert fitted % window == 0
        assert abs(fitted - side) * 2 <= window or fitted == window


@given(sizes, st.integers(1, 60), st.integers(1, 60))
def test_overlapping_patches_stay_inside_and_reach_the_edge(image: Size, window: int, step: int):
    patch, stride = Size(window, window), Size(min(step, window), min(step, window))
    found = fit(image, patch, stride=stride, remainder="pad")
    for fitted, count in zip(found.fitted, found.grid, strict=True):
        assert (count - 1) * stride.height + window == fitted


@given(sizes)
def test_a_size_reads_back_from_its_text(size: Size):
    assert Size.of(str(size)) == size


@pytest.mark.parametrize("text", ["", "x", "12x", "-3", "1.5", "12x0", "0", "1x2x3", "٣x٤x"])
def test_what_is_not_a_size_is_refused_with_the_form_to_write(text: str):
    with pytest.raises(VitrailError, match="384x640"):
        Size.of(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Size("a"),  # pyright: ignore[reportArgumentType]
        lambda: Size(224),
        lambda: Size(16, 1.5),  # pyright: ignore[reportArgumentType]
        lambda: Size(True, 16),
        lambda: Size(10**9, 16),
        lambda: Size.of(None),  # pyright: ignore[reportArgumentType]
        lambda: Size.of(np.zeros(2)),  # pyright: ignore[reportArgumentType]
        lambda: Size.of((1, 2, 3)),  # pyright: ignore[reportArgumentType]
    ],
)
def test_what_has_no_two_sides_is_refused_in_one_line(make: Callable[[], Size]):
    with pytest.raises(VitrailError, match=r"384x640|\(height, width\)"):
        make()


def test_a_size_of_numpy_integers_is_one_of_python_integers():
    sides: Any = np.array([3, 5])
    assert repr(Size(*sides)) == repr(Size(3, 5))
    assert repr(Size.of(sides[0])) == repr(Size(3, 3))


def test_a_remainder_is_an_error_that_offers_the_neighbours():
    with pytest.raises(VitrailError, match=r"image 225x320 is not divisible by patch 16x16 .*use 224 or 240"):
        fit(Size(225, 320), Size(16, 16))


def test_position_ids_run_row_by_row_behind_cls():
    grid = Size(3, 5)
    ids = [position_id(i, j, grid) for i in range(3) for j in range(5)]
    assert ids == list(range(1, 16))
    with pytest.raises(VitrailError, match=r"outside the grid 3x5"):
        position_id(3, 0, grid)
