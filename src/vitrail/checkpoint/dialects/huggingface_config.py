"""Hugging Face's config.json and preprocessor_config.json ↔ vitrail's values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Family
from vitrail.checkpoint.file import Stored
from vitrail.checkpoint.preprocessing import Interpolation, Preprocessing
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import Activation, Mlp

__all__ = ["activation_of", "common_fields", "labels", "processor_config", "read_processor", "size_of", "vision_part"]

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
}
RESAMPLE: dict[int, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers."""


def vision_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A model of image and text has its vision tower's config inside."""
    inside = config.get("vision_config")
    return inside if isinstance(inside, Mapping) else config


def size_of(value: Any) -> Size | None:
    """224, [384, 640] or nothing."""
    if isinstance(value, int):
        return Size.of(value)
    return Size(*value) if isinstance(value, list) and len(value) == 2 else None


def activation_of(config: Mapping[str, Any], default: str) -> Activation:
    name = config.get("hidden_act", default)
    require(
        name in ACTIVATIONS,
        f"config.json has hidden_act {name!r}, which vitrail's models do not have; they have {', '.join(ACTIVATIONS)}",
    )
    return ACTIVATIONS[name]


def common_fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """What every model type's config says in the same words."""
    config = _vit(checkpoint)
    image, patch = config.image, config.patch
    require(
        patch.height == patch.width,
        f"patch {patch} is not square, and Hugging Face's models take square patches; use another dialect",
    )
    activation = config.mlp.activation if isinstance(config.mlp, Mlp) else "gelu"
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "image_size": image.height if image.height == image.width else list(image),
        "patch_size": patch.height,
        "num_channels": config.channels,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": next(name for name, ours in ACTIVATIONS.items() if ours == activation),
    }


def _vit(checkpoint: Checkpoint) -> ViTConfig:
    if not isinstance(checkpoint.config, ViTConfig):
        raise VitrailError(f"{type(checkpoint.config).__name__} has no form in this dialect; write it as vitrail's own")
    return checkpoint.config


def labels(classes: int, origin: Mapping[str, Any]) -> dict[str, Any]:
    """Names of classes: those that came with the model where they still fit."""
    kept = origin.get("id2label")
    if not classes or (isinstance(kept, Mapping) and len(kept) == classes):
        return {}
    names = {index: f"LABEL_{index}" for index in range(classes)}
    return {"id2label": names, "label2id": {name: index for index, name in names.items()}}


def read_processor(stored: Stored, family: Family, image: Size) -> Preprocessing:
    stated = stored.processor
    if not stated:
        mean, std = family.statistics
        return Preprocessing(image=image, mean=mean, std=std, source="what most of the family was trained with")
    mean, std = (
        tuple(stated.get(key, default))
        for key, default in zip(("image_mean", "image_std"), family.statistics, strict=True)
    )
    size = stated.get("size", image.height)
    shorter = size.get("shortest_edge") if isinstance(size, Mapping) else size
    crops = bool(stated.get("do_center_crop", False)) and isinstance(shorter, int)
    return Preprocessing(
        image=image,
        mean=mean,
        std=std,
        interpolation=RESAMPLE.get(stated.get("resample", 3), "bicubic"),
        resize="crop" if crops else "squash",
        crop_share=min(1.0, min(image) / shorter) if crops and shorter else 1.0,
        source="preprocessor_config.json",
    )


def processor_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """A processor that does what `preprocessing` says; a crop of a non-square image is squashed to its size."""
    steps = checkpoint.preprocessing
    image = checkpoint.config.image
    size: dict[str, Any] = {"height": image.height, "width": image.width}
    numbers = {name: number for number, name in RESAMPLE.items()}
    shared = {
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "rescale_factor": 1 / 255,
        "resample": numbers[steps.interpolation],
        "image_mean": list(steps.mean),
        "image_std": list(steps.std),
    }
    if steps.resize == "crop" and image.height == image.width:
        edge = {"shortest_edge": round(image.height / steps.crop_share)}
        return {
            "image_processor_type": "CLIPImageProcessor",
            **shared,
            "do_center_crop": True,
            "size": edge,
            "crop_size": size,
        }
    return {"image_processor_type": "ViTImageProcessor", **shared, "size": size}
