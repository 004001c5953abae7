"""Which config an adaptation aims at, and whether weights can be carried there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, get_args

from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.resample import Method
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import Adaptive, Convention, Hierarchical, Learned, Patches, RelativeBias, RelativeConvention

__all__ = ["change_preprocessing", "check_target", "find_target"]

VIT_FIXED = ("width", "depth", "num_heads", "embedding_norm", "qkv_bias", "qk_norm", "mlp", "layer_scale")
FIXED = frozenset((*VIT_FIXED, "stages", "mlp_ratio", "stem_width", "expansion", "last_width"))
"""Fields that shape the encoder's own weights; the others may change."""


def find_target(config: Config, changes: Mapping[str, Any], *, method: Method | None = None) -> Config:
    """The config with some fields changed; `patch` works for every model, and a named convention goes along."""
    changes = dict(changes)
    if "patch" in changes and isinstance(config, ViTConfig):
        changes["embedding"] = _with_patch(config, Size.of(changes.pop("patch")))
    if isinstance(config, ViTConfig) and "position" not in changes:
        position = config.position
        if isinstance(position, Learned) and method in get_args(Convention):
            changes["position"] = replace(position, convention=method)
        if isinstance(position, RelativeBias):
            if method in get_args(RelativeConvention):
                position = replace(position, convention=method)
            if "prefix" in changes and changes["prefix"].count == 0:
                position = replace(position, prefix=False)
            changes["position"] = position
    return config.but(**changes)


def _with_patch(config: ViTConfig, patch: Size) -> Any:
    embedding = config.embedding
    if patch == embedding.patch:
        return embedding
    if isinstance(embedding, Patches):
        stride = embedding.stride
        if stride is not None:  # the same overlap, in parts of the patch
            scaled = [s * new / old for s, new, old in zip(stride, patch, embedding.patch, strict=True)]
            require(
                all(side == int(side) for side in scaled),
                f"stride {stride} of patch {embedding.patch} is not whole at patch {patch}; give the embedding itself",
            )
            stride = Size(*(int(side) for side in scaled))
        return replace(embedding, patch=patch, stride=stride)
    factor = [new / old for new, old in zip(patch, embedding.patch, strict=True)]
    if isinstance(embedding, Hierarchical):
        finest = [side * f for side, f in zip(embedding.finest, factor, strict=True)]
        if all(side == int(side) and side >= 1 for side in finest):
            return replace(embedding, finest=Size(*(int(side) for side in finest)))
    if isinstance(embedding, Adaptive):
        return replace(
            embedding,
            patches=tuple(Size(patch.height << level, patch.width << level) for level in range(len(embedding.patches))),
        )
    raise VitrailError(
        f"patch {patch} cannot be had from {type(embedding).__name__} of patch {embedding.patch}; keep its patch"
    )


def check_target(source: Config, target: Config) -> None:
    """Refuse what weights cannot follow: another width, depth, kind of embedding or of position."""
    require(
        type(source) is type(target),
        f"a {type(source).__name__} cannot become a {type(target).__name__}; adapt within one kind",
    )
    for field in fields(source):
        old, new = getattr(source, field.name), getattr(target, field.name)
        require(
            field.name not in FIXED or old == new,
            f"{field.name} changes from {old} to {new}, and weights cannot follow; "
            "adapt changes image, patch, channels, prefix, pool, classes and convention",
        )
        if field.name in ("embedding", "position"):
            require(
                type(old) is type(new),
                f"{field.name} changes from {type(old).__name__} to {type(new).__name__}, and weights cannot follow; "
                "train a model with it, or keep the kind",
            )


def change_preprocessing(before: Preprocessing, target: Config) -> Preprocessing:
    """The same pixels for another image size; statistics follow the channels as the filters do."""
    channels, mean, std = target.channels, before.mean, before.std
    if channels == 1 and len(mean) > 1:
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    elif channels != len(mean):
        mean, std = (tuple(values[i % len(values)] for i in range(channels)) for values in (mean, std))
    if (mean, std, target.image) == (before.mean, before.std, before.image):
        return before
    return replace(before, image=target.image, mean=mean, std=std)
