"""Which kind of position survives which change of grid, measured.

A kind says how alike two places are: the cosine of their rows, of their turned queries and keys, or their bias. That
likeness can survive a change of grid in two ways, and no kind does both:

    place   the same two points of the image are as alike as before: right when the same scene gets more pixels
    step    two patches n apart are as alike as before: right when the same scale gets a wider field
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoint.assess.similarity import PLACES, SimilarityMap, agreement, correlation, similarity_maps
from vitrail.checkpoint.assess.simulate import known_table
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.surgery.resample import Method, resample_relative, resample_table
from vitrail.config import MobileConfig, PyramidConfig, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size, offsets_of
from vitrail.nn.front import build_inside, build_position
from vitrail.nn.layout import Layout
from vitrail.nn.positions import AddedPosition, AttentionPosition, PositionModule
from vitrail.nn.relative import RelativePosition
from vitrail.nn.rotary import Rotation
from vitrail.parts import (
    DecomposedBias,
    Learned,
    NoPosition,
    Position,
    RelativeBias,
    TiledTable,
    WindowedAttention,
    position_variants,
)

__all__ = ["Survival", "learned_table", "survival", "survival_of"]

WIDTH, HEADS = 192, 3
"""Width and heads of the stand-ins for kinds without trained weights: ViT-Ti's."""


@dataclass(frozen=True, kw_only=True)
class Survival:
    """How one kind of position survives a change of grid."""

    kind: str
    place: float
    """Correlation of likeness at the same points of the image, 1 at best."""
    step: float
    """Correlation of likeness at the same offsets in patches, around the middle, 1 at best."""
    unseen: float
    """Share of pairs of patches that are farther apart, in patches, than any pair of training was; 0 where distances
    are scaled with the grid."""
    on_new_grid: str


def survival(old: Size, new: Size, *, method: Method = "timm", seed: int = 0) -> tuple[Survival, ...]:
    """Every kind; learned ones stand on tables whose power falls as 1/f².

    Learned rows are carried by `method`, relative biases by their own convention.
    """
    return tuple(
        _measure(position, *_stand_in(position, old, new, method, seed), old, new)
        for position in position_variants()
        if position != NoPosition()
    )


def survival_of(checkpoint: Checkpoint, new: Size, *, method: Method | None = None) -> Survival:
    """Measure the checkpoint's own kind of position, with its trained weights."""
    config, tensors = checkpoint.config, checkpoint.tensors
    in_blocks = isinstance(config, PyramidConfig) and config.position.acts_on == "scores"
    if isinstance(config, MobileConfig) or in_blocks:
        has = "no positions" if isinstance(config, MobileConfig) else "positions within windows, which stay"
        raise VitrailError(
            f"a {type(config).__name__} has {has}: nothing to carry to another grid; give a ViT's weights"
        )
    position, old = config.position, config.position_grid
    if position.acts_on == "scores" and isinstance(config.attention, WindowedAttention):
        raise VitrailError("biases of windows do not change with the grid; give weights with full attention")
    match position:
        case Learned():
            table = tensors["position.table"][-old.area :].double()
            carry = _learned(table, old, method or position.convention)
        case RelativeBias():
            tables = [tensor for name, tensor in tensors.items() if name.endswith("position.table")]
            carry = _relative(torch.cat(tables, dim=1).double(), old, method or position.convention)
        case DecomposedBias():
            raise VitrailError("DecomposedBias depends on the queries; give weights with another kind of position")
        case TiledTable():
            raise VitrailError("TiledTable is computed for every grid; give weights with another kind of position")
        case NoPosition():
            raise VitrailError("NoPosition has no positions to carry; give weights that have some")
        case _:
            modules = checkpoint.model(dtype=torch.float32).modules()
            found = [module for module in modules if isinstance(module, PositionModule)]
            carry = _computed(found, config.prefix.count)
    return _measure(position, carry(old), carry(new), old, new)


def learned_table(checkpoint: Checkpoint) -> Tensor | None:
    """(N, D): the patches' rows of a learned table; None for other kinds."""
    config = checkpoint.config
    if isinstance(config, MobileConfig) or not isinstance(config.position, Learned):
        return None
    return checkpoint.tensors["position.table"][-config.position_grid.area :]


# ── likeness: a function of the grid ────────────────────────────────────────────────────────────────────────────

Likeness = Callable[[Size], Tensor]
"""A grid → features (N, F), whose cosine is the likeness; or a bias over offsets (2h − 1, 2w − 1)."""


def _stand_in(position: Position, old: Size, new: Size, method: Method, seed: int) -> tuple[Tensor, Tensor]:
    match position:
        case Learned():
            carry = _learned(known_table(old, WIDTH, seed=seed), old, method)
        case RelativeBias():
            table = known_table(offsets_of(old), HEADS, seed=seed)
            carry = _relative(table + table.flip(0), old, position.convention)
        case _:
            config = ViTConfig(width=WIDTH, num_heads=HEADS, position=position)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                module = build_position(config) or build_inside(config)
            assert module is not None
            carry = _computed([module], config.prefix.count)
    return carry(old), carry(new)


