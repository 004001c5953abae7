"""The filters of a projection as pictures, and their responses on an image.

Shapes: D filters, C channels, P×Q patch, h×w grid, k principal filters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel

from vitrail.errors import require
from vitrail.server.arrays import Frame, frame
from vitrail.server.plans import Pair

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.look.subject import Subject

__all__ = ["PRINCIPAL", "FilterFacts", "filter_frame", "pictures", "response_tensors", "signed"]

PRINCIPAL = 64
"""The largest number of principal filters that are shown."""
EXTREMES = 8


class Orders(BaseModel):
    variance: list[int]
    norm: list[int]
    index: list[int]


class Responses(BaseModel):
    """The responses of filters on the image, with the patches of each filter's highest and lowest responses."""

    norms: list[float]
    spread: list[float]
    largest: list[float]
    """The largest absolute response, which scales the bytes of the map."""
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
    """The top left pixel of every patch; negative or beyond the image where the input is padded."""
    seen: Pair
    effective_rank: float
    rank: int
    shares: list[float]
    cumulative: list[float]
    filters: Responses
    principal: Responses


def filter_frame(subject: Subject) -> Frame:
    """Return the filters, the principal filters, and their response maps."""
    from vitrail.look.filters import filter_responses, projection_filters, projection_of

    learned, convolution = projection_filters(subject.model), projection_of(subject.model)
    count, channels, height, width = learned.filters.shape
    require(channels in (1, 3), f"filters of {channels} channels cannot be drawn; choose a model with 1 or 3 channels")
    principal = learned.principal[:PRINCIPAL]
    own = filter_responses(subject.model, subject.image)[0]  # (D, h, w)
    components = filter_responses(subject.model, subject.image, principal)[0]  # (k, h, w)
    rows, columns = own.shape[1:]
    stride, (padding, _) = convolution.stride, convolution.padding
    facts = FilterFacts(
        stage=learned.stage,
        count=count,
        channels=channels,
        patch=(height, width),
        grid=(rows, columns),
        corners=[
            (row * stride.height - padding, column * stride.width - padding)
            for row in range(rows)
            for column in range(columns)
        ],
        seen=subject.pixels.shape[:2],
        effective_rank=learned.effective_rank,
        rank=len(learned.shares),
        shares=learned.shares.tolist(),
        cumulative=learned.shares.cumsum(0).tolist(),
        filters=_responses(own, learned.filters),
        principal=_responses(components, principal),
    )
    arrays = {
        "pixels": subject.pixels,
        "filters": pictures(learned.filters).numpy(),
        "principal": pictures(principal).numpy(),
        "filter_responses": signed(own).numpy(),
        "principal_responses": signed(components).numpy(),
    }
    return frame(facts, arrays)


def _responses(maps: Tensor, weight: Tensor) -> Responses:
    """Summarise response maps (D, h, w) of filters (D, C, P, Q)."""
    norms = weight.flatten(1).norm(dim=1)
    found = {name: each.tolist() for name, each in response_tensors(maps).items()}
    orders = Orders(
        variance=found.pop("by_spread"),
        norm=norms.argsort(descending=True, stable=True).tolist(),
        index=list(range(len(maps))),
    )
    return Responses(norms=norms.tolist(), **found, orders=orders)


def response_tensors(maps: Tensor) -> dict[str, Tensor]:
    """Return what depends on the image: the fields of `Responses`, and the filters by spread, the largest first."""
    flat = maps.flatten(1)
    spread, most = flat.std(dim=1, correction=0), min(EXTREMES, flat.shape[1])
    high, low = flat.topk(most), flat.topk(most, largest=False)
    return {
        "spread": spread,
        "largest": flat.abs().amax(dim=1),
        "high": high.indices,
        "high_values": high.values,
        "low": low.indices,
        "low_values": low.values,
        "by_spread": spread.topk(len(spread)).indices,
    }


def signed(maps: Tensor) -> Tensor:
    """Scale each of (D, …) by its largest absolute value to bytes, with zero in the middle."""
    largest = maps.flatten(1).abs().amax(dim=1).clamp_min(1e-30).view(-1, *(1,) * (maps.ndim - 1))
    return (127.5 + 127.5 * maps / largest).round().clamp(0, 255).byte()


def pictures(weight: Tensor) -> Tensor:
    """(D, C, P, Q) → (D, P, Q, 3) bytes, scaled per filter; zero is grey."""
    return signed(weight.expand(-1, 3, -1, -1)).permute(0, 2, 3, 1)
