"""What is said of attention in numbers, and beside its maps."""

from __future__ import annotations

from pydantic import BaseModel

from vitrail.studio.plans import Pair

__all__ = ["LayerHeads", "MapFacts", "RowFacts", "TokenFacts"]


class LayerHeads(BaseModel):
    """One layer's heads; distances in pixels of the image as the model sees it, entropies in bits."""

    name: str
    grid: Pair
    distance: list[float]
    mean_distance: float
    entropy: list[float]
    mean_entropy: float
    effective_tokens: list[float]
    """How many tokens of equal share are as wide as a head: 2 to the power of its entropy."""
    even_distance: float
    even_entropy: float
    """Distance and entropy of a head that weighs everything alike."""


class MapFacts(BaseModel):
    grids: list[Pair]
    """Rows and columns, by layer."""
    prefix: list[str]
    tokens: int
    """In the first layer."""
    opening: int
    """The token that asks unless another is chosen: CLS, or the patch in the middle."""
    whole: bool
    """Whether every row is here; otherwise /attention/row has one token's at a time."""


class RowFacts(BaseModel):
    token: int


class TokenFacts(BaseModel):
    grid: Pair
    shares: tuple[float, ...]
    """How much of the variance each of the three components has."""
    outliers: int
    layer: int
