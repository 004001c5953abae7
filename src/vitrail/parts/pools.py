"""Pooling: how the tokens become one vector."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.parts.mlp import Activation
from vitrail.rules import PositiveInt
from vitrail.value import Value

__all__ = ["AttentionPool", "ClsMeanPool", "ClsPool", "MaxPool", "MeanPool", "Pool"]


@dataclass(frozen=True, kw_only=True)
class ClsPool(Value):
    """The CLS token; if there is a distillation token, both."""


@dataclass(frozen=True, kw_only=True)
class MeanPool(Value):
    """The mean of the patch tokens."""


@dataclass(frozen=True, kw_only=True)
class MaxPool(Value):
    """The maximum of the patch tokens, per channel."""


@dataclass(frozen=True, kw_only=True)
class ClsMeanPool(Value):
    """The CLS token concatenated with the mean of the patch tokens, as DINOv2's classifiers use: twice the width."""


@dataclass(frozen=True, kw_only=True)
class AttentionPool(Value):
    """One learned query attends to the patches, followed by a residual MLP (multi-head attention pooling, as SigLIP).

    `prefix` says whether the query attends to the prefix tokens too; by default it does not, as in timm.
    """

    num_heads: PositiveInt = 12
    mlp_width: PositiveInt = 3072
    activation: Activation = "gelu_tanh"
    prefix: bool = False


Pool = ClsPool | MeanPool | MaxPool | ClsMeanPool | AttentionPool
