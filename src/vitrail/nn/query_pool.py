"""Query pooling (Hiera, arXiv 2306.00989): a block whose queries are the maxima of 2×2 patches.

Shapes: B images, N patches on an h×w grid, D width before and E after, n heads, d = E/n, W windows of m patches.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import QkvBias
from vitrail.geometry import Size, halved
from vitrail.nn.block import drop_path
from vitrail.nn.initialise import initialise_table
from vitrail.nn.layout import Layout
from vitrail.nn.mlp import FeedForward, linear
from vitrail.nn.windowed_attention import CutGrid

__all__ = ["PooledAttention", "PoolingBlock", "TiledTables"]


def pooled(x: Tensor, grid: Size) -> Tensor:
    """(…, h·w, D) → (…, h/2·w/2, D): the maximum of every 2×2 patches."""
    x = x.unflatten(-2, (grid.height // 2, 2, grid.width // 2, 2))
    return x.amax(dim=(-4, -2)).flatten(-3, -2)


class PooledAttention(nn.Module):
    """(B, N, D) → (B, N/4, E): pooled queries attend to all patches, or to those of their window."""

    def __init__(
        self, before: int, width: int, num_heads: int, *, window: Size | None, qkv_bias: QkvBias, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads, self.window, self.dropout = num_heads, window, dropout
        self.qkv = linear(before, 3 * width, bias=qkv_bias == "all")
        self.out = linear(width, width)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # (B, n, N, d)
        q = pooled(q, layout.grid)
        mixed = F.scaled_dot_product_attention(q, k, v) if self.window is None else self._in_windows(q, k, v, layout)
        x = self.out(mixed.transpose(1, 2).flatten(2))
        return F.dropout(x, self.dropout, self.training)

    def _in_windows(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Windows of pooled queries are half as large; zeros pad both, and take part as keys and values."""
        assert self.window is not None
        window, smaller = self.window, halved(self.window)  # on a smaller grid too
        whole = CutGrid.of(layout.grid, window, frame=window, zeros=True)
        half = CutGrid.of(halved(layout.grid), smaller, frame=smaller, zeros=True)
        key, value = self._padding(whole)
        q_parts, k_parts, v_parts = half.split(q), whole.split(k, key), whole.split(v, value)  # (B, W, n, …, d)
        mixed = F.scaled_dot_product_attention(q_parts.flatten(0, 1), k_parts.flatten(0, 1), v_parts.flatten(0, 1))
        return half.join(mixed.unflatten(0, (-1, half.across.area)))

    def _padding(self, windows: CutGrid) -> tuple[Tensor | None, Tensor | None]:
        """Return key and value, (1, n, 1, d) each, of a zero token: the projection's biases."""
        if windows.padded == windows.grid or self.qkv.bias is None:
            return None, None
        _, k, v = (part.view(1, self.num_heads, 1, -1) for part in self.qkv.bias.chunk(3))
        return k, v


class PoolingBlock(nn.Module):
    """The first block of a stage: half the grid, another width."""

    def __init__(
        self,
        before: int,
        width: int,
        *,
        attention: PooledAttention,
        mlp: FeedForward,
        norm_eps: float,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(before, eps=norm_eps)
        self.shortcut = linear(before, width)
        self.attention = attention
        self.norm2 = nn.LayerNorm(width, eps=norm_eps)
        self.mlp = mlp
        self.drop_path = drop_path

    def forward(self, x: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        x = self.norm1(x)
        x = pooled(self.shortcut(x), layout.grid) + self._dropped(self.attention(x, layout))
        half = halved(layout.grid)
        return x + self._dropped(self.mlp(self.norm2(x))), replace(layout, grid=half, frame=half)

    def _dropped(self, branch: Tensor) -> Tensor:
        return drop_path(branch, self.drop_path) if self.training else branch


class TiledTables(nn.Module):
    """Add a coarse table, resized to the grid, and a window's table, repeated over it: (B, N, D) → (B, N, D)."""

    def __init__(self, background: Size, window: Size, width: int) -> None:
        super().__init__()
        self.background, self.window_size = background, window
        self.table = nn.Parameter(torch.empty(background.area, width))
        self.window = nn.Parameter(torch.empty(window.area, width))
        for table in (self.table, self.window):
            initialise_table(table.data)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        coarse = self.table.T.unflatten(1, tuple(self.background))[None]  # (1, D, r, c)
        fine = F.interpolate(coarse, size=tuple(layout.grid), mode="bicubic")[0]  # (D, h, w)
        times = [side // own for side, own in zip(layout.grid, self.window_size, strict=True)]
        window = self.window.T.unflatten(1, tuple(self.window_size)).repeat(1, *times)
        return x + (fine + window).flatten(1).T
