"""The JSON of the attention room: numbers per head, and the facts beside the maps."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from pydantic import BaseModel

from vitrail.geometry import Size
from vitrail.server.formulas import Formula, short
from vitrail.server.plans import Pair

__all__ = ["LayerHeads", "MapFacts", "Places", "RowFacts", "TokenFacts", "head_formulas", "places_of", "same_places"]


class LayerHeads(BaseModel):
    """The heads of one layer; distances in pixels of the model's input, entropies in bits."""

    name: str
    grid: Pair
    distance: list[float]
    mean_distance: float
    entropy: list[float]
    mean_entropy: float
    effective_tokens: list[float]
    """The number of equally weighted tokens with the same entropy: 2 to the power of the entropy."""
    even_distance: float
    even_entropy: float
    """Distance and entropy of a head with equal weights."""
    formulas: list[Formula]
    """Of one head's figures, whose values complete them."""


def head_formulas(grid: Size, prefix: Sequence[str], step: tuple[float, float], head_width: int) -> list[Formula]:
    """Return how the figures of a head are computed; they end with "=", since a value belongs to a head and a query."""
    tokens = len(prefix) + grid.area
    letters = {"q": "the query's vector", "k": "a key's vector", "d": "width of a head", "w": "a weight of the row"}
    row = "softmax(q · k / √d)"
    keys = f"softmax over {short(tokens)} keys, √d = √{head_width}"
    rows = f"mean over the rows of {short(grid.area)} patches"
    own = [
        Formula(name=f"weight on {name}", symbols=row, where=letters, numbers=f"{keys}, the key of {name} =")
        for name in prefix
    ]
    return [
        Formula(
            name="largest weight",
            symbols=f"max {row}",
            where=letters,
            numbers=f"{keys}, the largest of the {short(grid.area)} patches =",
        ),
        *own,
        Formula(
            name="mean distance",
            symbols="Σ w · distance / Σ w",
            where={"w": "weight of a patch"},
            numbers=f"{rows}, which are {short(step[0])} × {short(step[1])} px =",
        ),
        Formula(
            name="mean entropy",
            symbols="− Σ w · log₂ w",
            where=letters,
            numbers=f"mean over the rows of {short(tokens)} tokens, at most log₂ {tokens} = {log2(tokens):.2f} bits; "
            "here =",
        ),
    ]


class Places(BaseModel):
    """Cells at the same place of the first layer's grid and another: a pyramid's later stages have coarser grids."""

    from_first: list[int]
    """The cell of this grid for each cell of the first layer's grid."""
    to_first: list[int]
    """The cell of the first layer's grid for each cell of this grid."""


def places_of(first: Size, grid: Size) -> Places:
    return Places(from_first=same_places(first, grid), to_first=same_places(grid, first))


def same_places(old: Size, new: Size) -> list[int]:
    """Return, for each cell of the old grid, the cell of the new grid that contains its top left corner."""
    rows = [row * new.height // old.height for row in range(old.height)]
    columns = [column * new.width // old.width for column in range(old.width)]
    return [row * new.width + column for row in rows for column in columns]


class MapFacts(BaseModel):
    grids: list[Pair]
    """Rows and columns, by layer."""
    places: dict[str, Places]
    """By grid, with keys such as "14x20"."""
    prefix: list[str]
    tokens: int
    """Tokens in the first layer."""
    default_token: int
    """The query unless another token is chosen: CLS, or the patch in the middle."""
    whole: bool
    """Whether the frame has every row; otherwise /attention/row returns the rows of one token."""


class RowFacts(BaseModel):
    subject: str
    """Image, weights and size, so that the page never mixes rows of two images."""
    token: int


class TokenFacts(BaseModel):
    places: Places
    shares: tuple[float, ...]
    """The share of the variance that each of the three components explains."""
    outliers: int
