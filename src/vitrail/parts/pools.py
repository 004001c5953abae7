"""Pooling: how the tokens become one vector."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.parts.mlp import Activation
from vitrail.rules import PositiveInt
from vitrail.value import Value

__all__ = ["AttentionPool", "ClsMeanPool", "ClsPool", "MaxPool", "MeanPool", "Pool"]


@dataclass(frozen=True, kw_only=True)
class ClsPool(Value):
    """The CLS token; if there is a distillation token, both.

    >>> from vitrail import ClsPool, ViTConfig
    >>> ViTConfig(pool=ClsPool()).pool
    ClsPool()
    """


@dataclass(frozen=True, kw_only=True)
class MeanPool(Value):
    """The mean of the patch tokens.

    >>> from vitrail import MeanPool, ViTConfig
    >>> ViTConfig(pool=MeanPool()).pool
    MeanPool()
    """


@dataclass(frozen=True, kw_only=True)
class MaxPool(Value):
    """The maximum of the patch tokens, per channel.

    >>> from vitrail import MaxPool, ViTConfig
    >>> ViTConfig(pool=MaxPool()).pool
    MaxPool()
    """


@dataclass(frozen=True, kw_only=True)
class ClsMeanPool(Value):
    """The CLS token concatenated with the mean of the patch tokens, as DINOv2's classifiers use: twice the width.

    >>> from vitrail import ClsMeanPool, ViTConfig
    >>> ViTConfig(pool=ClsMeanPool()).pool
    ClsMeanPool()
    """


@dataclass(frozen=True, kw_only=True)
class AttentionPool(Value):
    """One learned query attends to the patches, followed by a residual MLP (multi-head attention pooling, as SigLIP).

    `prefix` says whether the query attends to the prefix tokens too; by default it does not, as in timm.

    >>> from vitrail import AttentionPool, ViTConfig
    >>> ViTConfig(pool=AttentionPool(num_heads=8)).pool
    AttentionPool(num_heads=8)
    """

    num_heads: PositiveInt = 12
    mlp_width: PositiveInt = 3072
    activation: Activation = "gelu_tanh"
    prefix: bool = False


Pool = ClsPool | MeanPool | MaxPool | ClsMeanPool | AttentionPool
