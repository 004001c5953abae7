"""The cost of the ResNet before the patches of a hybrid ViT."""

from __future__ import annotations

from itertools import pairwise

from vitrail.geometry import Size, fit, halved
from vitrail.parts import ResNetStem
from vitrail.plan import ops
from vitrail.plan.convolution_ops import GroupNorm, max_pool, standardise
from vitrail.plan.graph import Tensor, module
from vitrail.plan.tape import Tape

__all__ = ["resnet_embed"]


@module
def standardised_conv(t: Tape, path: str, x: Tensor, values: int, after: int, places: int, padded: int) -> Tensor:
    """A convolution of `values` values to `after` channels; if its padding is uneven, of a copy of `padded` values."""
    if padded:
        x = ops.pad(t, x, padded)
    return ops.conv(t, path, x, values * after, after, places, False, standardise(t, path, values, after))


@module
def conv_norm(
    t: Tape,
    path: str,
    x: Tensor,
    values: int,
    after: int,
    places: int,
    groups: int,
    padded: int = 0,
    activation: bool = True,
) -> Tensor:
    x = standardised_conv(t, f"{path}.conv", x, values, after, places, padded)
    x = GroupNorm(t, f"{path}.norm", x, after, groups)
    return ops.saving_output(t, path, x) if activation else x


@module
def bottleneck(
    t: Tape,
    path: str,
    x: Tensor,
    before: int,
    after: int,
    groups: int,
    batch: int,
    size: Size,
    stride: int,
    first: bool,
) -> Tensor:
    """`size` is that of the map before, of which a stride of 2 takes half."""
    inner, half = after // 4, size if stride == 1 else halved(size)
    places, padded = batch * half.area, 0 if stride == 1 else batch * inner * (size.height + 1) * (size.width + 1)
    branch = conv_norm(t, f"{path}.reduce", x, before, inner, batch * size.area, groups)
    branch = conv_norm(t, f"{path}.mix", branch, 9 * inner, inner, places, groups, padded)
    branch = conv_norm(t, f"{path}.expand", branch, inner, after, places, groups, 0, False)
    if not first:
        return ops.saving_output(t, path, ops.add(t, branch, x))
    # the shortcut has no name, so that it is freed after the sum, as in the module
    total = ops.add(t, branch, conv_norm(t, f"{path}.shortcut", x, before, after, places, groups, 0, False))
    return ops.saving_output(t, path, total)


@module
def resnet_embed(
    t: Tape, spec: ResNetStem, image: Tensor, pixels: Size, batch: int, channels: int, width: int
) -> Tensor:
    groups, size = batch * spec.groups, halved(pixels)
    padded = batch * channels * (pixels.height + 5) * (pixels.width + 5)
    start = [conv_norm(t, "embedding.stem", image, 49 * channels, spec.width, batch * size.area, groups, padded)]
    size = halved(size)
    x = max_pool(t, "embedding", start.pop(), batch * size.area * spec.width)
    for s, (depth, (before, after)) in enumerate(zip(spec.depths, pairwise(spec.widths), strict=True)):
        for i in range(depth):
            path, stride = f"embedding.stages.{s}.{i}", 2 if s and not i else 1
            x = bottleneck(t, path, x, after if i else before, after, groups, batch, size, stride, not i)
            size = size if stride == 1 else halved(size)
    grid = fit(size, spec.cells).grid
    values = spec.widths[-1] * spec.cells.area
    return ops.conv(t, "embedding.projection", x, values * width, width, batch * grid.area)
