"""SAM's image encoder: what all libraries' files of it have in common.

Windows and full blocks differ in the shapes of their tables of offsets, and a position table has the shape of its grid,
so that weights show almost everything. A window as large as the grid looks like a full block; on the grid of the
weights the two are the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vitrail.checkpoint.dialects.conditions import of_patches_alone
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.table import GRID_LAST, POINTWISE, Row, both
from vitrail.checkpoint.formats.file import Stored
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import (
    AttentionKind,
    DecomposedBias,
    FullAttention,
    Learned,
    MeanPool,
    Mlp,
    NoPosition,
    Patches,
    Position,
    WindowedAttention,
)

__all__ = [
    "NECK_EPS",
    "attention_said",
    "known_bare",
    "patch_of",
    "refuse_sam",
    "sam_fields",
    "sam_rows",
    "shown",
    "windows_said",
]

NECK_EPS = 1e-6
"""Epsilon of the neck's norms, or of the norm in its place, whatever the blocks have."""


def sam_rows(
    block: str, project: str, norm: str, mlp: tuple[str, str], neck: tuple[str, str, str, str]
) -> tuple[Row, ...]:
    """Return the names of an encoder, given those in which SAM's libraries differ."""
    first, norm1, second, norm2 = (f"{{p}}neck.{each}" for each in neck)
    block = f"{{p}}{block}.{{i}}"
    return (
        *both("embedding", f"{{p}}patch_embed.{project}"),
        Row(("position.table",), ("{p}pos_embed",), GRID_LAST, of_patches_alone),
        *both("blocks.{i}.norm1", f"{block}.{norm}1"),
        *both("blocks.{i}.attention.qkv", f"{block}.attn.qkv"),
        Row(("blocks.{i}.attention.position.rows",), (f"{block}.attn.rel_pos_h",)),
        Row(("blocks.{i}.attention.position.columns",), (f"{block}.attn.rel_pos_w",)),
        *both("blocks.{i}.attention.out", f"{block}.attn.proj"),
        *both("blocks.{i}.norm2", f"{block}.{norm}2"),
        *both("blocks.{i}.mlp.fc1", f"{block}.mlp.{mlp[0]}"),
        *both("blocks.{i}.mlp.fc2", f"{block}.mlp.{mlp[1]}"),
        Row(("neck.project.weight",), (f"{first}.weight",), POINTWISE),
        *both("neck.norm1", norm1),
        Row(("neck.conv.weight",), (f"{second}.weight",)),
        *both("neck.norm2", norm2),
    )


# ── what weights show, and what configs say ─────────────────────────────────────────────────────────────────────


def shown(stored: Stored, prefix: str, patch: Size) -> tuple[Position, Size | None, dict[int, Size]]:
    """Return the kind of position, the image of the position table, and what the offsets of each block span."""
    table = stored.tensors.get(f"{prefix}pos_embed")
    require(
        table is None or table.ndim == 4,
        f"{stored.path} has no table of positions with the height and width of a grid, as SAM has; it is not whole",
    )
    spans: dict[int, Size] = {}
    for name, rows in stored.tensors.items():
        found = re.fullmatch(r"(?:blocks|layers)\.(\d+)\.attn\.rel_pos_h", name.removeprefix(prefix))
        columns = stored.tensors.get(f"{name[:-1]}w")
        if found and columns is not None:
            spans[int(found[1])] = Size(*((each.shape[0] + 1) // 2 for each in (rows, columns)))
    relative = DecomposedBias() if spans else None
    if table is None:
        return relative or NoPosition(), None, spans
    grid = Size(*table.shape[1:3])
    return Learned(relative=relative), Size(grid.height * patch.height, grid.width * patch.width), spans


def attention_said(window: int, full: tuple[int, ...], where: str, image: Size, patch: Size) -> AttentionKind:
    """Return the attention that a config says; 0 is no window."""
    if window == 0:
        return FullAttention()
    grid = Size(*(side // step for side, step in zip(image, patch, strict=True)))
    require(
        window <= min(grid),
        f"{where} has windows of {window} on a grid of {grid}, which SAM pads to a whole window and vitrail does not; "
        "give a larger image",
    )
    return WindowedAttention(window=Size.of(window), shift=False, window_padding="zeros", full=full)


def _attention_shown(spans: Mapping[int, Size], grid: Size, path: Any) -> AttentionKind:
    """Return the attention that the tables of offsets show: those of full blocks span the grid."""
    windows = {span for span in spans.values() if span != grid}
    require(
        len(windows) <= 1, f"{path} has tables of offsets for windows of {len(windows)} sizes, and vitrail reads one"
    )
    if not windows:
        return FullAttention()
    full = tuple(sorted(block for block, span in spans.items() if span == grid))
    return WindowedAttention(window=windows.pop(), shift=False, window_padding="zeros", full=full)


def windows_said(attention: AttentionKind) -> dict[str, Any]:
    """Return what all libraries' configs say of windows; 0 is none."""
    if not isinstance(attention, WindowedAttention):
        return {"window_size": 0, "global_attn_indexes": []}
    return {"window_size": attention.window.height, "global_attn_indexes": list(attention.full)}


def patch_of(stored: Stored, prefix: str, project: str) -> Size:
    return Size(*stored.tensors[f"{prefix}patch_embed.{project}.weight"].shape[2:])


def sam_fields(position: Position, attention: AttentionKind, norm_eps: float) -> dict[str, Any]:
    same = norm_eps == NECK_EPS
    return {
        "position": position,
        "attention": attention,
        "norm_eps": norm_eps,
        "final_norm_eps": None if same else NECK_EPS,
        "activation": "gelu",
        "pool": MeanPool(),
    }


def known_bare(stored: Stored, prefix: str, project: str, norm_eps: float, source: str) -> Known:
    """Weights without a config: SAM's own, whose activation and epsilon are always the same."""
    patch = patch_of(stored, prefix, project)
    position, image, spans = shown(stored, prefix, patch)
    if image is None and len(set(spans.values())) == 2:  # the larger are those of full blocks
        image = Size(*(max(sides) * step for sides, step in zip(zip(*spans.values(), strict=True), patch, strict=True)))
    if image is None or not spans:
        raise VitrailError(f"{stored.path} does not show the windows of its SAM; put its config.json beside it")
    grid = Size(image.height // patch.height, image.width // patch.width)
    fields = sam_fields(position, _attention_shown(spans, grid, stored.path), norm_eps)
    return Known(source=source, fields=fields, image=image, assumed=("activation", "norm_eps"))


def refuse_sam(config: Config) -> str | None:
    """Refuse what no library's SAM can express."""
    if not isinstance(config, ViTConfig):
        return "it is a plain Vision Transformer"
    attention = config.attention
    if isinstance(attention, WindowedAttention):
        if attention.shift or attention.window_padding != "zeros" or attention.window.height != attention.window.width:
            return f"its windows are square, not shifted, and padded with zeros, and here is {attention}"
        if any(window > side for window, side in zip(attention.window, config.grid, strict=True)):
            return f"its windows of {attention.window} are padded on a grid of {config.grid}, and here they are smaller"
    elif not isinstance(attention, FullAttention):
        return f"its attention is in windows or full, not {type(attention).__name__}"
    if not isinstance(config.mlp, Mlp) or not isinstance(config.embedding, Patches):
        return "its MLP is not gated, and its patches are plain"
    own = config.norm_eps if config.final_norm_eps is None else config.final_norm_eps
    if own != NECK_EPS:
        return f"its last norms have an epsilon of {NECK_EPS:g}, and here it is {own:g}"
    return None
