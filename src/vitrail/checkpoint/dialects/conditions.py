"""Which configs a row of a table is for."""

from __future__ import annotations

from vitrail.config import Config, PyramidConfig, ViTConfig
from vitrail.parts import Learned, RelativeBias, SinCos2d, SwiGLU

__all__ = [
    "gated",
    "is_learned",
    "is_shared_bias",
    "is_sincos",
    "of_patches_alone",
    "on_first_grid",
    "plain",
    "pooled_norm",
    "token_norm",
]


def pooled_norm(config: Config) -> bool:
    return isinstance(config, ViTConfig) and config.final_norm == "pooled"


def token_norm(config: Config) -> bool:
    return not pooled_norm(config)


def gated(config: Config) -> bool:
    return isinstance(config, ViTConfig) and isinstance(config.mlp, SwiGLU)


def is_sincos(config: Config) -> bool:
    return isinstance(config, ViTConfig) and isinstance(config.position, SinCos2d)


def is_learned(config: Config) -> bool:
    return isinstance(config, ViTConfig) and isinstance(config.position, Learned)


def on_first_grid(config: Config) -> bool:
    """Whether a pyramid has a position table for its patches alone."""
    return isinstance(config, PyramidConfig) and _of_patches(config)


def of_patches_alone(config: Config) -> bool:
    """Whether a ViT has a position table for its patches alone."""
    return isinstance(config, ViTConfig) and _of_patches(config)


def _of_patches(config: ViTConfig | PyramidConfig) -> bool:
    return isinstance(config.position, Learned) and config.position.prefix_rows(config.prefix) == 0


def is_shared_bias(config: Config) -> bool:
    return isinstance(config, ViTConfig) and isinstance(config.position, RelativeBias) and config.position.shared


def plain(config: Config) -> bool:
    return not gated(config)
