"""Every kind of position on a grid, and how alike it makes places there."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from vitrail.config import Config, ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import Mlp, NoPosition, Patches, Position, RelativeBias, position_variants
from vitrail.studio.controls import Loaded, choice, number
from vitrail.studio.session import Session

if TYPE_CHECKING:
    from vitrail.look.offsets import ByOffset
    from vitrail.look.positions import PositionSimilarity

__all__ = [
    "WORDS",
    "Curve",
    "Measured",
    "Question",
    "differs_by_head",
    "grid_of",
    "is_learned",
    "measure_kind",
    "plain_vit",
    "position_of",
]

# The settings of a kind that read alike differ on another grid only, which is not drawn here.
POSITIONS: dict[str, Position] = {
    re.sub("[^a-z0-9]+", "_", each.describe().words.lower()): each for each in reversed(position_variants())
}
POSITIONS = dict(reversed(POSITIONS.items()))


def is_learned(position: Position) -> bool:
    return ViTConfig(position=position).position_parameters > 0


WORDS = {"own": "The model's own"} | {
    key: each.describe().words[0].upper() + each.describe().words[1:] + (", untrained" if is_learned(each) else "")
    for key, each in POSITIONS.items()
}
if TYPE_CHECKING:
    Kind = str
else:
    Kind = Literal[tuple(WORDS)]
MAX_PLACES = 1400


class Question(Loaded):
    """Two kinds of position on one grid, and a place on it."""

    kind: Kind = choice("own", label="Positions", about="The kind that is shown first", words=WORDS)
    other_kind: Kind = choice("2d_sines", label="Beside them", about="The kind to compare with", words=WORDS)
    grid_rows: int = number(8, 1, 40, label="Rows", about="Of the grid of patches; a learned table is carried to it")
    grid_columns: int = number(8, 1, 40, label="Columns", about="Of the grid of patches")
    cell_row: int = number(2, 0, 39, label="Row of the patch", about="Whose similarity with all others is shown")
    cell_column: int = number(3, 0, 39, label="Column of the patch", about="From 0, at the left")
    position_layer: int = number(
        0, 0, 63, label="Layer", about="Where every layer has positions of its own; 0 is the first"
    )
    position_head: int = number(
        -1, -1, 63, label="Head", about="Where every head has positions of its own; −1 is the mean of all"
    )


def grid_of(asked: Question) -> Size:
    grid = Size(asked.grid_rows, asked.grid_columns)
    require(grid.area <= MAX_PLACES, f"a grid of {grid} has {grid.area:,} places; use one of at most {MAX_PLACES:,}")
    return grid


def position_of(kind: str, config: Config) -> Position | None:
    """None for a pyramid's windows."""
    if kind != "own":
        return POSITIONS[kind]
    return config.position if isinstance(config, ViTConfig) else None


def differs_by_head(position: Position | None) -> bool:
    """Whether every layer or head has positions of its own; a pyramid's windows do."""
    return position is None or (position.acts_on != "tokens" and is_learned(position))


def plain_vit(config: Config, grid: Size, position: Position, here: Session, **changes: Any) -> ViTConfig:
    """A ViT of the model's width and heads on a grid; a pyramid has no one width, so the bundled model's are taken."""
    base = config if isinstance(config, ViTConfig) else here.planned("default")
    if isinstance(position, RelativeBias) and not base.prefix.count:
        position = replace(position, prefix=False)
    return ViTConfig(
        image=grid,
        embedding=Patches(patch=Size(1, 1)),
        prefix=base.prefix,
        pool=base.pool,
        position=position,
        width=base.width,
        num_heads=base.num_heads,
        **changes,
    )


class Curve(BaseModel):
    """Similarity against distance on the grid, over all pairs of different patches."""

    distances: list[int]
    means: list[float]
    spreads: list[float]
    pairs: list[int]
    correlation: float


@dataclass(frozen=True)
class Measured:
    """A kind on a grid, with what follows from it."""

    similarity: PositionSimilarity
    offsets: ByOffset
    curve: Curve | None


def measure_kind(kind: str, asked: Question, here: Session) -> Measured:
    grid = grid_of(asked)
    several = differs_by_head(position_of(kind, here.config(asked.weights)))
    layer, head = (asked.position_layer, asked.position_head) if several else (0, -1)
    key = ("positions", asked.weights, kind, grid, layer, head)

    def measure() -> Measured:
        from vitrail.look.offsets import by_distance, by_offset

        found = _compute(kind, asked.weights, here, grid, layer, None if head < 0 else head)
        offsets = by_offset(found)
        curve = None if found.grid.area == 1 else Curve(**asdict(by_distance(offsets)))
        return Measured(found, offsets, curve)

    return here.once(key, measure)


def _compute(kind: str, weights: str, here: Session, grid: Size, layer: int, head: int | None) -> PositionSimilarity:
    import torch

    from vitrail.look.positions import PositionSimilarity, position_similarity
    from vitrail.nn.vit import ViT

    config = here.config(weights)
    if kind == "own":
        if position_of(kind, config) == NoPosition():
            return _alike(grid)
        found = position_similarity(here.subject("default", weights).model, grid=grid, layer=layer, head=head)
    elif kind == "none":
        return _alike(grid)
    else:
        plain = plain_vit(config, grid, POSITIONS[kind], here, depth=1, mlp=Mlp(width=1), classes=0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(layer)
            found = position_similarity(ViT(plain), head=head)
    return PositionSimilarity(values=found.values.float(), kind=found.kind, measure=found.measure)


def _alike(grid: Size) -> PositionSimilarity:
    """Without positions, equal tokens are equal wherever they lie."""
    import torch

    from vitrail.look.positions import PositionSimilarity

    return PositionSimilarity(values=torch.ones(*grid, *grid), kind="none", measure="q·k of equal tokens, over |q||k|")
