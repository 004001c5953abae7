"""Build the reference implementation of a self-supervised step: images → a loss."""

from __future__ import annotations

from vitrail.config import ViTConfig
from vitrail.nn.dino import SelfDistillation
from vitrail.nn.masked_autoencoder import Reconstruction
from vitrail.nn.momentum_contrast import Contrast
from vitrail.pretraining import Dino, MaskedAutoencoder, MomentumContrast, Pretraining

__all__ = ["build_pretraining"]


def build_pretraining(config: ViTConfig, spec: Pretraining) -> SelfDistillation | Reconstruction | Contrast:
    """Build a module whose forward takes the step's views of the images and returns the loss.

    Call `advance` after every optimizer step: teachers follow there.
    """
    match spec:
        case Dino():
            return SelfDistillation(config, spec)
        case MaskedAutoencoder():
            return Reconstruction(config, spec)
        case MomentumContrast():
            return Contrast(config, spec)
