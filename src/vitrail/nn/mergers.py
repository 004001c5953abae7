"""The patches of a vision tower → the tokens that a language model receives.

Shapes: B images, T tokens of which the first are the prefix, D width, m rows and columns of patches in a token;
n tokens of the language model, W its width.
"""

from __future__ import annotations

from torch import Tensor, nn

from vitrail import parts
from vitrail.errors import require
from vitrail.nn.layout import Layout
from vitrail.nn.mlp import ACTIVATIONS, linear
from vitrail.nn.norm import Norm, build_norm

__all__ = ["LinearMerging", "MlpMerging", "build_merger"]


class MlpMerging(nn.Module):
    """(B, T, D) → (B, n, W): concatenate m×m patches, then two linear layers."""

    def __init__(self, before: int, spec: parts.MlpMerger) -> None:
        super().__init__()
        joined = before * spec.merge**2
        self.merge, self.norm_merged = spec.merge, spec.norm_merged
        self.norm = _norm(spec, joined if spec.norm_merged else before)
        self.fc1 = linear(joined, spec.mlp_width, bias=spec.bias)
        self.fc2 = linear(spec.mlp_width, spec.width, bias=spec.bias)
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if self.norm is not None and not self.norm_merged:
            x = self.norm(x)
        x = _grouped(x, layout, self.merge)  # (B, rows, m, columns, m, D)
        x = x.transpose(2, 3).flatten(3).flatten(1, 2).contiguous()  # (B, n, m·m·D)
        if self.norm is not None and self.norm_merged:
            x = self.norm(x)
        return self.fc2(self.activation(self.fc1(x)))


class LinearMerging(nn.Module):
    """(B, T, D) → (B, n, W): average m×m patches, then one linear layer."""

    def __init__(self, before: int, spec: parts.LinearMerger) -> None:
        super().__init__()
        self.merge = spec.merge
        self.norm = _norm(spec, before)
        self.out = linear(before, spec.width, bias=spec.bias)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        x = _grouped(x, layout, self.merge).mean(dim=(2, 4)).flatten(1, 2)  # (B, n, D)
        return self.out(x if self.norm is None else self.norm(x))


def _norm(spec: parts.Merger, width: int) -> Norm | None:
    return None if spec.norm == "none" else build_norm(spec.norm, width, spec.norm_eps)


def _grouped(x: Tensor, layout: Layout, side: int) -> Tensor:
    """(B, T, D) → (B, rows, m, columns, m, D), without the prefix."""
    rows, columns = layout.grid
    require(
        rows % side == columns % side == 0,
        f"grid {layout.grid} is not divisible by merge {side}; choose an image of more, or fewer, whole patches",
    )
    return x[:, layout.prefix :].unflatten(1, (rows // side, side, columns // side, side))


def build_merger(spec: parts.Merger, width: int) -> nn.Module:
    match spec:
        case parts.MlpMerger():
            return MlpMerging(width, spec)
        case parts.LinearMerger():
            return LinearMerging(width, spec)
