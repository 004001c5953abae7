"""Tensor → tensor: the patch projection, for another patch size or other input channels.

A patch x of the old size, resized to the new one, is B·x. The new filters ŵ should read from it what the old ones
read from x: ŵ·(B x) ≈ w·x. A larger patch has an exact solution; with a smaller one, part of the token is lost.
B is bicubic and antialiased, one matrix per axis.

Shapes: D width, C channels, P×Q old patch, R×S new patch; t frames of a tubelet.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from vitrail.checkpoint.surgery.resample import axis_matrix
from vitrail.errors import require
from vitrail.geometry import Size

__all__ = [
    "Projection",
    "along",
    "change_channels",
    "change_tubelet",
    "pixel_covariance",
    "projection_named",
    "resize_projection",
]

Projection = Literal["pinv", "natural", "interpolate"]

PIXEL_CORRELATION, BLUR = 0.96, 0.15
"""The model of photographs: a Markov field with this correlation of neighbours (the classic model), blurred by
(BLUR, 1 − 2·BLUR, BLUR) along each axis as lenses and resizing do. Fitted to four photographs at 224 and 336 pixels
seen by DINOv2-S/14's trained filters: docs/adapting.md."""


def projection_named(name: str) -> Projection:
    """Check the name of a way to resize the projection."""
    require(
        name in get_args(Projection), f"projection {name!r} is unknown; use one of {', '.join(get_args(Projection))}"
    )
    return name  # type: ignore[return-value]


def resize_projection(weight: Tensor, new: Size, *, how: Projection = "pinv") -> Tensor:
    """(D, C, P, Q) → (D, C, R, S), computed in float64, in the weight's dtype; the same size returns the same object.

    pinv: the pseudo-inverse of B (FlexiViT, arXiv 2212.08013): exact when the patch grows.
    natural: the same, least squares over photographs instead of white noise: exact too when the patch grows, and
    loses less when it shrinks.
    interpolate: the filters resized as images, times the ratio of areas, so that a flat patch nearly keeps its token.
    """
    old = Size(*weight.shape[2:])
    if old == new:
        return weight
    rows, columns = (_filter_matrix(*sides, projection_named(how)) for sides in zip(old, new, strict=True))
    return along(weight.double(), rows, columns).to(weight.dtype)


def along(filters: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(…, P, Q) by (P, R) and (Q, S) → (…, R, S): two large products instead of many small ones."""
    return ((filters @ columns).mT @ rows).mT


def _filter_matrix(old: int, new: int, how: Projection) -> Tensor:
    """(old, new): filters of the old side → of the new side."""
    resize = axis_matrix(old, new, "timm")  # B, (new, old)
    if how == "interpolate":
        return resize.T * (old / new)
    if how == "pinv":
        return torch.linalg.pinv(resize)
    natural = pixel_covariance(old)
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


def change_tubelet(filters: Tensor, tubelet: int) -> Tensor:
    """(D, t, C, P, Q) → (D, tubelet, C, P, Q): the old filters, as they read new frames that are averaged to t.

    From a still image's filters, each frame gets an equal share; to a still image, they are summed. The sum over frames
    stays, so that frames that are all alike give the same token.
    """
    if filters.shape[1] == tubelet:
        return filters
    average = axis_matrix(tubelet, filters.shape[1], "area")  # (t, tubelet)
    return torch.einsum("dtcpq,ts->dscpq", filters.double(), average).to(filters.dtype)


def pixel_covariance(side: int) -> Tensor:
    """(side, side): covariance of the pixels along one axis of a photograph."""
    place = torch.arange(side + 2, dtype=torch.float64)
    field = PIXEL_CORRELATION ** (place[:, None] - place).abs()
    taps = (BLUR, 1 - 2 * BLUR, BLUR)
    blur = sum(tap * torch.eye(side, side + 2, dtype=torch.float64).roll(shift, 1) for shift, tap in enumerate(taps))
    assert isinstance(blur, Tensor)
    return blur @ field @ blur.T
