"""Which configs a row of a table is for."""

from __future__ import annotations

from vitrail.config import Config, ViTConfig
from vitrail.parts import Learned, RelativeBias, SinCos2d, SwiGLU

__all__ = ["gated", "is_learned", "is_shared_bias", "is_sincos", "plain", "pooled_norm", "token_norm"]


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


def is_shared_bias(config: Config) -> bool:
    return isinstance(config, ViTConfig) and isinstance(config.position, RelativeBias) and config.position.shared


def plain(config: Config) -> bool:
    return not gated(config)
