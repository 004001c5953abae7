"""Tensor → tensor: the patch projection, for another patch size or other input channels, and what that loses.

A patch x of the old size, resized to the new one, is B·x. The new filters ŵ should read from it what the old ones
read from x: ŵ·(B x) ≈ w·x. Upward there is an exact answer; downward pixels are gone, and so is some of the token.
B is bicubic and antialiased, one matrix per axis.

Shapes: D width, C channels, P×Q old patch, R×S new patch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from vitrail.checkpoint.surgery.resample import axis_matrix
from vitrail.errors import require
from vitrail.geometry import Size

__all__ = ["Projection", "ProjectionLoss", "change_channels", "predicted_loss", "projection_named", "resize_projection"]

Projection = Literal["pinv", "natural", "interpolate"]

PIXEL_CORRELATION, BLUR, CHANNEL_CORRELATION = 0.96, 0.15, 0.85
"""The model of photographs: a Markov field with this correlation of neighbours (the classic model), blurred by
(BLUR, 1 − 2·BLUR, BLUR) along each axis as lenses and resizing do, and this correlation of two colour channels.
Fitted to four photographs at 224 and 336 pixels seen by DINOv2-S/14's trained filters: docs/adapting.md."""


def projection_named(name: str) -> Projection:
    """A way to resize the projection, by its name."""
    require(
        name in get_args(Projection), f"projection {name!r} is unknown; use one of {', '.join(get_args(Projection))}"
    )
    return name  # type: ignore[return-value]


def resize_projection(weight: Tensor, new: Size, *, how: Projection = "pinv") -> Tensor:
    """(D, C, P, Q) → (D, C, R, S), computed in float64, in the weight's own type; the same size is the same object.

    pinv: the pseudo-inverse of B (FlexiViT, arXiv 2212.08013): exact when the patch grows.
    natural: the same, least squares over photographs instead of white noise: exact too when the patch grows, and
    loses less when it shrinks.
    interpolate: the filters as pictures, times the areas' ratio so that a flat patch about keeps its token.
    """
    old = Size(*weight.shape[2:])
    if old == new:
        return weight
    rows, columns = (_filter_matrix(*sides, projection_named(how)) for sides in zip(old, new, strict=True))
    return _along(weight.double(), rows, columns).to(weight.dtype)


def _along(filters: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(…, P, Q) by (P, R) and (Q, S) → (…, R, S): two large products instead of many small ones."""
    return ((filters @ columns).mT @ rows).mT


def _filter_matrix(old: int, new: int, how: Projection) -> Tensor:
    """(old, new): filters of the old side → of the new side."""
    resize = axis_matrix(old, new, "timm")  # B, (new, old)
    if how == "interpolate":
        return resize.T * (old / new)
    if how == "pinv":
        return torch.linalg.pinv(resize)
    natural = _pixel_covariance(old)
    return natural @ resize.T @ torch.linalg.pinv(resize @ natural @ resize.T)


def change_channels(weight: Tensor, channels: int) -> Tensor:
    """(D, C, P, Q) → (D, channels, P, Q); the same count is the same object.

    To one: the sum, exact for a grey image. To another count: the filters in turn (r, g, b, r …) times C / channels,
    which keeps the activations' scale. Both are timm's rules.
    """
    require(channels > 0, f"channels {channels} is not positive; give 1 or more")
    before = weight.shape[1]
    if channels == before:
        return weight
    precise = weight.to(torch.promote_types(weight.dtype, torch.float32))
    if channels == 1:
        return precise.sum(dim=1, keepdim=True).to(weight.dtype)
    turn = torch.arange(channels, device=weight.device) % before
    return (precise[:, turn] * (before / channels)).to(weight.dtype)


# ── what a resize loses ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class ProjectionLoss:
    """How far tokens of the resized projection are from the old ones', relative (root mean square), predicted."""

    old: Size
    new: Size
    how: Projection
    natural: float
    """On photographs, by the model of them above."""
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
    seen = _along(resized, rows, columns)  # ŵ B, as filters of the old patch
    back = resize_projection(resized, old, how=how)
    best = _along(resize_projection(filters, new, how="natural"), rows, columns)
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
    rows, columns = (_pixel_covariance(side) for side in filters.shape[2:])
    mixed = _along(filters, rows, columns)  # (D, C, P, Q)
    own, across = (filters * mixed).sum(), (filters.sum(dim=1) * mixed.sum(dim=1)).sum()
    return (1 - CHANNEL_CORRELATION) * own + CHANNEL_CORRELATION * across


def _pixel_covariance(side: int) -> Tensor:
    place = torch.arange(side + 2, dtype=torch.float64)
    field = PIXEL_CORRELATION ** (place[:, None] - place).abs()
    taps = (BLUR, 1 - 2 * BLUR, BLUR)
    blur = sum(tap * torch.eye(side, side + 2, dtype=torch.float64).roll(shift, 1) for shift, tap in enumerate(taps))
    assert isinstance(blur, Tensor)
    return blur @ field @ blur.T
