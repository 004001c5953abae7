"""Token colours in a graph: ONNX has no eigendecomposition, so the leading components come by subspace iteration.

Shapes: D width, k vectors of the subspace, h×w grid.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitrail.look.pca import principal_scores, scaled_to_colours
from vitrail.look.record import Recording
from vitrail.look.tokens import norm_outliers, token_norms
from vitrail.nn.layout import Layout

__all__ = ["leading_by_iteration", "token_colours"]

SUBSPACE, ROUNDS, POWERS = 8, 8, 4
"""Vectors, and products with the matrix between and in all: an eigenvalue λ of the rest fades as (λ / λ₃)³²."""
DEPENDENT = 1e-14
"""The length below which what is left of a unit vector is rounding."""
TINY = 1e-300
SQUARINGS = 14
"""Of the small matrix: its second component fades as (λ₂ / λ₁) to the power of 16,384."""


def token_colours(recording: Recording) -> dict[str, Tensor]:
    """Return colours, shares, norms and outliers of the tokens after every layer; −1 is after the final norm."""
    layers = [*enumerate(recording.blocks), (-1, recording.features)]
    patches = [tokens[0, layout.prefix :].double() for _, (tokens, layout) in layers]
    centred = torch.stack([each - each.mean(dim=0) for each in patches])
    values, vectors = leading_by_iteration(centred.mT @ centred)  # all layers at once: a graph of one iteration
    found: dict[str, Tensor] = {}
    for index, (layer, (tokens, layout)) in enumerate(layers):
        scores, shares = principal_scores(patches[index], lambda _, at=index: (values[at], vectors[at]))
        shown = _shown(scores, shares, tokens, layout)
        found |= {f"{name}{layer}": value for name, value in shown.items()}
    return found


def _shown(scores: Tensor, shares: Tensor, tokens: Tensor, layout: Layout) -> dict[str, Tensor]:
    grid, norms = tuple(layout.grid), token_norms(tokens, layout)
    low, high = norms.amin().double(), norms.amax().double()
    span = torch.where(high > low, high - low, 1.0)
    return {
        "colours": scaled_to_colours(scores).float().mul(255).round().byte().view(*grid, 3),
        "shares": shares.float(),
        "norms": ((norms[0].double() - low) * (255 / span)).round().byte().view(*grid),
        "range": torch.stack([low, high]).float(),
        "outliers": norm_outliers(norms, layout).sum().int(),
    }


def leading_by_iteration(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """(L, D, D) → the three largest eigenvalues (L, 3) and their eigenvectors (L, D, 3), in descending order."""
    layers, width, _ = matrices.shape
    count = min(SUBSPACE, int(width))
    total = _trace(matrices)
    matrices = matrices / total
    # a fixed start that no picture's components are orthogonal to
    start = torch.from_numpy(np.random.default_rng(0).standard_normal((int(layers), int(width), count)))
    vectors = _orthonormal(start, start)
    for _ in range(ROUNDS):
        for _ in range(POWERS):
            vectors = matrices @ vectors
        vectors = _orthonormal(vectors, start)
    small = vectors.mT @ matrices @ vectors  # (L, k, k)
    values, chosen = [], []
    for _ in range(min(3, count)):
        power = small
        for _ in range(SQUARINGS):
            power = power @ power
            power = power / _trace(power)
        # every column of the power is along the leading vector, and the longest is the most precise
        column = _unit(power @ power.square().sum(dim=-2)[..., None])
        value = column.mT @ small @ column
        small = small - value * (column @ column.mT)
        small = (small + small.mT) / 2  # what is left may be rounding alone, whose square has a trace only if symmetric
        values.append(value[:, 0])
        chosen.append(column)
    return torch.cat(values, dim=1).clamp_min(0) * total[:, 0], vectors @ torch.cat(chosen, dim=-1)


def _trace(matrices: Tensor) -> Tensor:
    """(L, D, D) → (L, 1, 1), above zero."""
    identity = torch.eye(matrices.shape[-1], dtype=matrices.dtype)
    return (matrices * identity).sum(dim=(-2, -1), keepdim=True).clamp_min(TINY)


def _unit(columns: Tensor) -> Tensor:
    return columns / columns.square().sum(dim=-2, keepdim=True).sqrt().clamp_min(TINY)


def _orthonormal(vectors: Tensor, fresh: Tensor) -> Tensor:
    """Gram–Schmidt, column by column, twice for each, which is enough.

    A column that is a mixture of those before it, but for rounding, is replaced by the fresh one.
    """
    columns = zip(vectors.split(1, dim=-1), fresh.split(1, dim=-1), strict=True)
    done = _unit(next(columns)[0])
    for column, other in columns:
        column = _unit(column)
        column = column - done @ (done.mT @ column)
        column = torch.where(column.square().sum(dim=-2, keepdim=True) < DEPENDENT**2, other, column)
        for _ in range(2):
            column = column - done @ (done.mT @ column)
        done = torch.cat([done, _unit(column)], dim=-1)
    return done
