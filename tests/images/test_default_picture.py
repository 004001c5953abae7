"""The drawn window."""

from __future__ import annotations

import numpy as np

from vitrail.geometry import Size
from vitrail.images.default_picture import draw_window


def test_the_same_window_is_drawn_every_time_at_the_asked_size():
    first, second = draw_window(Size(60, 96)), draw_window(Size(60, 96))
    assert (first.shape, first.dtype) == ((60, 96, 3), np.uint8)
    np.testing.assert_array_equal(first, second)


def test_a_larger_window_is_the_same_picture():
    small, large = draw_window(Size(75, 100)), draw_window(Size(300, 400))
    shrunk = large.reshape(75, 4, 100, 4, 3).mean((1, 3))
    # lead is a share of the height but at least a pixel, so the small one is darker along it
    assert np.median(np.abs(shrunk - small)) < 16
