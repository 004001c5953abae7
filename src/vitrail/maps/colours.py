"""A colour for every class of a map."""

from __future__ import annotations

import colorsys

from vitrail.charts.palette import GREY, SERIES

__all__ = ["class_colours"]

TURN = 0.61803398875
"""The golden ratio: hues that follow each other are far apart, however many there are."""


def class_colours(count: int) -> list[str]:
    """Return the colours of a map's classes; without classes, one for all.

    Up to nine classes have Okabe and Ito's colours, which any colour vision tells apart.

    >>> class_colours(2)
    ['#0072b2', '#e69f00']
    """
    if count <= len(SERIES):
        return list(SERIES[:count]) or [GREY]
    return [_hue(TURN * number % 1, (0.36, 0.5, 0.62)[number % 3]) for number in range(count)]


def _hue(hue: float, lightness: float) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lightness, 0.65))
