"""Build the function that runs a config's model on a tape."""

from __future__ import annotations

from collections.abc import Callable

from vitrail.config import Config, MobileConfig, PyramidConfig, TwoBranches, ViTConfig
from vitrail.plan.graph import Tensor
from vitrail.plan.model.branches import two_branches
from vitrail.plan.model.mobile import mobile_vit
from vitrail.plan.model.pyramid import pyramid_vit
from vitrail.plan.model.vit import sizes, vit
from vitrail.plan.tape import Tape
from vitrail.plan.workload import Workload

__all__ = ["Model", "build"]

Model = Callable[[Tape, Tensor], Tensor]
"""Images in, logits out."""


def build(config: Config | TwoBranches, workload: Workload) -> Model:
    match config:
        case ViTConfig():
            n = sizes(config, workload)
            return lambda t, image: vit(t, config, n, image)
        case PyramidConfig():
            return lambda t, image: pyramid_vit(t, config, workload.batch, image)
        case MobileConfig():
            return lambda t, image: mobile_vit(t, config, workload.batch, image)
        case TwoBranches():
            return lambda t, images: two_branches(t, config, workload, images)
