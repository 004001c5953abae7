"""What `vitrail.images.measure` finds in a set of images; apart, so that advice without images needs no NumPy."""

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
    """A set of images in numbers."""

    images: int
    failed: tuple[tuple[str, str], ...]
    """Path and reason of every file that gave no picture."""
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
    """Median share of variance lost on the way to a square input of each side."""
    adaptive_tokens: int | None
    """Mean tokens of adaptive patches at that input; None where its cells don't divide it."""
