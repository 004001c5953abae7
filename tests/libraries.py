"""The same config, built by the library that a workload names."""

from __future__ import annotations

from torch import nn

from vitrail.config import Config
from vitrail.plan import Workload

__all__ = ["make"]


def make(config: Config, workload: Workload) -> tuple[nn.Module, int]:
    from vitrail.nn.build import build

    return build(config), config.classes
