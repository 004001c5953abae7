"""The cost of self-supervised steps: views of images → the loss."""

from __future__ import annotations

from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.plan.graph import Tensor
from vitrail.plan.model.dino import self_distillation
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.masked_autoencoder import reconstruction
from vitrail.plan.model.momentum_contrast import contrast
from vitrail.plan.tape import Tape
from vitrail.plan.workload import Workload
from vitrail.pretraining import Dino, MaskedAutoencoder, MomentumContrast

__all__ = ["pretraining_loss"]


def pretraining_loss(
    t: Tape,
    c: ViTConfig,
    spec: Dino | MaskedAutoencoder | MomentumContrast,
    workload: Workload,
    images: list[Tensor],
    held: list[Tensor],
) -> Tensor:
    """Run the step's models and its loss; what stays alive until the optimizer's step is added to `held`."""
    n = [_sizes(c, *view) for view in spec.views(c.image, workload.batch)]
    match spec:
        case Dino():
            return self_distillation(t, c, spec, n, images)
        case MaskedAutoencoder():
            return reconstruction(t, c, spec, n[0], images[0])
        case MomentumContrast():
            return contrast(t, c, spec, n[0], images, held, workload.accumulate - 1)


def _sizes(c: ViTConfig, batch: int, image: Size) -> Sizes:
    grid = c.but(image=image).grid
    return Sizes(
        batch=batch,
        patches=grid.area,
        tokens=c.prefix.count + grid.area,
        width=c.width,
        num_heads=c.num_heads,
        table=c.grid.area,
    )
