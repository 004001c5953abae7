"""The MLP of a block: each token is projected to mlp_width and back."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail import parts
from vitrail.nn.initialise import initialise

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
        self, width: int, mlp_width: int, *, activation: parts.Activation = "gelu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.fc1 = linear(width, mlp_width)
        self.fc2 = linear(mlp_width, width)
        self.activation = ACTIVATIONS[activation]
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.activation(self.fc1(x)), self.dropout, self.training)
        return F.dropout(self.fc2(x), self.dropout, self.training)


class GatedFeedForward(nn.Module):
    """fc2(silu(gate) · value), where gate and value are the two halves of fc1(x)."""

    def __init__(self, width: int, mlp_width: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = linear(width, 2 * mlp_width)
        self.fc2 = linear(mlp_width, width)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.fc1(x).chunk(2, dim=-1)
        x = F.dropout(F.silu(gate) * value, self.dropout, self.training)
        return F.dropout(self.fc2(x), self.dropout, self.training)


def build_mlp(spec: parts.MlpKind, width: int, *, dropout: float) -> FeedForward | GatedFeedForward:
    match spec:
        case parts.Mlp():
            return FeedForward(width, spec.width, activation=spec.activation, dropout=dropout)
        case parts.SwiGLU():
            return GatedFeedForward(width, spec.width, dropout=dropout)
