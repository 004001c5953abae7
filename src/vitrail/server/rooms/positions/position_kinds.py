"""Every kind of position embedding, and how similar it makes the patches of a grid."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from vitrail.config import Config, PyramidConfig, ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import Learned, Mlp, NoPosition, Patches, Position, RelativeBias, position_variants
from vitrail.server.arrays import Levels
from vitrail.server.controls import Loaded, choice, number
from vitrail.server.own_position import own_position
from vitrail.server.session import Session

if TYPE_CHECKING:
    import numpy as np

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
    "measured_key",
    "plain_vit",
    "position_of",
]

# Variants with equal words differ only on another grid, which this room does not draw: the first of them is shown.
POSITIONS: dict[str, Position] = {}
for _variant in position_variants():
    POSITIONS.setdefault(re.sub("[^a-z0-9]+", "_", _variant.describe().words.lower()), _variant)


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
MAX_PATCHES = 1400


class Question(Loaded):
    """Two kinds of position on one grid, and a patch of it."""

    kind: Kind = choice("own", label="Positions", about="The kind on the left", words=WORDS)
    other_kind: Kind = choice("2d_sines", label="Compare with", about="The kind on the right", words=WORDS)
    grid_rows: int = number(
        0,
        0,
        40,
        zero="auto",
        label="Rows",
        about="Rows of patches; a learned table is resampled to the grid; auto (0): the model's own",
    )
    grid_columns: int = number(
        0, 0, 40, zero="auto", label="Columns", about="Columns of patches; auto (0): the model's own"
    )
    cell_row: int = number(2, 0, 39, label="Row of the patch", about="Row of the chosen patch, from 0")
    cell_column: int = number(
        3,
        0,
        39,
        label="Column of the patch",
        about="Column of the chosen patch, from 0",
    )
    position_layer: int = number(0, 0, 63, label="Layer", about="For positions that differ by layer; index from 0")
    position_head: int = number(
        -1, -1, 63, label="Head", about="For positions that differ by head; −1 is the mean of all heads"
    )


def grid_of(asked: Question, session: Session) -> Size:
    """Return the chosen grid; 0 is the model's own number of rows or columns."""
    own = session.config(asked.weights).position_grid
    grid = Size(asked.grid_rows or own.height, asked.grid_columns or own.width)
    require(grid.area <= MAX_PATCHES, f"a grid of {grid} has {grid.area:,} patches; use at most {MAX_PATCHES:,}")
    return grid


def position_of(kind: str, config: Config) -> Position | None:
    """Return the position embedding of a kind; None for the windows of a pyramid."""
    if kind != "own":
        return POSITIONS[kind]
    return own_position(config)


def differs_by_head(position: Position | None) -> bool:
    """Whether layers and heads have different positions, as the windows of a pyramid do."""
    return position is None or (position.acts_on != "tokens" and is_learned(position))


def plain_base(config: Config, session: Session) -> ViTConfig:
    """Return a ViT with the model's width, heads and prefix: those where a pyramid has its table, and the bundled
    model's for windows."""
    if isinstance(config, ViTConfig):
        return config
    base = session.planned("default")
    if not isinstance(config, PyramidConfig) or not isinstance(config.position, Learned):
        return base
    first = config.stages[0]
    return base.but(width=first.width, num_heads=first.num_heads, prefix=config.prefix, pool=config.pool)


def plain_vit(config: Config, grid: Size, position: Position, session: Session, **changes: Any) -> ViTConfig:
    """Return a ViT on a grid with the width and heads of the model."""
    base = plain_base(config, session)
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
    """Similarity against distance, over all pairs of different patches."""

    distances: list[int]
    means: list[float]
    spreads: list[float]
    pairs: list[int]
    correlation: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The similarities of one kind on a grid, and their statistics."""

    grid: Size
    """The grid, or the window's for a model with windows."""
    measure: str
    share: float
    """The share of the similarity's variance that the offset explains."""
    curve: Curve | None
    """None for a grid of one patch."""
    maps: np.ndarray | Levels
    """(rows, columns, rows, columns)"""
    offsets: np.ndarray | Levels
    """(2 · rows − 1, 2 · columns − 1): means by offset."""


def measured_key(kind: str, asked: Question, session: Session) -> Hashable:
    """Return what the similarities of a kind depend on."""
    by_head = differs_by_head(position_of(kind, session.config(asked.weights)))
    layer, head = (asked.position_layer, asked.position_head) if by_head else (0, -1)
    return ("positions", asked.weights, kind, grid_of(asked, session), layer, head)


def measure_kind(kind: str, asked: Question, session: Session) -> Measured:
    key = _, weights, _, grid, layer, head = measured_key(kind, asked, session)  # type: ignore[misc]

    def measure() -> Measured:
        from vitrail.look.offsets import by_distance, by_offset

        similarity = _similarity(kind, weights, session, grid, layer, head)
        offsets = by_offset(similarity)
        return Measured(
            grid=similarity.grid,
            measure=similarity.measure,
            share=offsets.share,
            curve=None if similarity.grid.area == 1 else Curve(**asdict(by_distance(offsets))),
            maps=similarity.values.numpy(),
            offsets=offsets.means.numpy(),
        )

    return session.once(key, measure)


def _similarity(kind: str, weights: str, session: Session, grid: Size, layer: int, head: int) -> PositionSimilarity:
    import torch

    from vitrail.look.positions import PositionSimilarity, position_similarity
    from vitrail.nn.vit import ViT

    config, chosen_head = session.config(weights), None if head < 0 else head
    if position_of(kind, config) == NoPosition():  # equal tokens are equal at every position
        measure = "q·k of equal tokens, over |q||k|"
        return PositionSimilarity(values=torch.ones(*grid, *grid), kind="none", measure=measure)
    if kind == "own":
        model = session.subject("default", weights).model
        similarity = position_similarity(model, grid=grid, layer=layer, head=chosen_head)
    else:
        plain = plain_vit(config, grid, POSITIONS[kind], session, depth=1, mlp=Mlp(width=1), classes=0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(layer)
            similarity = position_similarity(ViT(plain), head=chosen_head)
    return replace(similarity, values=similarity.values.float())
