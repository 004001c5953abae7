"""Hiera, SAM 2's backbone among its forms: what timm's and transformers' files of it have in common.

Blocks are counted through all stages there. The first block of a stage, which changes the width, has a projection of
its shortcut, so that weights show the depths; windows and full blocks they do not show.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from vitrail.checkpoint.dialects.dialect import sizes_of
from vitrail.checkpoint.dialects.table import BACKGROUND, TABLE, WINDOW, Row, Sizes, both
from vitrail.checkpoint.formats.file import Stored
from vitrail.config import Config, PyramidConfig, PyramidStage
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import Learned, Patches, QueryPooling, TiledTable, WindowedAttention

__all__ = ["LEARNED", "depths_of", "hiera_config", "hiera_rows", "hiera_said", "refuse_hiera"]

OUR_BLOCK = "stages.{s}.blocks.{i}"


def hiera_rows(project: str, norm: str, mlp: tuple[str, str], window: str) -> tuple[Row, ...]:
    """Return the names of an encoder, given those in which libraries differ."""
    block = "{p}blocks.{g}"
    return (
        *both("embedding", f"{{p}}patch_embed.{project}"),
        Row(("position.table",), ("{p}pos_embed",), BACKGROUND, _is_tiled),
        Row(("position.window",), (f"{{p}}{window}",), WINDOW, _is_tiled),
        *both(f"{OUR_BLOCK}.norm1", f"{block}.{norm}1"),
        *both(f"{OUR_BLOCK}.shortcut", f"{block}.proj"),
        *both(f"{OUR_BLOCK}.attention.qkv", f"{block}.attn.qkv"),
        *both(f"{OUR_BLOCK}.attention.out", f"{block}.attn.proj"),
        *both(f"{OUR_BLOCK}.norm2", f"{block}.{norm}2"),
        *both(f"{OUR_BLOCK}.mlp.fc1", f"{block}.mlp.{mlp[0]}"),
        *both(f"{OUR_BLOCK}.mlp.fc2", f"{block}.mlp.{mlp[1]}"),
    )


LEARNED = Row(("position.table",), ("{p}pos_embed",), TABLE, lambda config: not _is_tiled(config))
"""A table with a row for every patch."""


def _is_tiled(config: Config) -> bool:
    return isinstance(config, PyramidConfig) and isinstance(config.position, TiledTable)


def depths_of(stored: Stored, prefix: str) -> tuple[int, ...]:
    """Return the blocks of every stage: one begins where a block projects its shortcut."""
    own = [name.removeprefix(prefix) for name in stored.tensors if name.startswith(prefix)]
    numbers = sorted({int(found[1]) for name in own if (found := re.match(r"blocks\.(\d{1,4})\.", name))})
    require(
        numbers == list(range(len(numbers))) and bool(numbers),
        f"{stored.path} has no whole series of blocks; it is not a whole Hiera",
    )
    starts = [0, *(number for number in numbers if f"blocks.{number}.proj.weight" in own), len(numbers)]
    return tuple(after - before for before, after in pairwise(starts))


def hiera_config(
    stored: Stored,
    prefix: str,
    project: str,
    image: Size,
    *,
    heads: tuple[int, ...],
    windows: tuple[int, ...],
    full: tuple[int, ...],
    **settings: Any,
) -> tuple[PyramidConfig, Sizes]:
    """Return the model of some weights, given what they do not show."""
    depths = depths_of(stored, prefix)
    require(
        len(depths) == len(heads) == len(windows),
        f"{stored.path} has {len(depths)} stages, and its config {len(heads)} numbers of heads and {len(windows)} "
        "windows; one of them is another model's",
    )
    weight, table = stored.tensors[f"{prefix}patch_embed.{project}.weight"], stored.tensors[f"{prefix}pos_embed"]
    width, first = weight.shape[0], 0
    stages = []
    for level, depth in enumerate(depths):
        if level:
            width = stored.tensors[f"{prefix}blocks.{first}.proj.weight"].shape[0]
        own = None if windows[level] == windows[0] else Size.of(windows[level])
        stages.append(PyramidStage(width=width, depth=depth, num_heads=heads[level], window=own))
        first += depth
    tiled = table.ndim == 4
    position = TiledTable(background=Size(*table.shape[2:])) if tiled else Learned()
    config = PyramidConfig(
        image=image,
        channels=weight.shape[1],
        embedding=Patches(patch=Size(*weight.shape[2:]), stride=Size(4, 4), padded=True),
        position=position,
        embedding_norm=False,
        stages=tuple(stages),
        attention=WindowedAttention(window=Size.of(windows[0]), shift=False, window_padding="zeros", full=full),
        merging=QueryPooling(),
        **settings,
    )
    return config, sizes_of(config)


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
