"""The MLP of a block: each token is projected to mlp_width and back."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail import parts
from vitrail.config import NormKind
from vitrail.nn.initialise import initialise
from vitrail.nn.norm import Norm, build_norm

__all__ = ["ACTIVATIONS", "FeedForward", "GatedFeedForward", "build_mlp", "linear"]


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "silu": F.silu,
    "relu": F.relu,
    "tanh": torch.tanh,
}


def linear(before: int, after: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer with Xavier weights and zero bias."""
    layer = nn.Linear(before, after, bias=bias)
    initialise(layer.weight.data, followed_by="linear")
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class FeedForward(nn.Module):
    """fc2(activation(fc1(x)))."""

    def __init__(
        self,
        width: int,
        mlp_width: int,
        *,
        activation: parts.Activation = "gelu",
        bias: bool = True,
        norm: Norm | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.fc1 = linear(width, mlp_width, bias=bias)
        self.norm = norm
        self.fc2 = linear(mlp_width, width, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.activation(self.fc1(x)), self.dropout, self.training)
        if self.norm is not None:
            x = self.norm(x)
        return F.dropout(self.fc2(x), self.dropout, self.training)


class GatedFeedForward(nn.Module):
    """fc2(silu(gate) · value), where gate and value are the two halves of fc1(x)."""

    def __init__(
        self, width: int, mlp_width: int, *, bias: bool = True, norm: Norm | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.fc1 = linear(width, 2 * mlp_width, bias=bias)
        self.norm = norm
        self.fc2 = linear(mlp_width, width, bias=bias)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.fc1(x).chunk(2, dim=-1)
        x = F.dropout(F.silu(gate) * value, self.dropout, self.training)
        if self.norm is not None:
            x = self.norm(x)
        return F.dropout(self.fc2(x), self.dropout, self.training)


def build_mlp(
    spec: parts.MlpKind, width: int, *, dropout: float, norm: NormKind = "layer", norm_eps: float = 1e-6
) -> FeedForward | GatedFeedForward:
    inner = build_norm(norm, spec.width, norm_eps) if spec.norm else None
    match spec:
        case parts.Mlp():
            return FeedForward(
                width, spec.width, activation=spec.activation, bias=spec.bias, norm=inner, dropout=dropout
            )
        case parts.SwiGLU():
            return GatedFeedForward(width, spec.width, bias=spec.bias, norm=inner, dropout=dropout)
