"""Windowed attention: patches attend within windows of the grid, and to the prefix; the prefix attends to all tokens.

A grid that windows do not divide is padded, either with masked tokens, so that padding changes nothing, or with zeros
that take part in attention, as in timm's Swin. Shifted windows wrap around, with a mask between the wrapped parts.

Shapes: B images, n heads, T tokens, p prefix tokens, h×w grid, W windows of m patches, d values per head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.geometry import Size, Windows
from vitrail.nn.layout import Layout
from vitrail.nn.query_bias import Bias, QueryBias

__all__ = ["CutGrid", "Padding", "WindowedMix"]

Padding = tuple[Tensor, Tensor]
"""Key and value, (1, n, 1, d) each, of the patches that pad a window."""


class WindowedMix:
    """Windows no larger than the grid; shifted by half of their size on axes that have more than one.

    With `zeros_for`, padding takes part in attention, and windows and shifts are those of that grid, the config's, for
    any image.
    """

    def __init__(self, window: Size, *, shifted: bool, zeros_for: Size | None = None) -> None:
        self.window, self.shifted, self.zeros_for = window, shifted, zeros_for

    def windows(self, layout: Layout) -> CutGrid:
        frame, zeros = self.zeros_for or layout.frame, self.zeros_for is not None
        return CutGrid.of(layout.grid, self.window, frame=frame, shifted=self.shifted, zeros=zeros)

    def needs_padding(self, layout: Layout) -> bool:
        """Return whether patches attend to padding; the call then needs its key and value."""
        return self.zeros_for is not None and self.windows(layout).padded != layout.grid

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layout: Layout,
        bias: Bias | None,
        dropout: float,
        padding: Padding | None = None,
    ) -> Tensor:
        prefix, heads = layout.prefix, q.shape[1]
        windows = self.windows(layout)
        key, value = padding or (None, None)
        q_parts, k_parts, v_parts = (
            windows.split(x[:, :, prefix:], fill) for x, fill in ((q, None), (k, key), (v, value))
        )  # (B, W, n, m, d)
        if isinstance(bias, QueryBias):
            bias = bias.each(windows.split).whole()  # (B, W, n, m, m)
        allowed = windows.allowed(layout.patch_mask, q.device)  # (B or 1, W, 1, m, m), or None if all may attend
        scores = _join(bias, allowed)
        if prefix:
            count = k_parts.shape[1]
            k_parts = torch.cat([k[:, None, :, :prefix].expand(-1, count, -1, -1, -1), k_parts], dim=3)
            v_parts = torch.cat([v[:, None, :, :prefix].expand(-1, count, -1, -1, -1), v_parts], dim=3)
            if scores is not None:
                scores = F.pad(scores, (prefix, 0), value=0.0 if scores.is_floating_point() else True)
        if scores is not None:  # one batch of windows: (B·W, n, m, m + p)
            scores = scores.expand(q.shape[0], windows.across.area, *scores.shape[-3:]).flatten(0, 1)
        parts = (x.flatten(0, 1) for x in (q_parts, k_parts, v_parts))
        mixed = F.scaled_dot_product_attention(*parts, attn_mask=scores, dropout_p=dropout)
        mixed = windows.join(mixed.view(q.shape[0], windows.across.area, heads, -1, q.shape[-1]))
        if not prefix:
            return mixed
        keys = None if layout.mask is None else layout.mask[:, None, None, :]
        from_prefix = F.scaled_dot_product_attention(q[:, :, :prefix], k, v, attn_mask=keys, dropout_p=dropout)
        return torch.cat([from_prefix, mixed], dim=2)


def _join(bias: Tensor | None, allowed: Tensor | None) -> Tensor | None:
    if bias is None or allowed is None:
        return allowed if bias is None else bias
    return bias.masked_fill(~allowed, -math.inf)


class CutGrid(Windows):
    """Split a grid into windows and join them again. The frame decides on windows, so that padding changes nothing.

    With `zeros`, the grid is shifted before it is padded, as in timm: the padding is then at the bottom and right of
    the wrapped patches instead of being shifted with them.
    """

    def split(self, x: Tensor, fill: Tensor | None = None) -> Tensor:
        """(B, n, h·w, d) → (B, W, n, m, d), padded with zeros or with `fill` (1, n, 1, d)."""
        x = x.unflatten(2, tuple(self.grid))
        x = self._pad(self._roll(x), fill) if self.zeros else self._roll(self._pad(x, fill))
        x = x.unflatten(3, (self.across.width, -1)).unflatten(2, (self.across.height, -1))  # (B, n, a, m₁, b, m₂, d)
        return x.permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(1, 2)

    def join(self, x: Tensor) -> Tensor:
        """(B, W, n, m, d) → (B, n, h·w, d)."""
        x = x.unflatten(3, tuple(self.window)).unflatten(1, tuple(self.across))  # (B, a, b, n, m₁, m₂, d)
        x = x.permute(0, 3, 1, 4, 2, 5, 6).flatten(4, 5).flatten(2, 3)  # (B, n, h, w, d)
        height, width = self.grid
        if self.zeros:
            x = self._roll(x[:, :, :height, :width], back=True)
        else:
            x = self._roll(x, back=True)[:, :, :height, :width]
        return x.flatten(2, 3)

    def allowed(self, patch_mask: Tensor | None, device: torch.device) -> Tensor | None:
        """Return (B or 1, W, 1, m, m): which patches of a window may attend to which; None if all may."""
        if not any(self.shift) and (self.zeros or (patch_mask is None and self.padded == self.grid)):
            return None
        # wrapped patches attend only to patches that wrapped with them; only the last windows contain both
        rows, columns = (
            torch.arange(side, device=device) >= side - shift
            for side, shift in zip(self.padded, self.shift, strict=True)
        )
        region = self._plain_split((2 * rows.long()[:, None] + columns.long())[None])  # (1, W, m)
        same_region = region[..., :, None] == region[..., None, :]
        if self.zeros:
            return same_region.unsqueeze(2)
        real = torch.ones(1, *self.grid, dtype=torch.bool, device=device)
        if patch_mask is not None:
            real = patch_mask.unflatten(1, tuple(self.grid))
        real = F.pad(real, (0, self.padded.width - self.grid.width, 0, self.padded.height - self.grid.height))
        if any(self.shift):
            real = real.roll((-self.shift[0], -self.shift[1]), dims=(1, 2))
        real = self._plain_split(real)  # (B or 1, W, m)
        # padding still attends to itself: a row without keys would be NaN
        diagonal = torch.eye(region.shape[-1], dtype=torch.bool, device=device)
        return (same_region & real[..., None, :] | diagonal).unsqueeze(2)

    def _roll(self, x: Tensor, *, back: bool = False) -> Tensor:
        """Shift (B, n, h, w, d) up and to the left, or back."""
        if not any(self.shift):
            return x
        return x.roll(self.shift if back else (-self.shift[0], -self.shift[1]), dims=(2, 3))

    def _pad(self, x: Tensor, fill: Tensor | None) -> Tensor:
        """(B, n, h, w, d) → (B, n, h′, w′, d), padded at the bottom and right."""
        below, right = self.padded.height - self.grid.height, self.padded.width - self.grid.width
        if fill is None:
            return F.pad(x, (0, 0, 0, right, 0, below)) if below or right else x
        fill = fill.to(x.dtype)[:, :, None]  # (1, n, 1, 1, d)
        if right:
            x = torch.cat([x, fill.expand(x.shape[0], -1, self.grid.height, right, -1)], dim=3)
        if below:
            x = torch.cat([x, fill.expand(x.shape[0], -1, below, self.padded.width, -1)], dim=2)
        return x

    def _plain_split(self, x: Tensor) -> Tensor:
        """(B, h, w), already rolled → (B, W, m)."""
        x = x.unflatten(2, (self.across.width, -1)).unflatten(1, (self.across.height, -1))
        return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)
