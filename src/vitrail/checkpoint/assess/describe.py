"""A checkpoint in words and numbers: what it is, how that is known, and what is wrong with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitrail.checkpoint.header import Evidence, Header
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig
from vitrail.geometry import Size, fit
from vitrail.parts import (
    AttentionPool,
    Learned,
    RelativeBias,
    RelativeMlp,
    Rotary,
    RotaryMixed,
    SeparableAttention,
    WindowedAttention,
)
from vitrail.plan.ledger import ledger
from vitrail.presets import PRESETS

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.checkpoint.checkpoint import Checkpoint

__all__ = ["Checks", "Description", "Stage", "check", "describe", "few", "pixels_in_words"]


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What to know before relying on the weights."""

    not_finite: tuple[str, ...]
    """Tensors with a NaN or an infinity."""
    unused: tuple[str, ...]
    """Tensors that the vector does not depend on: kept, and written back to the same dialect."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a pyramid or of a mobile network."""

    grid: Size
    width: int
    depth: int
    """Transformer blocks; in a mobile network, residuals."""
    num_heads: int | None
    """None where nothing attends, or without heads."""
    transformer_width: int | None = None
    """Depth of the transformer behind the residuals of a mobile network."""
    transformer_depth: int | None = None


@dataclass(frozen=True, kw_only=True)
class Description:
    source: str
    """The model and commit on the Hugging Face Hub; empty for a file."""
    format: str
    dialect: str
    family: str
    """Which of the dialect's tables of names the file follows."""
    variant: str
    """Presets of the same shapes, or "no preset"; they may differ in fields that shapes do not show."""
    image: Size
    channels: int
    patch: Size
    grid: Size
    """Grid of the patches; in a model of stages, of the last stage."""
    prefix: tuple[str, ...]
    """The tokens before the patches, in order."""
    position: str
    convention: str
    """What happens to positions on another grid."""
    pool: str
    width: int | None
    """None for a model of stages, as depth and num_heads are: each stage has its own."""
    depth: int | None
    num_heads: int | None
    stages: tuple[Stage, ...]
    """Stages of a pyramid or a mobile network, finest first; empty for a model of one width."""
    classes: int
    parameters: int
    """Trainable parameters; batch-norm statistics are not counted."""
    dtypes: dict[str, int]
    """Values by type, statistics of batch norms included."""
    preprocessing: Preprocessing
    evidence: Evidence
    checks: Checks
    config: Config


def check(checkpoint: Checkpoint | Header) -> Checks:
    """Check every value for NaN and infinity."""
    tensors = {**checkpoint.tensors, **checkpoint.extra}
    bad = [name for name, tensor in tensors.items() if not _is_finite(tensor)]
    return Checks(not_finite=tuple(sorted(bad)), unused=tuple(sorted(_unused(checkpoint.extra))))


def _unused(extra: Mapping[str, Any]) -> list[str]:
    """Other tensors that are kept aside are a function of the config, or a masked part of one that is used."""
    if not extra:
        return []
    from vitrail.checkpoint.dialects.table import MASK_TOKEN  # imports torch

    return [name.removeprefix("+") for name in extra if name == MASK_TOKEN or not name.startswith("+")]


def _is_finite(tensor: Tensor | NDArray[Any]) -> bool:
    if isinstance(tensor, np.ndarray):
        return bool(np.isfinite(tensor).all())
    import torch

    narrow = tensor.is_floating_point() and tensor.itemsize == 1
    return bool(torch.isfinite(tensor.float() if narrow else tensor).all())  # float8 has no isfinite of its own


def describe(checkpoint: Checkpoint | Header) -> Description:
    config = checkpoint.config
    dtypes: dict[str, int] = {}
    for tensor in checkpoint.tensors.values():
        name = str(tensor.dtype).removeprefix("torch.")
        dtypes[name] = dtypes.get(name, 0) + prod(tensor.shape)
    vit = config if isinstance(config, ViTConfig) else None
    parts = None if isinstance(config, MobileConfig) else config
    return Description(
        source=checkpoint.source,
        format=checkpoint.format,
        dialect=checkpoint.dialect,
        family=checkpoint.family,
        variant=_variant(config),
        image=config.image,
        channels=config.channels,
        patch=config.patch,
        grid=config.grid,
        prefix=parts.prefix.names if parts else (),
        position=_position(config),
        convention=_convention(config),
        pool=type(parts.pool).__name__ if parts else "MeanPool",
        width=vit.width if vit else None,
        depth=vit.depth if vit else None,
        num_heads=vit.num_heads if vit else None,
        stages=_stages(config),
        classes=config.classes,
        parameters=ledger(config).params,
        dtypes=dtypes,
        preprocessing=checkpoint.preprocessing,
        evidence=checkpoint.evidence,
        checks=check(checkpoint),
        config=config,
    )


