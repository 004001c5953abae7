"""What a model expects of its pixels, and where that is known from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.rules import as_size

__all__ = ["HALF", "IMAGENET", "OPENAI_CLIP", "Interpolation", "Preprocessing", "Statistics"]

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and deviation per channel, of pixels between 0 and 1."""

LEAST_SHARE = 1 / 16
"""Of a side that the crop keeps: the image is first resized to this many times the model's, or less."""

IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OPENAI_CLIP: Statistics = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF: Statistics = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Resize, perhaps crop, scale to 0 … 1, subtract `mean`, divide by `std`."""

    image: Size
    mean: tuple[float, ...] = HALF[0]
    std: tuple[float, ...] = HALF[1]
    interpolation: Interpolation = "bicubic"
    resize: Literal["crop", "squash"] = "crop"
    """crop: the shorter side to image / crop_share, then the middle; squash: both sides, then too."""
    crop_share: float = 1.0
    half_pixel: Literal["even", "down"] = "even"
    """Where the middle begins when the margin is odd: half of it rounds to even (torchvision, timm) or down
    (transformers)."""
    source: str = "the default"
    """Where this was found: a file beside the weights, or what the family was trained with."""

    def __post_init__(self) -> None:
        as_size(self, "image")
        require(
            len(self.mean) == len(self.std) and all(value > 0 for value in self.std),
            f"mean {self.mean} and std {self.std} do not fit; give one of each per channel, std above 0",
        )
        require(
            LEAST_SHARE <= self.crop_share <= 1,
            f"crop_share {self.crop_share:g} is outside {LEAST_SHARE} ≤ share ≤ 1; use 1 for no crop",
        )

    @property
    def whole(self) -> Size:
        """What the image is resized to, or its shorter side, before the middle is cut out: rounded down, as in timm.

        >>> Preprocessing(image=Size(224, 224), crop_share=0.9).whole
        Size(height=248, width=248)
        """
        # a hair more, so that a share that was once computed from two sides gives the larger one back
        return Size(*(math.floor(side / self.crop_share + 1e-6) for side in self.image))
