"""Residual blocks of convolutional networks, which keep the size of a feature map or halve it.

Shapes: B images, c channels, h×w a feature map.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.nn.initialise import initialise

__all__ = ["BasicResidual", "ConvNorm", "InvertedResidual"]


class ConvNorm(nn.Module):
    """Convolution without bias, batch norm and, by default, SiLU."""

    def __init__(
        self, before: int, after: int, *, kernel: int = 1, stride: int = 1, groups: int = 1, activation: bool = True
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(after)
        self.activation = activation
        initialise(self.conv.weight.data, followed_by="relu" if activation else "linear")

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return F.silu(x) if self.activation else x


class InvertedResidual(nn.Module):
    """1×1 expansion, 3×3 depthwise, 1×1 projection without activation; with a residual if the shapes are equal."""

    def __init__(self, before: int, after: int, *, expansion: int, stride: int) -> None:
        super().__init__()
        inner = expansion * before
        self.expand = ConvNorm(before, inner)
        self.depthwise = ConvNorm(inner, inner, kernel=3, stride=stride, groups=inner)
        self.project = ConvNorm(inner, after, activation=False)
        self.residual = before == after and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        branch = self.project(self.depthwise(self.expand(x)))
        return x + branch if self.residual else branch


class BasicResidual(nn.Module):
    """ResNet's basic block (arXiv 1512.03385) with SiLU: two 3×3 convolutions, a shortcut, then the activation.

    The shortcut is a 1×1 convolution where the shape changes.
    """

    def __init__(self, before: int, after: int, *, expansion: int, stride: int) -> None:
        super().__init__()
        self.first = ConvNorm(before, expansion * after, kernel=3, stride=stride)
        self.second = ConvNorm(expansion * after, after, kernel=3, activation=False)
        alike = before == after and stride == 1
        self.shortcut = None if alike else ConvNorm(before, after, stride=stride, activation=False)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.second(self.first(x))
        return F.silu(branch + (x if self.shortcut is None else self.shortcut(x)))
