"""The same config, built by the library that a workload names."""

from __future__ import annotations

from torch import nn

from vitrail.config import Config, ViTConfig
from vitrail.nn.build import build
from vitrail.parts import FullAttention
from vitrail.plan import Workload

__all__ = ["make"]


def make(config: Config, workload: Workload) -> nn.Module:
    if workload.attention == "eager" and isinstance(config, ViTConfig) and isinstance(config.attention, FullAttention):
        config = config.but(attention=FullAttention(fused=False))
    return build(config)
