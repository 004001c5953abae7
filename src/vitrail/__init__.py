"""vitrail: the workbench for the front end of Vision Transformers.

Configs and their parts are imported eagerly. Everything else is loaded on first use, functions and rooms alike
(`vitrail.plan`, `vitrail.look`, `vitrail.nn` …), so that `import vitrail` imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import config, parts
from ._version import __version__
from .checkpointing import Checkpointing
from .config import *
from .errors import VitrailError
from .geometry import Size, fit
from .parts import *
from .presets import PRESETS, preset
from .pretraining import Dino, MaskedAutoencoder, MomentumContrast
from .tuning import Lora, Tuning

if TYPE_CHECKING:
    from . import checkpoint, data, images, look, nn, plan, training, vectors
    from .checkpoint.assess.report import assess
    from .checkpoint.checkpoint import Checkpoint
    from .checkpoint.preprocessing import Preprocessing
    from .checkpoint.read import load
    from .checkpoint.sources.push import push
    from .checkpoint.surgery.adapt import adapt
    from .checkpoint.write import save
    from .healing.heal import heal
    from .images.synthesize import synthesize_image
    from .look.dense import dense
    from .look.match import match
    from .maps.atlas import atlas
    from .nn.build import build
    from .nn.front import VisionFrontEnd
    from .nn.patches import PatchEmbed
    from .nn.positions import sinusoidal_2d
    from .nn.remainder import pad_batch
    from .nn.vit import ViT
    from .server.studio import studio
    from .training.run import Run
    from .training.train import train
    from .vectors.duplicates import near_duplicates
    from .vectors.embed import embed
    from .vectors.outliers import outliers
    from .vectors.search import search

__all__ = [
    "PRESETS",
    "Checkpoint",
    "Checkpointing",
    "Dino",
    "Lora",
    "MaskedAutoencoder",
    "MomentumContrast",
    "PatchEmbed",
    "Preprocessing",
    "Run",
    "Size",
    "Tuning",
    "ViT",
    "VisionFrontEnd",
    "VitrailError",
    "__version__",
    "adapt",
    "assess",
    "atlas",
    "build",
    "dense",
    "embed",
    "fit",
    "heal",
    "load",
    "match",
    "near_duplicates",
    "outliers",
    "pad_batch",
    "preset",
    "push",
    "save",
    "search",
    "sinusoidal_2d",
    "studio",
    "synthesize_image",
    "train",
]
__all__ += ["checkpoint", "data", "images", "look", "nn", "plan", "training", "vectors"]  # rooms
__all__ += config.__all__
__all__ += parts.__all__

_ON_DEMAND = {
    "Checkpoint": "checkpoint.checkpoint",
    "PatchEmbed": "nn.patches",
    "Preprocessing": "checkpoint.preprocessing",
    "Run": "training.run",
    "ViT": "nn.vit",
    "VisionFrontEnd": "nn.front",
    "adapt": "checkpoint.surgery.adapt",
    "assess": "checkpoint.assess.report",
    "atlas": "maps.atlas",
    "build": "nn.build",
    "dense": "look.dense",
    "embed": "vectors.embed",
    "heal": "healing.heal",
    "load": "checkpoint.read",
    "match": "look.match",
    "near_duplicates": "vectors.duplicates",
    "outliers": "vectors.outliers",
    "pad_batch": "nn.remainder",
    "push": "checkpoint.sources.push",
    "save": "checkpoint.write",
    "search": "vectors.search",
    "sinusoidal_2d": "nn.positions",
    "studio": "server.studio",
    "synthesize_image": "images.synthesize",
    "train": "training.train",
}


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return getattr(import_module(f"vitrail.{_ON_DEMAND[name]}"), name)
    if name in __all__:
        return import_module(f"vitrail.{name}")
    raise AttributeError(f"module 'vitrail' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
