"""The preprocessing that a model expects, and how it is known; all pixels are prepared here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.rules import FiniteFloat, PositiveFloat, PositiveInt, Range
from vitrail.value import Value

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.checkpoint.pixels import Image, Prepared

__all__ = ["HALF", "IMAGENET", "OPENAI_CLIP", "Interpolation", "Preprocessing", "Statistics"]

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation per channel, of pixels between 0 and 1."""

IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OPENAI_CLIP: Statistics = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF: Statistics = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@dataclass(frozen=True, kw_only=True)
class Preprocessing(Value):
    """Resize, perhaps crop, scale to 0 … 1, subtract `mean`, divide by `std`.

    >>> from vitrail import Preprocessing, synthesize_image
    >>> steps = Preprocessing(image="48x64", crop_share=0.9)
    >>> steps(synthesize_image(0)).shape, steps.resize_to
    (torch.Size([1, 3, 48, 64]), Size(height=53, width=71))
    """

    image: Size
    mean: tuple[FiniteFloat, ...] = HALF[0]
    std: tuple[PositiveFloat, ...] = HALF[1]
    interpolation: Interpolation = "bicubic"
    resize: Literal["crop", "squash"] = "crop"
    """Whether the shorter side or both sides are resized to image / crop_share, before the centre is cropped."""
    crop_share: Annotated[float, Range("[0.0625, 1]", "use 1 for no crop")] = 1.0
    """The share of a side that the crop keeps; at least 1/16, so that the resized image stays small."""
    half_pixel: Literal["even", "down"] = "even"
    """How half of an odd margin is rounded in the crop: to even (torchvision, timm) or down (transformers)."""
    patch_budget: PositiveInt | None = None
    """For models of the image's own aspect ratio (NaFlex): the most patches, which the image is enlarged or shrunk to
    fill; None for models of one size."""
    source: str = "the default"
    """Source of these values: a file beside the weights, or the family's usual ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.mean) == len(self.std),
            f"mean {self.mean} and std {self.std} do not fit; give one of each per channel",
        )

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def resize_to(self) -> Size:
        """Return the size to which the image, or its shorter side, is resized before the crop, rounded down as in timm.

        >>> Preprocessing(image=Size(224, 224), crop_share=0.9).resize_to
        Size(height=248, width=248)
        """
        # the epsilon inverts a share that was computed from two sides
        return Size(*(math.floor(side / self.crop_share + 1e-6) for side in self.image))

    def resized_size(self, original: Size) -> Size:
        """Return the size to which the whole image is resized before the crop.

        The shorter side is image / crop_share, rounded down, and the longer one follows: rounded down for a square
        (torchvision, timm, transformers), to the nearest otherwise (timm).

        >>> Preprocessing(image=Size(224, 224), crop_share=0.9).resized_size(Size(480, 641))
        Size(height=248, width=331)
        """
        target = self.resize_to
        if self.resize == "squash":
            return target
        if target.height == target.width:
            short = min(original)
            return Size(*(int(target.height * side / short) for side in original))
        scale = min(original.height / target.height, original.width / target.width)
        return Size(*(round(side / scale) for side in original))

    def corner(self, resized: Size) -> tuple[int, int]:
        """Return the top row and the left column of the crop in the resized image."""
        margins = [(whole - part) / 2 for whole, part in zip(resized, self.image, strict=True)]
        top, left = (math.floor(margin) if self.half_pixel == "down" else round(margin) for margin in margins)
        return top, left

    def part_of(self, original: Size) -> tuple[float, float, float, float]:
        """Return the part of the original that the model sees: top, left, height and width, in pixels.

        >>> Preprocessing(image=Size(64, 64)).part_of(Size(320, 400))
        (0.0, 40.0, 320.0, 320.0)
        """
        resized = self.resized_size(original)
        down, across = original.height / resized.height, original.width / resized.width
        top, left = self.corner(resized)
        return top * down, left * across, self.image.height * down, self.image.width * across

    def squashed(self, image: Size) -> Preprocessing:
        """Return a copy that resizes the whole image to `image`, ignoring its aspect ratio."""
        return self.but(image=image, resize="squash", crop_share=1.0)

    def __call__(self, *images: Image, exact: bool = True) -> Tensor:
        """Files, bytes or decoded pixels → (B, C, H, W), as the model takes them."""
        import torch

        require(len(images) > 0, "no image is given; give a file, its bytes or uint8 pixels")
        pixels = [torch.from_numpy(self.pixels(image, exact=exact).pixels) for image in images]
        return self.normalise(torch.stack(pixels).permute(0, 3, 1, 2))

    def pixels(self, image: Image, *, exact: bool = False) -> Prepared:
        """Decode, resize and crop to uint8; raise ImageError if the image cannot be decoded."""
        from vitrail.checkpoint.pixels import prepare  # needs NumPy and Pillow; sizes and crops do not

        return prepare(image, self, exact=exact)

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 (B, C, H, W) → float32, `(x/255 − mean)/std`."""
        import torch

        mean, std = (torch.tensor(values, device=images.device)[:, None, None] for values in (self.mean, self.std))
        return (images.float() / 255 - mean) / std
