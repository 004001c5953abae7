"""Generate a picture from a seed: a stained-glass window with flat panes, sharp leads and soft light."""

from __future__ import annotations

import colorsys

import numpy as np

from vitrail.errors import require
from vitrail.geometry import Size

__all__ = ["synthesize_image"]

PANES = 72
LEAD_WIDTH = 0.009  # of the image's longer side


def synthesize_image(seed: int = 0, size: Size | int = 224) -> np.ndarray:
    """Generate uint8 (height, width, 3); the same seed and size give the same image on any machine.

    >>> synthesize_image(7).shape, synthesize_image(7, Size(96, 160)).dtype
    ((224, 224, 3), dtype('uint8'))
    """
    require(seed >= 0, f"seed {seed} is negative; give 0 or more")
    size = Size.of(size)
    random = np.random.Generator(np.random.PCG64(seed))
    longer = max(size)
    extent = np.array([size.height, size.width]) / longer
    centres = random.random((PANES, 2)) * extent
    hues = (random.random() + 0.35 * random.random(PANES)) % 1
    panes = np.array(
        [colorsys.hsv_to_rgb(hue, 0.45 + 0.5 * random.random(), 0.55 + 0.45 * random.random()) for hue in hues]
    )

    rows, columns = np.mgrid[: size.height, : size.width]
    place = np.stack([rows + 0.5, columns + 0.5], axis=-1) / longer  # (H, W, 2)
    first, second = _two_nearest(place, centres)
    near, far = (np.linalg.norm(place - centres[pane], axis=-1, keepdims=True) for pane in (first, second))
    separation = np.linalg.norm(centres[first] - centres[second], axis=-1, keepdims=True)
    to_lead = (far**2 - near**2) / (2 * separation)  # (H, W, 1): distance to the line between the two nearest panes
    colour = panes[first]

    light = random.random(2) * extent  # the position of the sun behind the window
    glow = 0.55 + 0.6 * np.exp(-3 * np.linalg.norm(place - light, axis=-1, keepdims=True) ** 2)
    clear = np.clip(2 * to_lead / LEAD_WIDTH - 0.5, 0, 1)
    grain = 0.012 * random.standard_normal((*size, 1))
    image = (colour * glow + grain) * clear + 0.06 * (1 - clear)
    return np.round(255 * np.clip(image, 0, 1)).astype(np.uint8)


def _two_nearest(place: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (H, W) twice: the nearest and the second nearest centre of every place."""
    rows, columns = place[:, 0, 0], place[0, :, 1]
    squares = (rows[:, None, None] - centres[:, 0]) ** 2 + (columns[:, None] - centres[:, 1]) ** 2  # (H, W, panes)
    first = squares.argmin(axis=-1)
    np.put_along_axis(squares, first[..., None], np.inf, axis=-1)
    return first, squares.argmin(axis=-1)
