"""The filters of a projection as pictures, and what each answers all over an image.

Shapes: D filters, C channels, P×Q patch, h×w grid, k principal filters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel

from vitrail.errors import require
from vitrail.studio.arrays import Frame, frame
from vitrail.studio.plans import Pair

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.look.subject import Subject

__all__ = ["FilterFacts", "filter_frame"]

PRINCIPAL = 64
"""Principal filters that are shown, at most."""
EXTREMES = 8


class Orders(BaseModel):
    variance: list[int]
    norm: list[int]
    index: list[int]


class Answers(BaseModel):
    """What filters answer on the image: by filter, and where each answers most and least."""

    norms: list[float]
    spread: list[float]
    largest: list[float]
    """The largest answer's size, by which a map's bytes are scaled."""
    high: list[list[int]]
    high_values: list[list[float]]
    low: list[list[int]]
    low_values: list[list[float]]
    orders: Orders


class FilterFacts(BaseModel):
    stage: str
    count: int
    channels: int
    patch: Pair
    grid: Pair
    corners: list[Pair]
    """The top left pixel of every patch of the grid; above 0 or beyond the image where it is padded."""
    seen: Pair
    effective_rank: float
    rank: int
    shares: list[float]
    carried: list[float]
    filters: Answers
    principal: Answers


def filter_frame(subject: Subject) -> Frame:
    """Both sets of filters, and their maps."""
    from vitrail.look.filters import filter_responses, projection_filters, projection_of

    found, convolution = projection_filters(subject.model), projection_of(subject.model)
    count, channels, height, width = found.filters.shape
    require(channels in (1, 3), f"filters of {channels} channels are no pictures; look at a model of 1 or 3 channels")
    principal = found.principal[:PRINCIPAL]
    own = filter_responses(subject.model, subject.image)[0]  # (D, h, w)
    shared = filter_responses(subject.model, subject.image, principal)[0]  # (k, h, w)
    rows, columns = own.shape[1:]
    stride, padding = convolution.stride, convolution.padding
    facts = FilterFacts(
        stage=found.stage,
        count=count,
        channels=channels,
        patch=(height, width),
        grid=(rows, columns),
        corners=[
            (row * stride.height - padding, column * stride.width - padding)
            for row in range(rows)
            for column in range(columns)
        ],
        seen=tuple(subject.pixels.shape[:2]),
        effective_rank=found.effective_rank,
        rank=len(found.shares),
        shares=found.shares.tolist(),
        carried=found.shares.cumsum(0).tolist(),
        filters=_answers(own, found.filters),
        principal=_answers(shared, principal),
    )
    arrays = {
        "pixels": np.ascontiguousarray(subject.pixels),
        "filters": _pictures(found.filters),
        "principal": _pictures(principal),
        "filter_answers": _signed(own),
        "principal_answers": _signed(shared),
    }
    return frame(facts, arrays)


def _answers(maps: Tensor, weight: Tensor) -> Answers:
    """From maps (D, h, w) and their filters."""
    flat, norms = maps.flatten(1), weight.flatten(1).norm(dim=1)
    spread, most = flat.std(dim=1, correction=0), min(EXTREMES, flat.shape[1])
    high, low = flat.topk(most), flat.topk(most, largest=False)
    return Answers(
        norms=norms.tolist(),
        spread=spread.tolist(),
        largest=flat.abs().amax(dim=1).tolist(),
        high=high.indices.tolist(),
        high_values=high.values.tolist(),
        low=low.indices.tolist(),
        low_values=low.values.tolist(),
        orders=Orders(
            variance=spread.argsort(descending=True, stable=True).tolist(),
            norm=norms.argsort(descending=True, stable=True).tolist(),
            index=list(range(len(flat))),
        ),
    )


def _signed(maps: Tensor) -> np.ndarray:
    """Each of (D, …) by its own largest value, zero in the middle: bytes."""
    largest = maps.flatten(1).abs().amax(dim=1).clamp_min(1e-30).view(-1, *(1,) * (maps.ndim - 1))
    return (127.5 + 127.5 * maps / largest).round().clamp(0, 255).byte().numpy()


def _pictures(weight: Tensor) -> np.ndarray:
    """(D, C, P, Q) → (D, P, Q, 3) bytes: each filter by its own largest value, zero is grey."""
    return np.ascontiguousarray(_signed(weight.expand(-1, 3, -1, -1)).transpose(0, 2, 3, 1))
