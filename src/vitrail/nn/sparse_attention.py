"""Criss-cross attention: a patch attends to its row, its column and the prefix, in one softmax.

Shapes: B images, n heads, T tokens, p prefix tokens, h×w grid, d values per head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.nn.layout import Layout
from vitrail.nn.query_bias import Bias

__all__ = ["SparseMix"]


class SparseMix:
    """h + w + p scores per patch instead of h·w + p; prefix tokens attend to all tokens."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Bias | None, dropout: float) -> Tensor:
        prefix, grid = layout.prefix, tuple(layout.grid)
        q_grid, k_grid, v_grid = (x[:, :, prefix:].unflatten(2, grid) for x in (q, k, v))  # (B, n, h, w, d)
        q_grid = q_grid * (1 / math.sqrt(q.shape[-1]))
        along_row = q_grid @ k_grid.mT  # (B, n, h, w, w)
        along_column = (q_grid.transpose(2, 3) @ k_grid.transpose(2, 3).mT).transpose(2, 3)  # (B, n, h, w, h)
        to_prefix = q_grid @ k[:, :, None, :prefix].mT  # (B, n, h, w, p)
        # a patch is in both its row and its column: count it once
        twice = torch.eye(grid[0], dtype=torch.bool, device=q.device)[:, None, :]
        along_column = along_column.masked_fill(twice, -math.inf)
        if layout.patch_mask is not None:
            hidden = ~layout.patch_mask.unflatten(1, grid)[:, None]  # (B, 1, h, w)
            # padding still attends to itself: a row without keys would be NaN
            others = ~torch.eye(grid[1], dtype=torch.bool, device=q.device)
            along_row = along_row.masked_fill(hidden.unsqueeze(3) & others, -math.inf)
            along_column = along_column.masked_fill(hidden.mT.unsqueeze(2), -math.inf)
        weights = torch.cat([along_row, along_column, to_prefix], dim=-1).softmax(dim=-1)
        in_row, in_column, in_prefix = weights.split([grid[1], grid[0], prefix], dim=-1)
        mixed = in_row @ v_grid + (in_column.transpose(2, 3) @ v_grid.transpose(2, 3)).transpose(2, 3)
        if not prefix:
            return mixed.flatten(2, 3)
        mixed = mixed + in_prefix @ v[:, :, None, :prefix]
        keys = None if layout.mask is None else layout.mask[:, None, None, :]
        from_prefix = F.scaled_dot_product_attention(q[:, :, :prefix], k, v, attn_mask=keys)
        return torch.cat([from_prefix, mixed.flatten(2, 3)], dim=2)
