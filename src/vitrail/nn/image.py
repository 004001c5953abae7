"""What a model is given: a batch of normalised images."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import require

__all__ = ["check_image", "check_tensor"]

RAW = 100.0
"""No channel's deviation is so small that normalised pixels reach this and none is negative."""


def check_image(image: Any, channels: int, frames: int = 1) -> None:
    """Refuse what is not a batch of float images (B, C, H, W), or of clips (B, F, C, H, W) for a model that takes them,
    and warn about pixels from 0 to 255."""
    check_tensor(image)
    if frames == 1:
        require(
            image.ndim == 4 and image.shape[1] == channels,
            f"image has shape {tuple(image.shape)}; give (batch, {channels}, height, width)",
        )
    else:
        require(
            image.ndim == 5 and tuple(image.shape[1:3]) == (frames, channels),
            f"image has shape {tuple(image.shape)}, and this model takes clips of {frames} frames; give (batch, "
            f"{frames}, {channels}, height, width), or adapt the model to still images with frames=1",
        )
    require(
        image.is_floating_point(),
        f"image is {image.dtype} and a model takes normalised floats; give checkpoint.transform(image), or bytes to "
        "model.from_bytes(mean, std)",
    )
    if _has_raw_pixels(image):
        warnings.warn(
            "the image has values from 0 to 255, and models take normalised ones: give checkpoint.transform(image) or "
            "(image / 255 - mean) / std, unless this model was trained on such values",
            stacklevel=2,
        )


def check_tensor(image: Any) -> None:
    """Refuse Pillow images, arrays and paths, which `Checkpoint.transform` takes."""
    require(
        isinstance(image, Tensor),
        f"a model takes a tensor and not a value of type {type(image).__name__}; give it checkpoint.transform(image)",
    )


def _has_raw_pixels(image: Tensor) -> bool:
    """Whether the values look like bytes; unknown, and so false, where reading them would cost or break something."""
    if torch.compiler.is_compiling() or type(image) is not Tensor or image.device.type != "cpu" or not image.numel():
        return False
    try:
        low, high = (value.item() for value in image.detach().aminmax())
    except RuntimeError:  # under vmap and while tracing there are no values
        return False
    return low >= 0 and high > RAW
