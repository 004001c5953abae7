"""What tokens lose when the patch projection is resized, predicted from the filters alone.

Shapes: D width, C channels, P×Q old patch, R×S new patch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitrail.checkpoint.surgery.projection import Projection, along, pixel_covariance, resize_projection
from vitrail.checkpoint.surgery.resample import axis_matrix
from vitrail.geometry import Size

__all__ = ["ProjectionLoss", "predicted_loss"]

CHANNEL_CORRELATION = 0.85
"""Correlation of two colour channels in photographs, fitted with `PIXEL_CORRELATION`."""


@dataclass(frozen=True, kw_only=True)
class ProjectionLoss:
    """Predicted relative RMS error of the resized projection's tokens."""

    old: Size
    new: Size
    how: Projection
    natural: float
    """On photographs, by the model of them in `surgery.projection`."""
    least: float
    """On photographs, with projection "natural": the least that a linear resize can lose there."""
    white: float
    """On white noise, which has all its detail at the finest scale: the worst case."""
    round_trip: float
    """On photographs, after a resize there and back."""
    round_trip_white: float
    """The same on white noise, which is the change of the filters themselves: nearly all of them."""


def predicted_loss(weight: Tensor, new: Size, *, how: Projection = "pinv") -> ProjectionLoss:
    """From the actual filters, without an image: E|w·x − ŵ·(B x)|² over E|w·x|², and its root.

    The expectation is over patches x with the covariance of photographs, or of white noise: a trace, in closed form.
    """
    old = Size(*weight.shape[2:])
    filters = weight.double()
    resized = resize_projection(filters, new, how=how)
    rows, columns = (axis_matrix(*sides, "timm") for sides in zip(old, new, strict=True))
    seen = along(resized, rows, columns)  # ŵ B, as filters of the old patch
    back = resize_projection(resized, old, how=how)
    best = along(resize_projection(filters, new, how="natural"), rows, columns)
    return ProjectionLoss(
        old=old,
        new=new,
        how=how,
        natural=_distance(filters, seen, natural=True),
        least=_distance(filters, best, natural=True),
        white=_distance(filters, seen, natural=False),
        round_trip=_distance(filters, back, natural=True),
        round_trip_white=_distance(filters, back, natural=False),
    )


def _distance(filters: Tensor, seen: Tensor, *, natural: bool) -> float:
    rest = filters - seen
    return (_energy(rest, natural) / _energy(filters, natural)).sqrt().item()


def _energy(filters: Tensor, natural: bool) -> Tensor:
    """E|w·x|² summed over the filters."""
    if not natural:
        return filters.square().sum()
    rows, columns = (pixel_covariance(side) for side in filters.shape[2:])
    mixed = along(filters, rows, columns)  # (D, C, P, Q)
    own, across = (filters * mixed).sum(), (filters.sum(dim=1) * mixed.sum(dim=1)).sum()
    return (1 - CHANNEL_CORRELATION) * own + CHANNEL_CORRELATION * across
