"""Tensor → tensor: position tables and relative-bias tables, from one grid to another.

Everything here is linear and separable: a method is one matrix per axis, and `axis_matrix` shows it.

Shapes: N rows of a grid, D width, h heads; a window of r×c has (2r − 1)·(2c − 1) offsets.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import require
from vitrail.geometry import Size, offsets_of
from vitrail.nn.resample import resample_grid, resample_offsets
from vitrail.parts import Convention, RelativeConvention

__all__ = [
    "METHODS",
    "Method",
    "along_axes",
    "axis_matrix",
    "cosines",
    "cut_relative",
    "method_of",
    "resample_relative",
    "resample_table",
]

Method = Literal["timm", "huggingface", "dinov2", "torchvision", "big_vision", "siglip2", "bilinear", "area", "exact"]

METHODS: dict[Method, str] = {
    "timm": "bicubic, antialiased: timm's, and DINOv2's with registers",
    "huggingface": "bicubic: transformers' for ViT, DINOv2, BEiT, CLIP, I-JEPA",
    "dinov2": "bicubic by scale factors with 0.1 added to the new side: DINO's and DINOv2's own",
    "torchvision": "bicubic, the corners aligned: torchvision's interpolate_embeddings",
    "big_vision": "linear, the corners aligned, in float64: big_vision's and vision_transformer's (scipy zoom)",
    "siglip2": "linear, antialiased: transformers' for SigLIP 2, and FlexiViT's (jax.image.resize)",
    "bilinear": "linear, not antialiased",
    "area": "the mean over the area that a new cell covers",
    "exact": "the table's cosine series read at the new centres, in float64: up and back is the identity",
}
"""Every method with what it does."""

ALIASES = {"hf": "huggingface", "bicubic": "huggingface", "scipy": "big_vision", "flexi": "siglip2"}


def method_of(name: str) -> Method:
    """Return a method by its name or alias (hf)."""
    found = ALIASES.get(name, name) if isinstance(name, str) else None
    require(found in METHODS, f"method {name!r} is unknown; use one of {', '.join(METHODS)}")
    return found  # type: ignore[return-value]


def resample_table(table: Tensor, *, old: Size, new: Size, method: Method = "timm") -> Tensor:
    """(old.area, D) → (new.area, D), in the table's dtype; the same grid returns the same object.

    The table has no prefix rows: split them off first. Computed in float32 at least, `exact` in float64.
    """
    require(
        table.ndim == 2 and table.shape[0] == old.area,
        f"a table of shape {tuple(table.shape)} is not on a grid of {old}, which has {old.area} rows; "
        "give the grid it was trained on",
    )
    method = method_of(method)
    if old == new:
        return table
    if method in get_args(Convention):
        return resample_grid(table, old=old, new=new, convention=method)  # type: ignore[arg-type]
    if method == "exact":
        rows, columns = (cosine_matrix(*sides) for sides in zip(old, new, strict=True))
        return along_axes(table.double(), rows, columns).to(table.dtype)
    precise = torch.promote_types(table.dtype, torch.float32)
    image = table.to(precise).T.reshape(1, -1, *old)  # (1, D, h, w)
    image = F.interpolate(image, size=tuple(new), mode="area" if method == "area" else "bilinear")
    return image.flatten(2)[0].T.to(table.dtype)


def along_axes(table: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(h·w, D) by (r, h) and (s, w) → (r·s, D): one axis after the other."""
    height, width = rows.shape[1], columns.shape[1]
    by_rows = (rows @ table.reshape(height, -1)).view(rows.shape[0], width, -1)  # (r, w, D)
    return (columns @ by_rows).flatten(0, 1)


def cosine_matrix(old: int, new: int) -> Tensor:
    """(new, old) in float64: the cosine series of `old` samples (DCT-II), read at the centres of `new` cells.

    Upsampling adds no frequencies; downsampling keeps those that the new grid can represent. So up and back is the
    identity, and down and up is a projection.
    """
    kept = torch.arange(min(old, new), dtype=torch.float64)
    waves = cosines(old, kept)  # (k, old), orthonormal rows
    scale = math.sqrt(new / old)  # orthonormal on both grids, so that a constant is unchanged
    return scale * cosines(new, kept).T @ waves


def cosines(samples: int, waves: Tensor) -> Tensor:
    """(k, samples): orthonormal cosines of `waves` half periods over a side, at the cells' centres."""
    place = (torch.arange(samples, dtype=torch.float64) + 0.5) / samples
    length = ((2 - (waves == 0).double()) / samples).sqrt()
    return length[:, None] * torch.cos(math.pi * waves[:, None] * place)


def axis_matrix(old: int, new: int, method: Method) -> Tensor:
    """(new, old) in float64: a method's matrix along one axis of a grid."""
    probe = torch.eye(old, dtype=torch.float64).repeat_interleave(2, dim=0)  # the same in both columns of (old, 2)
    resampled = resample_table(probe, old=Size(old, 2), new=Size(new, 3), method=method)
    return resampled.view(new, 3, old)[:, 1]


# ── relative biases ─────────────────────────────────────────────────────────────────────────────────────────────


def resample_relative(table: Tensor, *, old: Size, new: Size, method: Method = "timm") -> Tensor:
    """((2r − 1)(2c − 1) [+ 3], h) → the same for another grid or window; BEiT's three prefix entries are kept.

    timm and huggingface resample as those libraries do: timm keeps near offsets, counted in patches, and spreads the
    far ones; huggingface is bilinear. The other methods treat the offsets as a grid. All but timm scale offsets with
    the grid, so that a bias belongs to a distance in the image.
    """
    before, after = offsets_of(old), offsets_of(new)
    entries = table.shape[0] - before.area
    require(
        table.ndim == 2 and entries in (0, 3),
        f"a bias of shape {tuple(table.shape)} is not on a grid of {old}, which has {before.area} offsets "
        "(and 3 for a prefix); give the grid it was trained on",
    )
    if old == new:
        return table
    offsets, prefix = table.split([before.area, entries])
    if method in get_args(RelativeConvention):
        offsets = resample_offsets(offsets, old=before, new=after, convention=method)  # type: ignore[arg-type]
    else:
        offsets = resample_table(offsets, old=before, new=after, method=method)
    return torch.cat([offsets, prefix])


def cut_relative(table: Tensor, *, old: Size, new: Size) -> Tensor:
    """Return the entries for the offsets of a smaller window."""
    before, after = offsets_of(old), offsets_of(new)
    offsets, prefix = table.split([before.area, table.shape[0] - before.area])
    top, left = old.height - new.height, old.width - new.width
    image = offsets.view(*before, -1)[top : top + after.height, left : left + after.width]
    return torch.cat([image.flatten(0, 1), prefix])
