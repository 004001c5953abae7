"""The cost of the patch projection and the convolutional stem."""

from __future__ import annotations

from itertools import pairwise

from vitrail.geometry import Size, fit
from vitrail.parts import Stem
from vitrail.plan import ops
from vitrail.plan.graph import Tensor, module
from vitrail.plan.tape import Tape

__all__ = ["conv_stem", "patch_embed", "tubelet_embed"]


@module
def patch_embed(t: Tape, path: str, image: Tensor, values: int, width: int, places: int, bias: bool = True) -> Tensor:
    """Project patches of `values` values each at `places` positions of the whole batch."""
    return ops.conv(t, path, image, width * values, width, places, bias)


@module
def tubelet_embed(
    t: Tape, path: str, clip: Tensor, values: int, width: int, places: int, bias: bool, gaps: bool
) -> Tensor:
    """Project tubelets, and put the tokens of a clip's steps one after the other, which copies them; if their gradient
    has gaps, it is copied too."""
    tokens = ops.copy(t, patch_embed(t, path, clip, values, width, places, bias))
    return ops.copied_back(t, tokens) if gaps else tokens


@module
def conv_stem(t: Tape, spec: Stem, image: Tensor, pixels: Size, batch: int, channels: int, width: int) -> Tensor:
    *strides, last = spec.strides
    for i, ((before, after), stride) in enumerate(zip(pairwise((channels, *spec.widths)), strides, strict=True)):
        pixels = fit(pixels, stride).grid
        values = before * (9 if spec.overlap else stride.area)
        image = conv_norm(t, f"embedding.layers.{i}", image, values, after, batch * pixels.area, spec.activation)
    places = batch * fit(pixels, last).grid.area
    return ops.conv(t, "embedding.projection", image, spec.widths[-1] * last.area * width, width, places)


@module
def conv_norm(t: Tape, path: str, x: Tensor, values: int, after: int, places: int, activation: str) -> Tensor:
    x = ops.Conv(t, f"{path}.conv", x, values * after, after, places, False)
    x = ops.BatchNorm(t, f"{path}.norm", x, after)
    return ops.saving_output(t, path, x) if activation == "relu" else ops.activate(t, path, x)