def _learned(table: Tensor, old: Size, method: Method) -> Likeness:
    return lambda grid: resample_table(table, old=old, new=grid, method=method)


def _relative(table: Tensor, old: Size, method: Method) -> Likeness:
    def carry(grid: Size) -> Tensor:
        offsets = offsets_of(grid)
        return resample_relative(table, old=old, new=grid, method=method)[: offsets.area].mean(dim=1).view(*offsets)

    return carry


def _computed(modules: list[PositionModule], prefix: int) -> Likeness:
    """Return the features that the modules give the patches of a grid, concatenated over blocks, or the mean bias."""
    biases = [module for module in modules if isinstance(module, RelativePosition)]

    @torch.no_grad()
    def carry(grid: Size) -> Tensor:
        if biases:
            return torch.cat([module.offsets(grid)[0] for module in biases], dim=1).mean(dim=1).view(*offsets_of(grid))
        layout = Layout(grid=grid, frame=grid).with_prefix(prefix)
        return torch.cat([_features(module, layout) for module in modules], dim=-1)[prefix:]

    return carry


def _features(module: PositionModule, layout: Layout) -> Tensor:
    """(T, F): what is added; or cosines and sines of all angles: the cosine of two rows is then the mean cosine of the
    angles between."""
    if isinstance(module, AddedPosition):
        return module(torch.zeros(1, layout.prefix + layout.grid.area, module.width), layout)[0]
    assert isinstance(module, AttentionPosition)
    rotation = module.within(layout, torch.empty(0))
    assert isinstance(rotation, Rotation)
    both = torch.cat([rotation.cos, rotation.sin], dim=-1)  # (T, 2d) or (h, T, 2d)
    return both if both.ndim == 2 else both.transpose(0, 1).flatten(1)


# ── measures ────────────────────────────────────────────────────────────────────────────────────────────────────


def _measure(position: Position, before: Tensor, after: Tensor, old: Size, new: Size) -> Survival:
    for grid in (old, new):
        require(min(grid) > 1, f"a grid of {grid} has no neighbour to step to on one side; give 2x2 or more")
    if position.acts_on == "scores":
        maps = tuple(
            SimilarityMap(place=place, before=_bias_map(before, old, place), after=_bias_map(after, new, place))
            for place in PLACES
        )
    else:
        maps = similarity_maps(before, after, old=old, new=new)
    return Survival(
        kind=position.name,
        place=agreement(maps),
        step=_step(position, before, after, old, new),
        unseen=0.0 if position.stretches else _unseen(old, new),
        on_new_grid=position.describe().on_new_grid,
    )


def _bias_map(bias: Tensor, grid: Size, place: tuple[float, float]) -> Tensor:
    """(h, w): the bias between a place, which may lie between cells, and every cell."""
    axes = []
    for share, side in zip(place, grid, strict=True):
        index = torch.arange(side, dtype=torch.float64) - (share * side - 0.5) + side - 1
        axes.append((index / max(1, side - 1) - 1).clamp(-1, 1))  # −1 … 1 over the 2·side − 1 offsets
    points = torch.stack(torch.meshgrid(*axes, indexing="ij")[::-1], dim=-1)[None]
    return F.grid_sample(bias.double()[None, None], points, align_corners=True)[0, 0]


def _step(position: Position, before: Tensor, after: Tensor, old: Size, new: Size) -> float:
    """Correlation of likeness around a middle cell, over the offsets that both grids have there."""
    reach = Size(*(max(1, min(sides) // 2) for sides in zip(old, new, strict=True)))
    pair = []
    for features, grid in ((before, old), (after, new)):
        row, column = grid.height // 2, grid.width // 2
        if position.acts_on == "scores":
            map_ = _bias_map(features, grid, ((row + 0.5) / grid.height, (column + 0.5) / grid.width))
        else:
            centre = features.double()[row * grid.width + column]
            map_ = F.cosine_similarity(features.double(), centre[None], dim=1).view(*grid)
        rows, columns = ((place - r, place + r) for place, r in zip((row, column), reach, strict=True))
        pair.append(map_[max(0, rows[0]) : rows[1], max(0, columns[0]) : columns[1]])
    return correlation(*pair)


def _unseen(old: Size, new: Size) -> float:
    """Ordered pairs of patches on the new grid that are farther apart on some axis than the old grid is long."""
    seen = 1.0
    for before, after in zip(old, new, strict=True):
        apart = torch.arange(after)
        seen *= ((apart[:, None] - apart).abs() < before).double().mean().item()
    return 1 - seen
