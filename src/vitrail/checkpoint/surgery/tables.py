"""Adapt position tables from an old module to a new one: learned tables and relative biases.

Shapes: D width, N patches; a learned table is (prefix rows + N, D), of a clip (prefix rows + steps · N, D).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.checkpoint.surgery.changes import Resized
from vitrail.checkpoint.surgery.resample import Method, axis_matrix, cut_relative, resample_relative, resample_table
from vitrail.config import Config, MobileConfig
from vitrail.geometry import Size, offsets_of
from vitrail.nn.positions import LearnedTable
from vitrail.nn.query_bias import OffsetVectors, resample_vectors
from vitrail.nn.relative import RelativeTable
from vitrail.nn.resample import resample_steps
from vitrail.parts import Learned

__all__ = ["Carried", "carry_position", "prefix_rows"]


class Carried(NamedTuple):
    """A tensor of the new model, which is the old one itself if it is unchanged."""

    tensor: Tensor
    note: str = ""
    resized: Resized | None = None
    fresh: bool = False


def prefix_rows(config: Config) -> tuple[str, ...]:
    """Return the names of the prefix tokens that have a row in the learned table, in order."""
    if isinstance(config, MobileConfig) or not isinstance(config.position, Learned):
        return ()
    prefix = config.prefix
    tokens = ("cls",) * prefix.cls + ("distillation",) * prefix.distillation
    tokens += tuple(f"registers.{index}" for index in range(prefix.registers))
    return tokens[: config.position.prefix_rows(prefix)]


def carry_position(
    name: str,
    tensor: Tensor,
    old: nn.Module | None,
    new: nn.Module,
    *,
    rows: tuple[tuple[str, ...], tuple[str, ...]],
    method: Method | None,
) -> Carried | None:
    """Carry a position module's tensor to the new grid; None if it does not depend on the grid."""
    match old, new:
        case LearnedTable(), LearnedTable():
            return _carry_learned(tensor, old, new, rows=rows, method=method)
        case RelativeTable(), RelativeTable():
            return _carry_relative(tensor, old, new, method=method)
        case OffsetVectors(), OffsetVectors():
            return _carry_vectors(name, tensor, old, new, method=method)
    return None


def _carry_learned(
    table: Tensor,
    old: LearnedTable,
    new: LearnedTable,
    *,
    rows: tuple[tuple[str, ...], tuple[str, ...]],
    method: Method | None,
) -> Carried:
    """Resample the rows of patches; keep prefix rows by their token's name, with zeros for new tokens."""
    before, after = rows
    if (old.grid, old.steps, before) == (new.grid, new.steps, after):
        return Carried(table)
    method = method or old.convention
    prefix, patches = table.split([len(before), old.steps * old.grid.area])
    grids = partial(resample_table, old=old.grid, new=new.grid, method=method)
    resampled = resample_steps(patches, old.steps, grids)
    if old.steps != new.steps:
        resampled = _in_time(resampled, old.steps, new.steps)
    known, zero = dict(zip(before, prefix, strict=True)), table.new_zeros(table.shape[1])
    result = torch.cat([*(known.get(token, zero)[None] for token in after), resampled])
    notes, moved = [], None
    if old.grid != new.grid:
        moved = Resized(what="positions", old=old.grid, new=new.grid, by=method)
        notes.append(f"{old.grid} → {new.grid} by {method}")
    if old.steps != new.steps:
        how = "repeated" if old.steps == 1 else "linearly in time"
        notes.append(f"{old.steps} → {new.steps} steps, {how}")
    if before != after:
        notes.append(f"prefix rows {len(before)} → {len(after)}")
    return Carried(result, "; ".join(notes), moved)


def _in_time(rows: Tensor, old: int, new: int) -> Tensor:
    """(old · N, D) → (new · N, D): linear over the steps, antialiased; the rows of one step are repeated."""
    if old == 1:
        return rows.repeat(new, 1)
    weights = axis_matrix(old, new, "siglip2")
    return (weights @ rows.double().unflatten(0, (old, -1)).flatten(1)).view(-1, rows.shape[1]).to(rows.dtype)


def _carry_relative(table: Tensor, old: RelativeTable, new: RelativeTable, *, method: Method | None) -> Carried:
    """Resample the offsets by the convention. A smaller window keeps its offsets, as when the model runs on a small
    grid; but with zero padding its table is resampled, as timm does. Prefix entries come last."""
    entries = (table.shape[0] - offsets_of(old.grid).area, new.table.shape[0] - offsets_of(new.grid).area)
    if old.grid == new.grid and entries[0] == entries[1]:
        return Carried(table)
    method = method or old.convention
    cut = new.window_padding == "masked" and all(
        after <= before for before, after in zip(old.grid, new.grid, strict=True)
    )
    moved, note = None, f"{entries[0]} prefix entries become {entries[1]}"
    if old.grid == new.grid:
        result = table
    elif cut:
        result, note = cut_relative(table, old=old.grid, new=new.grid), f"{old.grid} → {new.grid}, the near offsets"
    else:
        result = resample_relative(table, old=old.grid, new=new.grid, method=method)
        moved = Resized(what="biases", old=old.grid, new=new.grid, by=method)
        note = f"{old.grid} → {new.grid} by {method} over offsets"
    if entries[0] > entries[1]:
        result = result[: entries[1] - entries[0]]
    elif entries[0] < entries[1]:
        result = torch.cat([result, result.new_zeros(entries[1] - entries[0], result.shape[1])])
    return Carried(result, note, moved)


def _carry_vectors(
    name: str, table: Tensor, old: OffsetVectors, new: OffsetVectors, *, method: Method | None
) -> Carried:
    """Resample the vectors for the offsets along one axis of a grid; a smaller window keeps those of near offsets."""
    rows = name.endswith("rows")
    before, after = (each.span.height if rows else each.span.width for each in (old, new))
    if before == after:
        return Carried(table)
    if new.window_padding is not None and after < before:
        return Carried(table[before - after : before + after - 1], f"{before} → {after} places, the near offsets")
    sides = 2 * before - 1, 2 * after - 1
    if method is None:
        result = resample_vectors(table, sides[1])
    else:
        result = resample_table(table, old=Size(sides[0], 1), new=Size(sides[1], 1), method=method)
    moved = Resized(what="vectors", old=old.span, new=new.span, by=method or "bilinear")
    return Carried(result, f"{before} → {after} places by {method or 'bilinear'} over offsets", moved)
