"""The model as a precision trains it."""

from __future__ import annotations

from vitrail.config import Config, ViTConfig
from vitrail.parts import FullAttention
from vitrail.training.recipe import Recipe

__all__ = ["trained_config"]


def trained_config(config: Config, recipe: Recipe, device: str) -> Config:
    """Return the config that a step runs; the saved checkpoint keeps the one that was given.

    In bfloat16 on a CPU attention takes explicit steps: the backward pass of PyTorch's fused kernel takes several
    times as long there as in float32.
    """
    slow = recipe.precision == "amp-bf16" and device == "cpu"
    if slow and isinstance(config, ViTConfig) and config.attention == FullAttention():
        return config.but(attention=FullAttention(fused=False))
    return config
