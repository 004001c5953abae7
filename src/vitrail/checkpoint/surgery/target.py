"""The target config of an adaptation, and whether the weights can be adapted to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, get_args

from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.surgery.resample import Method
from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import (
    AttentionPool,
    ClsMeanPool,
    ClsPool,
    Convention,
    Learned,
    MaxPool,
    MeanPool,
    Mlp,
    Patches,
    Pool,
    Position,
    Prefix,
    RelativeBias,
    RelativeConvention,
    RelativeMlp,
    ResNetStem,
    TiledTable,
    Tubelets,
)

__all__ = ["change_preprocessing", "check_target", "find_target"]

VIT_FIXED = ("width", "depth", "num_heads", "embedding_norm", "qkv_bias", "qk_norm", "mlp", "layer_scale", "neck",
             "merger")  # fmt: skip
FIXED = frozenset((*VIT_FIXED, "cosine_attention", "stages", "merging", "mlp_ratio", "stem_width", "stem_stride",
                   "residual", "expansion", "last_width"))  # fmt: skip
"""Fields that determine the shapes of the encoder's weights and cannot change."""


def find_target(config: Config, changes: Mapping[str, Any], *, method: Method | None = None) -> Config:
    """Return the config with some fields changed; `patch`, `frames` and `tubelet` work for every ViT, and `method`
    sets the convention.

    Values may be text, as on the command line: an image "384x640", a prefix "cls,registers=4", a pool "mean".
    """
    found = {name: _read_value(config, name, value) for name, value in changes.items()}
    if isinstance(config, MobileConfig) and {"frames", "tubelet"} & found.keys():
        config.with_frames(found.get("frames", config.frames))  # which says why not
    if not isinstance(config, MobileConfig):
        if "patch" in found:
            require("embedding" not in found, "patch and embedding both say the patch; give one of them")
            found["embedding"] = config.embedding.with_patch(found.pop("patch"))
        if {"frames", "tubelet"} & found.keys():
            frames, tubelet = found.pop("frames", config.frames), found.pop("tubelet", None)
            base = config.but(embedding=found["embedding"]) if "embedding" in found else config
            found["embedding"] = base.with_frames(frames, tubelet).embedding
        pool, prefix = found.get("pool", config.pool), found.get("prefix", config.prefix)
        require(
            prefix.cls or not isinstance(pool, ClsPool | ClsMeanPool),
            "the new prefix has no cls, which the model pools by; choose another pool as well, such as mean",
        )
        if "position" not in found:
            found |= _position_of(config.position, prefix, method)
    return config.but(**found)


def _position_of(position: Position | TiledTable, prefix: Prefix, method: Method | None) -> dict[str, Position]:
    """Return the changed position: with the named convention, and without prefix entries if there is no prefix."""
    if isinstance(position, Learned) and method in get_args(Convention):
        return {"position": replace(position, convention=method)}
    if isinstance(position, RelativeBias):
        if method in get_args(RelativeConvention):
            position = replace(position, convention=method)
        return {"position": replace(position, prefix=position.prefix and prefix.count > 0)}
    return {}


def _read_value(config: Config, name: str, value: Any) -> Any:
    """Parse values that are given as text; the config checks all others."""
    if not isinstance(config, MobileConfig) and name == "pool":
        return _read_pool(value, config)
    if not isinstance(config, MobileConfig) and name == "prefix":
        return Prefix.parse(value)
    return Size.of(value) if name == "patch" else value


def _read_pool(value: Pool | str, config: ViTConfig | PyramidConfig) -> Pool:
    if isinstance(value, Pool):
        return value
    pools: dict[str, Pool] = {"cls": ClsPool(), "mean": MeanPool()}
    if isinstance(config, ViTConfig):
        activation = config.mlp.activation if isinstance(config.mlp, Mlp) else "gelu_tanh"
        pools |= {
            "max": MaxPool(),
            "cls_mean": ClsMeanPool(),
            "attention": AttentionPool(num_heads=config.num_heads, mlp_width=config.mlp.width, activation=activation),
        }
    if not isinstance(value, str) or value not in pools:
        kinds = ", ".join(type(pool).__name__ for pool in pools.values())
        raise VitrailError(f"pool {value!r} is unknown; use one of {', '.join(pools)}, or a value of {kinds}")
    return config.pool if isinstance(pools[value], type(config.pool)) else pools[value]


def check_target(source: Config, target: Config) -> None:
    """Raise VitrailError if weights cannot be adapted: another width, depth, kind of embedding or position."""
    require(
        source.channels == target.channels or not _standardises(source),
        f"channels change from {source.channels} to {target.channels}, and a ResNetStem standardises its filters, "
        "which undoes the scale that other channels need; keep the channels, or repeat the image's",
    )
    require(
        type(source) is type(target),
        f"a {type(source).__name__} cannot become a {type(target).__name__}; adapt within one kind",
    )
    for field in fields(source):
        old, new = getattr(source, field.name), getattr(target, field.name)
        require(
            field.name not in FIXED or old == new,
            f"{field.name} changes from {old} to {new}, and weights cannot follow; "
            "adapt changes image, patch, frames, channels, prefix, pool, classes and convention",
        )
        if field.name in ("embedding", "position"):
            require(
                type(old) is type(new) or {type(old), type(new)} == {Patches, Tubelets},
                f"{field.name} changes from {type(old).__name__} to {type(new).__name__}, and weights cannot follow; "
                "train a model with it, or keep the kind",
            )
        if isinstance(old, RelativeMlp):
            require(
                new.but(reference=old.reference) == old,
                f"position changes from {old} to {new}, and the weights of its MLP cannot follow; keep it",
            )


def _standardises(config: Config) -> bool:
    return isinstance(config, ViTConfig) and isinstance(config.embedding, ResNetStem)


def change_preprocessing(before: Preprocessing, target: Config) -> Preprocessing:
    """Return the preprocessing for the target's image size; mean and std follow the channels as the filters do."""
    channels, mean, std = target.channels, before.mean, before.std
    if channels == 1 and len(mean) > 1:
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    elif channels != len(mean):
        mean, std = (tuple(values[i % len(values)] for i in range(channels)) for values in (mean, std))
    if (mean, std, target.image) == (before.mean, before.std, before.image):
        return before
    return replace(before, image=target.image, mean=mean, std=std)
