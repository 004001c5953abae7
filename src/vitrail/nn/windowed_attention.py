"""Windowed attention: patches attend within windows of the grid, and to the prefix; the prefix attends to all.

A grid that windows do not divide is padded behind a mask; shifted windows wrap around, and what wrapped is masked too.

Shapes: B images, n heads, T tokens, p prefix tokens, h×w grid, W windows of m patches, d values per head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.geometry import Size
from vitrail.nn.layout import Layout

__all__ = ["WindowedMix", "Windows"]


class WindowedMix:
    """Windows no larger than the grid; shifted by half of their size on the axes where there is more than one."""

    def __init__(self, window: Size, *, shifted: bool) -> None:
        self.window, self.shifted = window, shifted

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Tensor | None, dropout: float) -> Tensor:
        prefix, heads = layout.prefix, q.shape[1]
        windows = Windows(layout, self.window, shifted=self.shifted)
        q_parts, k_parts, v_parts = (windows.split(x[:, :, prefix:]) for x in (q, k, v))  # (B, W, n, m, d)
        allowed = windows.allowed(layout.patch_mask, q.device)  # (B or 1, W, 1, m, m), or None where all may
        scores = _join(bias, allowed)
        if prefix:
            count = k_parts.shape[1]
            k_parts = torch.cat([k[:, None, :, :prefix].expand(-1, count, -1, -1, -1), k_parts], dim=3)
            v_parts = torch.cat([v[:, None, :, :prefix].expand(-1, count, -1, -1, -1), v_parts], dim=3)
            if scores is not None:
                scores = F.pad(scores, (prefix, 0), value=0.0 if scores.is_floating_point() else True)
        if scores is not None:  # one batch of windows: (B·W, n, m, m + p)
            scores = scores.expand(q.shape[0], windows.count, *scores.shape[-3:]).flatten(0, 1)
        parts = (x.flatten(0, 1) for x in (q_parts, k_parts, v_parts))
        mixed = F.scaled_dot_product_attention(*parts, attn_mask=scores, dropout_p=dropout)
        mixed = windows.join(mixed.view(q.shape[0], windows.count, heads, -1, q.shape[-1]))
        if not prefix:
            return mixed
        keys = None if layout.mask is None else layout.mask[:, None, None, :]
        from_prefix = F.scaled_dot_product_attention(q[:, :, :prefix], k, v, attn_mask=keys, dropout_p=dropout)
        return torch.cat([from_prefix, mixed], dim=2)


def _join(bias: Tensor | None, allowed: Tensor | None) -> Tensor | None:
    if bias is None or allowed is None:
        return allowed if bias is None else bias
    return bias.masked_fill(~allowed, -math.inf)


class Windows:
    """A grid cut into windows: there and back. The frame decides about windows, so that padding changes nothing."""

    def __init__(self, layout: Layout, window: Size, *, shifted: bool) -> None:
        self.grid, frame = layout.grid, layout.frame
        self.window = Size(min(window.height, frame.height), min(window.width, frame.width))
        self.across = Size(-(-self.grid.height // self.window.height), -(-self.grid.width // self.window.width))
        self.padded = Size(self.across.height * self.window.height, self.across.width * self.window.width)
        self.count = self.across.area
        self.shift = tuple(
            side // 2 if shifted and length > side else 0 for side, length in zip(self.window, frame, strict=True)
        )

    def split(self, x: Tensor) -> Tensor:
        """(B, n, h·w, d) → (B, W, n, m, d)."""
        x = x.unflatten(2, tuple(self.grid))
        if self.padded != self.grid:
            x = F.pad(x, (0, 0, 0, self.padded.width - self.grid.width, 0, self.padded.height - self.grid.height))
        if any(self.shift):
            x = x.roll((-self.shift[0], -self.shift[1]), dims=(2, 3))
        x = x.unflatten(3, (self.across.width, -1)).unflatten(2, (self.across.height, -1))  # (B, n, a, m₁, b, m₂, d)
        return x.permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(1, 2)

    def join(self, x: Tensor) -> Tensor:
        """(B, W, n, m, d) → (B, n, h·w, d)."""
        x = x.unflatten(3, tuple(self.window)).unflatten(1, tuple(self.across))  # (B, a, b, n, m₁, m₂, d)
        x = x.permute(0, 3, 1, 4, 2, 5, 6).flatten(4, 5).flatten(2, 3)  # (B, n, h, w, d)
        if any(self.shift):
            x = x.roll(self.shift, dims=(2, 3))
        return x[:, :, : self.grid.height, : self.grid.width].flatten(2, 3)

    def allowed(self, patch_mask: Tensor | None, device: torch.device) -> Tensor | None:
        """(B or 1, W, 1, m, m): which patches of a window may meet. None where all may."""
        if patch_mask is None and self.padded == self.grid and not any(self.shift):
            return None
        # What wrapped around meets only what wrapped with it; only the last windows hold both.
        rows, columns = (
            torch.arange(side, device=device) >= side - shift
            for side, shift in zip(self.padded, self.shift, strict=True)
        )
        region = self._plain_split((2 * rows.long()[:, None] + columns.long())[None])  # (1, W, m)
        met = region[..., :, None] == region[..., None, :]
        real = torch.ones(1, *self.grid, dtype=torch.bool, device=device)
        if patch_mask is not None:
            real = patch_mask.unflatten(1, tuple(self.grid))
        real = F.pad(real, (0, self.padded.width - self.grid.width, 0, self.padded.height - self.grid.height))
        if any(self.shift):
            real = real.roll((-self.shift[0], -self.shift[1]), dims=(1, 2))
        real = self._plain_split(real)  # (B or 1, W, m)
        # A patch that is not real still meets itself: a row without keys would be NaN.
        itself = torch.eye(region.shape[-1], dtype=torch.bool, device=device)
        return (met & real[..., None, :] | itself).unsqueeze(2)

    def _plain_split(self, x: Tensor) -> Tensor:
        """(B, h, w), already rolled → (B, W, m)."""
        x = x.unflatten(2, (self.across.width, -1)).unflatten(1, (self.across.height, -1))
        return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)
