"""Initial weights that resemble trained attention: "Mimetic Initialization" (arXiv 2305.09828).

In trained models WqᵀWk is close to a positive multiple of the identity, so that similar tokens attend to each other,
and WoWv to a negative one. Starting there, with sinusoidal positions, helps training on small datasets.

Shapes: D width, h heads, d = D/h.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitrail.errors import require
from vitrail.nn.positions import LearnedTable, sincos_2d
from vitrail.nn.vit import ViT
from vitrail.parts import SinCos2d

__all__ = ["begin_mimetic"]

LIKE, MIXED = 0.7, 0.4
"""The scale of identity plus noise in WqᵀWk and in −WoWv."""
SINES = 0.4
"""The scale of the sines. They have std 0.7 and a projected patch about 1, so neither dominates the sum."""


@torch.no_grad()
def begin_mimetic(model: ViT) -> None:
    """Overwrite the attention weights and the learned position table."""
    width, heads, d = model.config.width, model.config.num_heads, model.config.head_width
    for block in model.blocks:
        query, key, value = block.attention.qkv.weight.view(3, width, width)  # type: ignore[union-attr,operator]
        for head in range(heads):
            left, right = _factors(_near_identity(width, LIKE))
            query[head * d : (head + 1) * d] = left[:, :d].T
            key[head * d : (head + 1) * d] = right[:d]
        left, right = _factors(-_near_identity(width, MIXED))
        block.attention.out.weight.copy_(left)  # type: ignore[union-attr]
        value.copy_(right)
    table = model.position
    if isinstance(table, LearnedTable):
        require(width % 4 == 0, f"width {width} is not a multiple of 4, which 2D sines need; leave mimetic out")
        table.table[-model.config.grid.area :] = SINES * sincos_2d(model.config.grid, width, SinCos2d())


def _near_identity(width: int, share: float) -> Tensor:
    return share * (torch.eye(width) + torch.randn(width, width) / math.sqrt(width))


def _factors(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Factor a matrix into left @ right by SVD, with the singular values split evenly between the two."""
    left, sizes, right = torch.linalg.svd(matrix)
    root = sizes.sqrt()
    return left * root, root[:, None] * right
