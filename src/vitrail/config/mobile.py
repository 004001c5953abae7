"""`MobileConfig`: a convolutional network with transformers inside."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import lcm
from operator import mul
from typing import ClassVar, Literal, Self

from vitrail.config.base import BaseConfig, Epsilon, check_sides
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size, fit
from vitrail.parts import FullAttention, SeparableAttention
from vitrail.rules import NonNegativeInt, PositiveInt, divided_by_heads
from vitrail.value import Value

__all__ = ["MobileConfig", "MobileStage"]


@dataclass(frozen=True, kw_only=True)
class MobileStage(Value):
    """Residual blocks of one width; with `transformer_depth`, followed by a transformer.

    >>> from vitrail import preset
    >>> preset("mobilevit-S").stages[-1].transformer_depth
    3
    """

    width: PositiveInt
    depth: PositiveInt = 1
    stride: Literal[1, 2] = 1
    """2 halves the feature map."""
    transformer_width: NonNegativeInt = 0
    transformer_depth: NonNegativeInt = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.transformer_width > 0) == (self.transformer_depth > 0),
            f"transformer_width {self.transformer_width} with transformer_depth {self.transformer_depth}: "
            "give both, or neither",
        )


@dataclass(frozen=True, kw_only=True)
class MobileConfig(BaseConfig):
    """A small convolutional network with transformers inside: the MobileViT shape (arXiv 2110.02178).

    With `attention=SeparableAttention()` it is a MobileViT v2 (arXiv 2206.02680). With `residual="basic"` and no
    transformer in any stage it is a ResNet (arXiv 1512.03385), to compare a ViT with.

    >>> from vitrail import preset
    >>> preset("mobilevit-S").grid
    Size(height=8, width=8)
    """

    KIND: ClassVar[str] = "mobile"

    image: Size = Size(256, 256)
    channels: PositiveInt = 3
    stem_width: PositiveInt = 16
    stem_stride: Literal[1, 2] = 2
    """2 halves the image."""
    stages: tuple[MobileStage, ...] = (
        MobileStage(width=32),
        MobileStage(width=64, depth=3, stride=2),
        MobileStage(width=96, stride=2, transformer_width=144, transformer_depth=2),
        MobileStage(width=128, stride=2, transformer_width=192, transformer_depth=4),
        MobileStage(width=160, stride=2, transformer_width=240, transformer_depth=3),
    )
    residual: Literal["inverted", "basic"] = "inverted"
    """inverted: 1×1, 3×3 depthwise and 1×1 convolutions, as in MobileNetV2; basic: two of 3×3, as in ResNet."""
    expansion: PositiveInt = 4
    """Inner width of a residual block over its own: the width before an inverted one, the width after a basic one."""
    patch: Size = Size(2, 2)
    """In feature-map pixels. Attention runs separately for each position inside the patch."""
    attention: FullAttention | SeparableAttention = FullAttention()
    """SeparableAttention makes transformers of MobileViT v2: linear in the patches, with a depthwise convolution before
    them, norms over whole images, and nothing of the map before them added to their result."""
    num_heads: PositiveInt = 4
    mlp_ratio: PositiveInt = 2
    last_width: NonNegativeInt = 640
    """Width of a last 1×1 convolution; with 0 there is none."""
    norm_eps: Epsilon = 1e-5
    classes: NonNegativeInt = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.stages) > 0,
            "stages is empty, and a mobile model needs one or more; give at least one MobileStage",
        )
        for stage in self.stages:
            if stage.transformer_depth and isinstance(self.attention, FullAttention):
                divided_by_heads("transformer_width", stage.transformer_width, "num_heads", self.num_heads)
        self.check(self.image)

    def check(self, image: Size) -> None:
        """Raise an error unless every stage gets a whole feature map and every transformer whole patches."""
        check_sides("this mobile model", image, self.unit)

    @property
    def unit(self) -> Size:
        """The size that an image must be a multiple of, for whole feature maps and patches in every stage."""
        stages = zip(self.stages, self.strides, strict=True)
        cells = [stride for stage, stride in stages if stage.transformer_depth]
        last = self.strides[-1]
        return Size(*(lcm(last, *(cell * side for cell in cells)) for side in self.patch))

    def with_patch(self, patch: Size) -> Self:
        raise VitrailError(f"patch {patch} cannot be set on a mobile model; change its stages")

    @property
    def strides(self) -> tuple[int, ...]:
        """Image pixels per feature-map pixel, for every stage."""
        return tuple(accumulate((stage.stride for stage in self.stages), mul, initial=self.stem_stride))[1:]

    @property
    def vector_width(self) -> int:
        """The width of the pooled vector, which is the input of the head."""
        return self.last_width or self.stages[-1].width

    @property
    def grid(self) -> Size:
        """The size of the last feature map."""
        return fit(self.image, Size(self.strides[-1], self.strides[-1])).grid
