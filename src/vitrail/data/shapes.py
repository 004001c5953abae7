"""A generated dataset of circles, squares, triangles and stars; an image is a function of (seed, split, index)."""

from __future__ import annotations

import numpy as np

from vitrail.data.source import Split
from vitrail.geometry import Size
from vitrail.images.decode import Pixels

__all__ = ["SHAPES", "Shapes", "draw_shape"]

SHAPES = ("circle", "square", "triangle", "star")
COUNTS = {"train": 8192, "test": 1024}


class Shapes:
    """Drawn shapes at any size. Classes alternate, so every four consecutive images have one of each."""

    classes = SHAPES
    channels: int = 3

    def __init__(self, image: Size, *, seed: int = 0, split: Split = "train", count: int | None = None) -> None:
        self.image, self.seed, self.split = image, seed, split
        self.count = COUNTS[split] if count is None else count

    @property
    def labels(self) -> np.ndarray:
        return np.arange(self.count) % len(SHAPES)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        random = np.random.Generator(np.random.PCG64([self.seed, self.split == "test", index]))
        return draw_shape(index % len(SHAPES), self.image, random), index % len(SHAPES)


def draw_shape(label: int, image: Size, random: np.random.Generator) -> Pixels:
    """Draw one anti-aliased shape of random size, position and colours, with noise: uint8 (height, width, 3)."""
    shorter = min(image)
    radius = shorter * random.uniform(0.24, 0.42)
    centre = np.array([random.uniform(radius, side - radius) for side in image])
    ink, paper = random.uniform(0, 1, (2, 3))
    ink = np.where(np.abs(ink - paper).max() < 0.4, 1 - np.round(paper), ink)  # ensure enough contrast
    rows, columns = np.ogrid[: image.height, : image.width]
    inside = _distance(SHAPES[label], rows + 0.5 - centre[0], columns + 0.5 - centre[1], radius)
    cover = np.clip(inside + 0.5, 0, 1)[..., None]  # the covered share of each pixel, for an edge about a pixel wide
    noise = random.uniform(0, 0.08) * random.standard_normal((*image, 3))
    return np.rint(255 * np.clip(paper + cover * (ink - paper) + noise, 0, 1)).astype(np.uint8)


def _distance(shape: str, rows: np.ndarray, columns: np.ndarray, radius: float) -> np.ndarray:
    """Return the distance to the shape's edge in pixels, positive inside."""
    if shape == "circle":
        return radius - np.hypot(rows, columns)
    if shape == "square":
        return radius * 0.85 - np.maximum(np.abs(rows), np.abs(columns))
    corners = 3 if shape == "triangle" else 10
    angle = 2 * np.pi * np.arange(corners) / corners
    reach = np.where(np.arange(corners) % 2, 0.45, 1.0) if shape == "star" else np.ones(corners)
    points = radius * reach[:, None] * np.stack([-np.cos(angle), np.sin(angle)], axis=1)  # (corners, row and column)
    return _polygon_distance(points, rows, columns)


def _polygon_distance(points: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the distance to the nearest edge, positive inside by the even-odd rule. The first axis is the edges."""
    (row, column), (row2, column2) = (each.T[:, :, None, None] for each in (points, np.roll(points, -1, axis=0)))
    across, along = row2 - row, column2 - column
    down, right = rows - row, columns - column
    part = ((down * across + right * along) / (across**2 + along**2)).clip(0, 1)
    nearest = np.sqrt(((down - part * across) ** 2 + (right - part * along) ** 2).min(axis=0))
    crossed = (row > rows) != (row2 > rows)
    level = np.where(across == 0, 1, across)  # a horizontal edge is never crossed
    inside = (crossed & (right < along * down / level)).sum(axis=0) % 2
    return np.where(inside, nearest, -nearest)
