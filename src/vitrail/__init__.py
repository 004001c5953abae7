"""vitrail: the workbench for the front end of Vision Transformers.

The public names load on demand: `import vitrail` imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitrail._version import __version__ as __version__

_HOMES = {
    "errors": ("VitrailError",),
    "geometry": ("Size", "fit"),
    "parts": (
        "Adaptive",
        "AttentionPool",
        "ClsMeanPool",
        "ClsPool",
        "FullAttention",
        "Hierarchical",
        "Learned",
        "LinearAttention",
        "MaxPool",
        "MeanPool",
        "Mlp",
        "NoPosition",
        "Patches",
        "Prefix",
        "RelativeBias",
        "Rotary",
        "RotaryMixed",
        "SinCos1d",
        "SinCos2d",
        "SparseAttention",
        "Stem",
        "SwiGLU",
        "WindowedAttention",
    ),
    "config": ("Config", "MobileConfig", "MobileStage", "PyramidConfig", "PyramidStage", "ViTConfig"),
    "presets": ("PRESETS", "preset"),
    "images.synthesize": ("synthesize_image",),
    "nn.build": ("build",),
    "nn.front": ("VisionFrontEnd",),
    "nn.patches": ("PatchEmbed",),
    "nn.positions": ("sinusoidal_2d",),
    "nn.remainder": ("pad_batch",),
    "nn.vit": ("ViT",),
    "checkpoint.assess.report": ("assess",),
    "checkpoint.checkpoint": ("Checkpoint",),
    "checkpoint.preprocessing": ("Preprocessing",),
    "checkpoint.read": ("load",),
    "checkpoint.surgery.adapt": ("adapt",),
    "checkpoint.write": ("save",),
}
_HOME = {name: f"vitrail.{module}" for module, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from vitrail.checkpoint.assess.report import assess as assess
    from vitrail.checkpoint.checkpoint import Checkpoint as Checkpoint
    from vitrail.checkpoint.preprocessing import Preprocessing as Preprocessing
    from vitrail.checkpoint.read import load as load
    from vitrail.checkpoint.surgery.adapt import adapt as adapt
    from vitrail.checkpoint.write import save as save
    from vitrail.config import (
        Config as Config,
    )
    from vitrail.config import (
        MobileConfig as MobileConfig,
    )
    from vitrail.config import (
        MobileStage as MobileStage,
    )
    from vitrail.config import (
        PyramidConfig as PyramidConfig,
    )
    from vitrail.config import (
        PyramidStage as PyramidStage,
    )
    from vitrail.config import (
        ViTConfig as ViTConfig,
    )
    from vitrail.errors import VitrailError as VitrailError
    from vitrail.geometry import Size as Size
    from vitrail.geometry import fit as fit
    from vitrail.images.synthesize import synthesize_image as synthesize_image
    from vitrail.nn.build import build as build
    from vitrail.nn.front import VisionFrontEnd as VisionFrontEnd
    from vitrail.nn.patches import PatchEmbed as PatchEmbed
    from vitrail.nn.positions import sinusoidal_2d as sinusoidal_2d
    from vitrail.nn.remainder import pad_batch as pad_batch
    from vitrail.nn.vit import ViT as ViT
    from vitrail.parts import (
        Adaptive as Adaptive,
    )
    from vitrail.parts import (
        AttentionPool as AttentionPool,
    )
    from vitrail.parts import (
        ClsMeanPool as ClsMeanPool,
    )
    from vitrail.parts import (
        ClsPool as ClsPool,
    )
    from vitrail.parts import (
        FullAttention as FullAttention,
    )
    from vitrail.parts import (
        Hierarchical as Hierarchical,
    )
    from vitrail.parts import (
        Learned as Learned,
    )
    from vitrail.parts import (
        LinearAttention as LinearAttention,
    )
    from vitrail.parts import (
        MaxPool as MaxPool,
    )
    from vitrail.parts import (
        MeanPool as MeanPool,
    )
    from vitrail.parts import (
        Mlp as Mlp,
    )
    from vitrail.parts import (
        NoPosition as NoPosition,
    )
    from vitrail.parts import (
        Patches as Patches,
    )
    from vitrail.parts import (
        Prefix as Prefix,
    )
    from vitrail.parts import (
        RelativeBias as RelativeBias,
    )
    from vitrail.parts import (
        Rotary as Rotary,
    )
    from vitrail.parts import (
        RotaryMixed as RotaryMixed,
    )
    from vitrail.parts import (
        SinCos1d as SinCos1d,
    )
    from vitrail.parts import (
        SinCos2d as SinCos2d,
    )
    from vitrail.parts import (
        SparseAttention as SparseAttention,
    )
    from vitrail.parts import (
        Stem as Stem,
    )
    from vitrail.parts import (
        SwiGLU as SwiGLU,
    )
    from vitrail.parts import (
        WindowedAttention as WindowedAttention,
    )
    from vitrail.presets import PRESETS as PRESETS
    from vitrail.presets import preset as preset


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
