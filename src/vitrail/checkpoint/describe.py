"""A checkpoint in words and numbers: what it is, how that is known, and what is wrong with it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint, Evidence
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import Config, ViTConfig
from vitrail.geometry import Size
from vitrail.parts import Learned
from vitrail.presets import PRESETS

__all__ = ["Checks", "Description", "check", "describe"]


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What to know before relying on the weights."""

    not_finite: tuple[str, ...]
    """Tensors with a NaN or an infinity."""
    unused: tuple[str, ...]
    """Tensors that the vector does not depend on: kept, and written back to the same dialect."""


@dataclass(frozen=True, kw_only=True)
class Description:
    format: str
    dialect: str
    family: str
    variant: str
    """The preset of the same shape, or what it is closest to having been."""
    image: Size
    patch: Size
    grid: Size
    prefix: tuple[str, ...]
    """The tokens before the patches, in order."""
    position: str
    convention: str
    """How positions are resized on another grid."""
    pool: str
    width: int
    depth: int
    num_heads: int
    classes: int
    parameters: int
    dtypes: dict[str, int]
    """Parameters by type."""
    preprocessing: Preprocessing
    evidence: Evidence
    checks: Checks
    config: Config


def check(checkpoint: Checkpoint) -> Checks:
    """Look at every value."""
    tensors = {**checkpoint.tensors, **checkpoint.extra}
    bad = [name for name, tensor in tensors.items() if tensor.is_floating_point() and not _is_finite(tensor)]
    unused = [name for name in checkpoint.extra if not name.startswith("+")]
    return Checks(not_finite=tuple(sorted(bad)), unused=tuple(sorted(unused)))


def _is_finite(tensor: Tensor) -> bool:
    precise = tensor.float() if tensor.itemsize == 1 else tensor  # float8 has no isfinite
    return bool(torch.isfinite(precise).all())


def describe(checkpoint: Checkpoint) -> Description:
    config = checkpoint.config
    dtypes: dict[str, int] = {}
    for tensor in checkpoint.tensors.values():
        name = str(tensor.dtype).removeprefix("torch.")
        dtypes[name] = dtypes.get(name, 0) + tensor.numel()
    vit = config if isinstance(config, ViTConfig) else None
    return Description(
        format=checkpoint.format,
        dialect=checkpoint.dialect,
        family=checkpoint.family,
        variant=_variant(config),
        image=config.image,
        patch=config.patch,
        grid=config.grid,
        prefix=_prefix(vit) if vit else (),
        position=_position(vit) if vit else "none",
        convention=_convention(vit) if vit else "computed inside",
        pool=type(vit.pool).__name__ if vit else "MeanPool",
        width=vit.width if vit else 0,
        depth=vit.depth if vit else 0,
        num_heads=vit.num_heads if vit else 0,
        classes=config.classes,
        parameters=sum(dtypes.values()),
        dtypes=dtypes,
        preprocessing=checkpoint.preprocessing,
        evidence=checkpoint.evidence,
        checks=check(checkpoint),
        config=config,
    )


def _prefix(config: ViTConfig) -> tuple[str, ...]:
    spec = config.prefix
    registers = tuple(f"register {index + 1}" for index in range(spec.registers))
    return (*(("cls",) if spec.cls else ()), *(("distillation",) if spec.distillation else ()), *registers)


def _convention(config: ViTConfig) -> str:
    position = config.position
    return f"resampled as {position.convention} does" if isinstance(position, Learned) else position.on_new_grid


def _position(config: ViTConfig) -> str:
    position = config.position
    if not isinstance(position, Learned) or not config.prefix.count:
        return type(position).__name__
    rows = {"all": "all prefix tokens have a row", "cls": "CLS has a row", "none": "no prefix token has a row"}
    return f"{type(position).__name__}, {rows[position.prefix]}"


def _variant(config: Config) -> str:
    """Presets of the same function, their image, classes and conventions of resizing aside."""
    names = [name for name, preset in PRESETS.items() if _alike(preset, config)]
    return ", ".join(names[:4]) or "no preset"


ASIDE = {"image", "classes", "head_bias", "layer_scale", "position", "remainder", "norm_eps", "pool", "final_norm"}


def _alike(preset: Config, config: Config) -> bool:
    if type(preset) is not type(config):
        return False
    if isinstance(preset, ViTConfig) and isinstance(config, ViTConfig):
        same = type(preset.position) is type(config.position)
        if not same or (preset.layer_scale is None) != (config.layer_scale is None):
            return False
    return all(
        getattr(preset, field.name) == getattr(config, field.name)
        for field in dataclasses.fields(preset)
        if field.name not in ASIDE
    )
