"""Rotary positions: queries and keys of patches are rotated by angles of row and column; prefix tokens are not.

Shapes: B images, T tokens of which N patches, h heads, d = 2·k values per head in k pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.geometry import Size
from vitrail.nn.layout import Layout
from vitrail.nn.positions import AttentionPosition, LearnedTable
from vitrail.parts import Convention, Rotary, Rotary3d

__all__ = ["AxialRotation", "ClipRotation", "MixedRotation", "RotatedTable", "Rotation"]


@dataclass(frozen=True)
class Rotation:
    """Cosine and sine per token and value, (T, d) or broadcastable to (B, h, T, d)."""

    cos: Tensor
    sin: Tensor
    halves: bool
    """Whether a pair is two values half a head apart; otherwise it is two neighbours."""

    def first(self, tokens: int) -> Rotation:
        """Return the rotation of the first `tokens` tokens."""
        return Rotation(self.cos[..., :tokens, :], self.sin[..., :tokens, :], self.halves)

    def rotate(self, x: Tensor) -> Tensor:
        """(B, h, T, d) → the same shape, with every pair rotated."""
        if self.halves:
            first, second = x.chunk(2, dim=-1)
            partner = torch.cat([-second, first], dim=-1)
        else:
            first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
            partner = torch.stack([-second, first], dim=-1).flatten(-2)
        return x * self.cos + partner * self.sin

    @classmethod
    def of(cls, angles: Tensor, *, prefix: int, halves: bool, dtype: torch.dtype) -> Rotation:
        """Make a rotation from angles (…, N, k); the angles of prefix tokens are zero."""
        angles = F.pad(angles, (0, 0, prefix, 0))
        angles = torch.cat([angles, angles], dim=-1) if halves else angles.repeat_interleave(2, dim=-1)
        return cls(cos=angles.cos().to(dtype), sin=angles.sin().to(dtype), halves=halves)


class AxialRotation(AttentionPosition):
    """Half of the pairs rotate with the row, half with the column, at fixed frequencies; nothing learned.

    Coordinates "index" are the patch's row and column (RoPE-ViT, EVA-02), from an offset, scaled to a reference grid;
    "normalised" are scaled to −1 … 1 on each axis, times 2π (DINOv3).
    """

    def __init__(self, head_width: int, spec: Rotary) -> None:
        super().__init__()
        self.head_width, self.spec = head_width, spec

    def within(self, layout: Layout, like: Tensor) -> Rotation:
        waves = self.head_width // 4
        frequency = self.spec.temperature ** -(torch.arange(waves, device=like.device, dtype=torch.float32) / waves)
        place = layout.centres(like.device)  # (N, 2) or (B, N, 2)
        frame = place.new_tensor(tuple(layout.frame))
        if self.spec.coordinates == "normalised":
            place = 2 * (place + 0.5) / frame - 1
            frequency = 2 * math.pi * frequency
        elif self.spec.reference is not None:
            place = (place + self.spec.offset) / frame * place.new_tensor(tuple(self.spec.reference))
        else:
            place = place + self.spec.offset
        if self.spec.first == "columns":
            place = place.flip(-1)
        angles = (place[..., None] * frequency).flatten(-2)  # (…, N, 2, k/2) → (…, N, k)
        if angles.ndim == 3:
            angles = angles[:, None]  # (B, 1, N, k): the same for every head
        return Rotation.of(angles, prefix=layout.prefix, halves=self.spec.halves, dtype=like.dtype)


class RotatedTable(LearnedTable, AttentionPosition):
    """A learned row per token, added once, and a rotation in every block."""

    def __init__(
        self, grid: Size, width: int, *, prefix_rows: int, convention: Convention, steps: int, rotation: AxialRotation
    ) -> None:
        super().__init__(grid, width, prefix_rows=prefix_rows, convention=convention, steps=steps)
        self.rotation = rotation

    def within(self, layout: Layout, like: Tensor) -> Rotation:
        return self.rotation.within(layout, like)


class ClipRotation(AttentionPosition):
    """Step, row and column turn a third of the values each, as in V-JEPA 2; values that are left over stay."""

    def __init__(self, head_width: int, spec: Rotary3d) -> None:
        super().__init__()
        self.head_width, self.spec = head_width, spec

    def within(self, layout: Layout, like: Tensor) -> Rotation:
        waves = self.spec.pairs(self.head_width)
        frequency = self.spec.temperature ** -(torch.arange(waves, device=like.device, dtype=torch.float32) / waves)
        place = torch.cat([layout.step_of_patches(like.device)[:, None], layout.centres(like.device)], dim=1)  # (N, 3)
        angles = (place[:, :, None] * frequency).repeat(1, 1, 2).flatten(1)  # (N, 3, k) → (N, 6·k)
        angles = F.pad(angles, (0, self.head_width - angles.shape[1], layout.prefix, 0))
        return Rotation(angles.cos().to(like.dtype), angles.sin().to(like.dtype), halves=False)


class MixedRotation(AttentionPosition):
    """Every pair of every head rotates along a learned direction of the plane (RoPE-Mixed); one module per block."""

    def __init__(self, num_heads: int, head_width: int, temperature: float) -> None:
        super().__init__()
        waves = -(-head_width // 4)
        magnitude = temperature ** -(torch.arange(waves) * 4 / head_width)
        angle = torch.rand(num_heads, 1) * 2 * math.pi
        directions = torch.cat([angle.expand(-1, waves), (angle + math.pi / 2).expand(-1, waves)], dim=1)
        length = torch.cat([magnitude, magnitude])
        frequencies = torch.stack([length * directions.sin(), length * directions.cos()])  # rows, columns
        self.frequencies = nn.Parameter(frequencies[..., : head_width // 2].contiguous())  # (2, h, k)

    def within(self, layout: Layout, like: Tensor) -> Rotation:
        place = layout.centres(like.device)
        if place.ndim == 3:
            place = place[:, None]  # (B, 1, N, 2)
        rows, columns = place.unsqueeze(-1).unbind(-2)  # (…, N, 1)
        along_rows, along_columns = self.frequencies.float()[:, :, None]  # (h, 1, k)
        angles = rows * along_rows + columns * along_columns  # (…, h, N, k)
        return Rotation.of(angles, prefix=layout.prefix, halves=False, dtype=like.dtype)
