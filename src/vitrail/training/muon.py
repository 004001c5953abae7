"""Muon: update a matrix by its momentum with all singular values set to about one.

After Keller Jordan's Muon (2024), with the scale of "Muon is Scalable for LLM Training" (arXiv 2502.16982), which
allows AdamW's learning rates. torch.optim.Muon multiplies in bfloat16, which is slow on CPUs without it; here products
are in the weights' dtype, and matrices of one shape are batched.

Shapes: n matrices of one shape, each R×S.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["Muon", "orthogonalised"]

ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Jordan's a, b, c of x ← a·x + b·x³ + c·x⁵: five iterations bring all but the smallest singular values to 0.7–1.2."""


class Muon(torch.optim.Optimizer):
    """An optimizer for matrices only; other parameters need another optimizer."""

    def __init__(
        self, matrices: Iterable[nn.Parameter], *, lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        for group in self.param_groups:
            for matrix in group["params"]:
                self.state[matrix]["momentum"] = torch.zeros_like(matrix)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[torch.Size, list[nn.Parameter]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike.setdefault(matrix.shape, []).append(matrix)
            for shape, matrices in alike.items():
                lr = group["lr"]
                directions = orthogonalised(torch.stack([self._moved(each, group["momentum"]) for each in matrices]))
                step = 0.2 * lr * max(shape) ** 0.5
                for matrix, direction in zip(matrices, directions, strict=True):
                    matrix.mul_(1 - lr * group["weight_decay"]).sub_(direction, alpha=step)

    def _moved(self, matrix: nn.Parameter, momentum: float) -> Tensor:
        """Update the momentum with the gradient; return the Nesterov direction."""
        assert matrix.grad is not None
        held: Tensor = self.state[matrix]["momentum"]
        held.lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(held, momentum)


def orthogonalised(matrices: Tensor) -> Tensor:
    """(n, R, S) → the same singular vectors with singular values near one, by Newton–Schulz iteration."""
    a, b, c = QUINTIC
    x = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)  # no singular value above one
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if matrices.shape[1] > matrices.shape[2] else x
