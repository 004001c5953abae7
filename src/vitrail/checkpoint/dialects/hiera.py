"""Hiera, SAM 2's backbone among its forms: what timm's and transformers' files of it have in common.

Blocks are counted through all stages there. The first block of a stage, which changes the width, has a projection of
its shortcut, so that weights show the depths; windows and full blocks they do not show.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.checkpoint.dialects.dialect import sizes_of
from vitrail.checkpoint.dialects.table import BACKGROUND, TABLE, WINDOW, Row, Sizes, both
from vitrail.checkpoint.formats.file import Stored
from vitrail.config import Config, PyramidConfig, PyramidStage
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import Learned, Patches, QueryPooling, TiledTable, WindowedAttention

__all__ = [
    "LEARNED",
    "Shape",
    "block_rows",
    "hiera_config",
    "hiera_rows",
    "hiera_said",
    "refuse_hiera",
    "refuse_plain",
    "shape_of",
    "usual_windows",
]

OUR_BLOCK = "stages.{s}.blocks.{i}"


def hiera_rows(project: str, norm: str, mlp: tuple[str, str], window: str) -> tuple[Row, ...]:
    """Return the names of an encoder whose blocks are counted through, given those in which libraries differ."""
    return (
        *both("embedding", f"{{p}}patch_embed.{project}"),
        Row(("position.table",), ("{p}pos_embed",), BACKGROUND, _is_tiled),
        Row(("position.window",), (f"{{p}}{window}",), WINDOW, _is_tiled),
        *block_rows("{p}blocks.{g}", (f"{norm}1", f"{norm}2"), mlp),
    )


def block_rows(block: str, norms: tuple[str, str], mlp: tuple[str, str]) -> tuple[Row, ...]:
    return (
        *both(f"{OUR_BLOCK}.norm1", f"{block}.{norms[0]}"),
        *both(f"{OUR_BLOCK}.shortcut", f"{block}.proj"),
        *both(f"{OUR_BLOCK}.attention.qkv", f"{block}.attn.qkv"),
        *both(f"{OUR_BLOCK}.attention.out", f"{block}.attn.proj"),
        *both(f"{OUR_BLOCK}.norm2", f"{block}.{norms[1]}"),
        *both(f"{OUR_BLOCK}.mlp.fc1", f"{block}.mlp.{mlp[0]}"),
        *both(f"{OUR_BLOCK}.mlp.fc2", f"{block}.mlp.{mlp[1]}"),
    )


LEARNED = Row(("position.table",), ("{p}pos_embed",), TABLE, lambda config: not _is_tiled(config))
"""A table with a row for every patch."""


def _is_tiled(config: Config) -> bool:
    return isinstance(config, PyramidConfig) and isinstance(config.position, TiledTable)


class Shape(NamedTuple):
    """What weights show of a Hiera."""

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    projection: tuple[int, ...]
    """The shape of the patch projection."""
    table: tuple[int, ...]
    """The shape of the positions: of every patch, or of a coarse map."""


def shape_of(stored: Stored, prefix: str, project: str) -> Shape:
    """Return the shape of an encoder whose blocks are counted through: a stage begins where one projects its
    shortcut."""
    own = {name.removeprefix(prefix): tensor for name, tensor in stored.tensors.items() if name.startswith(prefix)}
    numbers = sorted({int(found[1]) for name in own if (found := re.match(r"blocks\.(\d{1,4})\.", name))})
    require(
        numbers == list(range(len(numbers))) and bool(numbers) and "pos_embed" in own,
        f"{stored.path} has no whole series of blocks, or no positions; it is not a whole Hiera",
    )
    starts = [0, *(number for number in numbers if f"blocks.{number}.proj.weight" in own), len(numbers)]
    projection = tuple(own[f"patch_embed.{project}.weight"].shape)
    return Shape(
        depths=tuple(after - before for before, after in pairwise(starts)),
        widths=(projection[0], *(own[f"blocks.{start}.proj.weight"].shape[0] for start in starts[1:-1])),
        projection=projection,
        table=tuple(own["pos_embed"].shape),
    )


def hiera_config(
    path: Path,
    shape: Shape,
    image: Size,
    *,
    heads: tuple[int, ...],
    windows: tuple[int, ...],
    full: tuple[int, ...],
    **settings: Any,
) -> tuple[PyramidConfig, Sizes]:
    """Return the model of some weights, given what they do not show."""
    require(
        len(shape.depths) == len(heads) == len(windows),
        f"{path} has {len(shape.depths)} stages, and its config {len(heads)} numbers of heads and {len(windows)} "
        "windows; one of them is another model's",
    )
    stages = (
        PyramidStage(width=width, depth=depth, num_heads=count, window=None if side == windows[0] else Size.of(side))
        for width, depth, count, side in zip(shape.widths, shape.depths, heads, windows, strict=True)
    )
    tiled = len(shape.table) == 4
    config = PyramidConfig(
        **{
            "image": image,
            "channels": shape.projection[1],
            "embedding": Patches(patch=Size(*shape.projection[2:]), stride=Size(4, 4), padded=True),
            "position": TiledTable(background=Size(*shape.table[2:])) if tiled else Learned(),
            "embedding_norm": False,
            "stages": tuple(stages),
            "attention": WindowedAttention(window=Size.of(windows[0]), shift=False, window_padding="zeros", full=full),
            "merging": QueryPooling(),
            **settings,
        }
    )
    return config, sizes_of(config)


def usual_windows(depths: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the windows of every stage of Hiera itself (arXiv 2306.00989), and its full blocks: in the third stage all
    behind the one that pools, and those of the fourth."""
    return {"windows": (8, *(4 for _ in depths[1:])), "full": tuple(range(sum(depths[:2]) + 1, sum(depths)))}


def refuse_plain(config: PyramidConfig) -> str | None:
    """Refuse what Hiera itself is not."""
    usual = usual_windows(tuple(stage.depth for stage in config.stages))
    windows, full = hiera_said(config)
    if not isinstance(config.position, Learned) or (tuple(windows), full) != (usual["windows"], usual["full"]):
        return "with a row of positions for every patch, its windows are those of Hiera itself"
    if len(config.stages) != 4 or config.mlp_ratio != 4:
        return "it has four stages and an mlp_ratio of 4"
    return None


def hiera_said(config: PyramidConfig) -> tuple[list[int], tuple[int, ...]]:
    """Return the windows of every stage, and the full blocks."""
    attention = config.attention
    assert isinstance(attention, WindowedAttention)
    return [(stage.window or attention.window).height for stage in config.stages], attention.full


def refuse_hiera(config: Config) -> str | None:
    if not isinstance(config, PyramidConfig) or not isinstance(config.merging, QueryPooling):
        return "it is a Hiera, whose blocks pool queries"
    attention = config.attention
    if not isinstance(attention, WindowedAttention) or attention.window_padding != "zeros":
        return "its windows are padded with zeros"
    if config.embedding != Patches(patch=Size(7, 7), stride=Size(4, 4), padded=True):
        return "its patches are of 7x7 pixels, 4 apart, padded"
    sizes = {attention.window, *(stage.window for stage in config.stages if stage.window)}
    return None if all(size.height == size.width for size in sizes) else "its windows are square"
