"""What a model expects of its pixels, and where that is known from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.rules import FiniteFloat, PositiveFloat, Range
from vitrail.value import Value

__all__ = ["HALF", "IMAGENET", "OPENAI_CLIP", "Interpolation", "Preprocessing", "Statistics"]

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and deviation per channel, of pixels between 0 and 1."""

IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OPENAI_CLIP: Statistics = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF: Statistics = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@dataclass(frozen=True, kw_only=True)
class Preprocessing(Value):
    """Resize, perhaps crop, scale to 0 … 1, subtract `mean`, divide by `std`."""

    image: Size
    mean: tuple[FiniteFloat, ...] = HALF[0]
    std: tuple[PositiveFloat, ...] = HALF[1]
    interpolation: Interpolation = "bicubic"
    resize: Literal["crop", "squash"] = "crop"
    """Whether the shorter side or both sides are resized to image / crop_share, before the centre is cropped."""
    crop_share: Annotated[float, Range("[0.0625, 1]", "use 1 for no crop")] = 1.0
    """The share of a side that the crop keeps; at least 1/16, so that the resized image stays small."""
    half_pixel: Literal["even", "down"] = "even"
    """Where the middle begins when the margin is odd: half of it rounds to even (torchvision, timm) or down
    (transformers)."""
    source: str = "the default"
    """Where this was found: a file beside the weights, or what the family was trained with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.mean) == len(self.std),
            f"mean {self.mean} and std {self.std} do not fit; give one of each per channel",
        )

    @property
    def whole(self) -> Size:
        """What the image is resized to, or its shorter side, before the middle is cut out: rounded down, as in timm.

        >>> Preprocessing(image=Size(224, 224), crop_share=0.9).whole
        Size(height=248, width=248)
        """
        # a hair more, so that a share that was once computed from two sides gives the larger one back
        return Size(*(math.floor(side / self.crop_share + 1e-6) for side in self.image))
