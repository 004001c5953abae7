"""The results of `vitrail.images.measure`; in their own file, so that advice without images needs no NumPy."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.geometry import Size

__all__ = ["Detail", "Survey"]


@dataclass(frozen=True, kw_only=True)
class Detail:
    """Medians over the images, at one patch size and the survey's model input."""

    patch: Size
    within_share: float
    above_nyquist_share: float


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Statistics of a set of images."""

    images: int
    failed: tuple[tuple[str, str], ...]
    """Path and reason of every file that could not be decoded."""
    smallest: Size
    median: Size
    largest: Size
    """By area."""
    aspect_low: float
    aspect_median: float
    aspect_high: float
    """Width over height: the 10th, 50th and 90th percentile."""
    image: Size
    """The model input at which detail was measured."""
    details: tuple[Detail, ...]
    lost_by_resizing: dict[int, float]
    """The median share of variance lost by resizing to a square input, by its side."""
    adaptive_tokens: int | None
    """Mean tokens of adaptive patches at that input; None if it is not divisible into their cells."""
