"""Low-rank adapters (LoRA, arXiv 2106.09685): a linear layer plus a trained product of two thin matrices.

Shapes: D width in, E width out, r rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["LoraLinear", "merged"]


class LoraLinear(nn.Linear):
    """W·x + b + scale · B(A(x)), with the given layer's own W and b; A is (r, D), and B, (E, r), starts at zero.

    The scale multiplies the r values between A and B, not the E after them, so that no further tensor of the output's
    size is made.

    >>> layer = nn.Linear(6, 9)
    >>> adapted, x = LoraLinear(layer, rank=2, scale=1.0), torch.ones(1, 6)
    >>> torch.equal(adapted(x), layer(x)), sum(p.numel() for p in (adapted.lora_a, adapted.lora_b))
    (True, 30)
    """

    def __init__(self, layer: nn.Linear, *, rank: int, scale: float) -> None:
        nn.Module.__init__(self)  # no weights of its own: it takes over the layer's
        self.in_features, self.out_features, self.scale = layer.in_features, layer.out_features, scale
        self.weight, self.bias = layer.weight, layer.bias
        self.lora_a = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_b = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 — nn.Linear's own name
        return self.add_adapter(input, super().forward(input))

    def add_adapter(self, x: Tensor, out: Tensor) -> Tensor:
        """Return `out`, which the layer's own weight made of `x`, with the adapter's share added."""
        return out + F.linear(F.linear(x, self.lora_a) * self.scale, self.lora_b)


def merged(tensors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return a state dict without adapters: each is added to its layer's weight, W + scale · B·A, in float32."""
    plain = {name: tensor for name, tensor in tensors.items() if not name.endswith((".lora_a", ".lora_b"))}
    for name in tensors:
        if name.endswith(".lora_a"):
            layer = name.removesuffix(".lora_a")
            weight, a, b = (tensors[f"{layer}.{part}"] for part in ("weight", "lora_a", "lora_b"))
            plain[f"{layer}.weight"] = torch.addmm(weight.float(), b.float(), a.float(), alpha=scale).to(weight.dtype)
    return plain
