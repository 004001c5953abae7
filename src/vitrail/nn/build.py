"""Config → model."""

from __future__ import annotations

from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig
from vitrail.nn.mobile import MobileViT
from vitrail.nn.pyramid import PyramidViT
from vitrail.nn.vit import ViT

__all__ = ["build"]


def build(config: Config) -> ViT | PyramidViT | MobileViT:
    """Build the model that a config describes, with newly initialised weights."""
    match config:
        case ViTConfig():
            return ViT(config)
        case PyramidConfig():
            return PyramidViT(config)
        case MobileConfig():
            return MobileViT(config)
