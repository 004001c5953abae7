"""Model configs: frozen values that are validated once, when they are built, and convert to and from JSON.

`ViTConfig` describes a Vision Transformer of one width, `PyramidConfig` a pyramid of stages, and `MobileConfig` a
convolutional network with transformer blocks inside. Everything else in vitrail is a function of one of these three;
`TwoBranches` are two ViTs that read one image, which the planner knows.
"""

from .base import NormKind, NormPlace, QkvBias
from .branches import TwoBranches
from .mobile import MobileConfig, MobileStage
from .pyramid import PyramidConfig, PyramidStage
from .read import Config, config_from_json, padded_grids, read_config
from .vit import ViTConfig

__all__ = [
    "Config",
    "MobileConfig",
    "MobileStage",
    "NormKind",
    "NormPlace",
    "PyramidConfig",
    "PyramidStage",
    "QkvBias",
    "TwoBranches",
    "ViTConfig",
    "config_from_json",
    "padded_grids",
    "read_config",
]
