"""Config → model."""

from __future__ import annotations

from typing import overload

from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig
from vitrail.nn.mobile import MobileViT
from vitrail.nn.pyramid import PyramidViT
from vitrail.nn.vit import ViT

__all__ = ["build"]


@overload
def build(config: ViTConfig) -> ViT: ...
@overload
def build(config: PyramidConfig) -> PyramidViT: ...
@overload
def build(config: MobileConfig) -> MobileViT: ...
@overload
def build(config: Config) -> ViT | PyramidViT | MobileViT: ...
def build(config: Config) -> ViT | PyramidViT | MobileViT:
    """Build the model that a config describes, with newly initialised weights.

    >>> import torch
    >>> from vitrail import build, preset
    >>> build(preset("Ti/16", depth=1))(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 1000])
    """
    match config:
        case ViTConfig():
            return ViT(config)
        case PyramidConfig():
            return PyramidViT(config)
        case MobileConfig():
            return MobileViT(config)
