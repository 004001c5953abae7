"""The neck: what turns the encoder's tokens into feature maps for a head that reads the grid."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.rules import PositiveInt
from vitrail.value import Value

__all__ = ["Neck"]


@dataclass(frozen=True, kw_only=True)
class Neck(Value):
    """A projection of every patch to `width`, then a 3×3 convolution over the grid, each followed by a norm, as in SAM.

    Tokens, vector and head have the neck's width behind it.

    >>> from vitrail import MeanPool, Neck, Prefix, ViTConfig
    >>> config = ViTConfig(prefix=Prefix(cls=False), final_norm="none", neck=Neck(width=256), pool=MeanPool())
    >>> config.width, config.feature_width
    (768, 256)
    """

    width: PositiveInt = 256