def few(names: Sequence[str], count: int = 4) -> str:
    """Return the first names, and the number of others."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more


def pixels_in_words(steps: Preprocessing) -> str:
    """How an image becomes the model's input.

    >>> pixels_in_words(Preprocessing(image=Size(224, 224), crop_share=0.9))
    'bicubic, the shorter side to 248, the middle 224x224; mean 0.5 0.5 0.5, std 0.5 0.5 0.5'
    """
    whole = steps.resize_to
    resize = f"resized to {whole}"
    if steps.resize == "crop":
        square = whole.height == whole.width
        resize = f"the shorter side to {whole.height}" if square else f"resized to cover {whole}"
    crop = "" if steps.resize == "squash" and whole == steps.image else f", the middle {steps.image}"
    mean, std = (" ".join(f"{value:.4g}" for value in values) for values in (steps.mean, steps.std))
    return f"{steps.interpolation}, {resize}{crop}; mean {mean}, std {std}"


def _stages(config: Config) -> tuple[Stage, ...]:
    match config:
        case PyramidConfig():
            return tuple(
                Stage(grid=grid, width=stage.width, depth=stage.depth, num_heads=stage.num_heads)
                for stage, grid in zip(config.stages, config.grids, strict=True)
            )
        case MobileConfig():
            heads = not isinstance(config.attention, SeparableAttention)
            return tuple(
                Stage(
                    grid=fit(config.image, Size(stride, stride)).grid,
                    width=stage.width,
                    depth=stage.depth,
                    num_heads=config.num_heads if stage.transformer_depth and heads else None,
                    transformer_width=stage.transformer_width or None,
                    transformer_depth=stage.transformer_depth or None,
                )
                for stage, stride in zip(config.stages, config.strides, strict=True)
            )
        case _:
            return ()


def _convention(config: Config) -> str:
    if isinstance(config, MobileConfig):
        return "nothing to do"
    match config.position, config.attention:
        case RelativeBias() | RelativeMlp(), WindowedAttention():
            return "kept: they count offsets within a window"
        case Learned(convention=convention, inside=inside), _:
            what = "rotation is" if isinstance(inside, Rotary | RotaryMixed) else "biases are"
            beside = f", and the {what} {inside.describe().on_new_grid}" if inside else ""
            return f"resampled as {convention} does{beside}"
        case position, _:
            return position.describe().on_new_grid


def _position(config: Config) -> str:
    if isinstance(config, MobileConfig):
        return "NoPosition"
    match config.position, config.attention:
        case RelativeBias() | RelativeMlp() as position, WindowedAttention(window=window):
            return f"{type(position).__name__} within windows of {window}"
        case Learned(prefix=kind) as learned, _ if config.prefix.count:
            rows = {"all": "all prefix tokens have a row", "cls": "CLS has a row", "none": "no prefix token has a row"}
            return f"{learned.name}, {rows[kind]}"
        case position, _:
            return position.name


def _variant(config: Config) -> str:
    """Return presets of the same shapes, ignoring image size, classes and fields that shapes do not show."""
    names = [name for name, preset in PRESETS.items() if _alike(preset, config)]
    return few(names) or "no preset"


ASIDE = frozenset(
    {
        *("image", "classes", "head_bias", "layer_scale", "position", "remainder", "norm_eps", "pool", "final_norm"),
        *("dropout", "attention_dropout", "drop_path"),
    }
)


def _alike(preset: Config, config: Config) -> bool:
    if type(preset) is not type(config):
        return False
    if isinstance(preset, ViTConfig) and isinstance(config, ViTConfig) and _layers(preset) != _layers(config):
        return False
    return all(
        getattr(preset, field.name) == getattr(config, field.name)
        for field in dataclasses.fields(preset)
        if field.name not in ASIDE
    )


def _layers(config: ViTConfig) -> tuple[object, ...]:
    """Return which layers the ignored fields add to the weights."""
    norm, scale = config.final_norm != "none", config.layer_scale is not None
    return type(config.position), isinstance(config.pool, AttentionPool), norm, scale
