"""Image → tokens on a tape: the convolutional stem and the pyramid of grids; plain patches are in `cost`.

Letters: B images, N tokens, D width.
"""

from __future__ import annotations

from itertools import pairwise

from vitrail.geometry import Size
from vitrail.parts import Adaptive, Hierarchical, Stem
from vitrail.plan import ops
from vitrail.plan.attention_ops import copy
from vitrail.plan.tape import Tape, Tensor, module

__all__ = ["adaptive_embed", "conv_stem", "halved", "patch_merge", "pyramid_embed"]


def halved(size: Size) -> Size:
    """What a 3×3 convolution of stride 2 leaves."""
    return Size(-(-size.height // 2), -(-size.width // 2))


@module
def conv_stem(t: Tape, spec: Stem, image: Tensor, pixels: Size, batch: int, channels: int, width: int) -> Tensor:
    for i, (before, after) in enumerate(pairwise((channels, *spec.widths))):
        pixels = halved(pixels)
        image = conv_norm_relu(t, f"embedding.layers.{i}", image, before, after, batch * pixels.area)
    return ops.conv(t, "embedding.projection", image, spec.widths[-1] * width, width, batch * pixels.area)


@module
def conv_norm_relu(t: Tape, path: str, x: Tensor, before: int, after: int, places: int) -> Tensor:
    return ops.saving_output(t, path, batch_norm(t, f"{path}.norm", _conv3(t, path, x, before, after, places), after))


@module
def _conv3(t: Tape, path: str, x: Tensor, before: int, after: int, places: int) -> Tensor:
    return ops.conv(t, f"{path}.conv", x, 9 * before * after, after, places, bias=False)


@module
def batch_norm(t: Tape, path: str, x: Tensor, width: int) -> Tensor:
    return ops.batch_norm(t, path, x, width)


@module
def pyramid_embed(
    t: Tape, spec: Hierarchical, image: Tensor, grid: int, batch: int, channels: int, width: int
) -> Tensor:
    """`grid` counts the patches of the last level; every level before has four times as many."""
    widths = (*spec.widths, width)
    patches = grid * 4 ** len(spec.widths)
    weights = widths[0] * channels * spec.finest.area
    levels = [_finest(t, image, weights, widths[0], batch * patches)]
    for i, (before, after) in enumerate(pairwise(widths)):
        levels.append(patch_merge(t, f"embedding.merges.{i}", levels[-1], before, after))
    return levels[-1]


@module
def _finest(t: Tape, image: Tensor, weights: int, width: int, places: int) -> Tensor:
    return ops.conv(t, "embedding.finest", image, weights, width, places)


@module
def patch_merge(t: Tape, path: str, x: Tensor, before: int, after: int) -> Tensor:
    """2×2 tokens side by side: a copy; its gradient is copied back into the grid's order."""
    x = copy(t, ops.copied_back(t, x))
    return ops.linear(t, f"{path}.reduce", _norm(t, f"{path}.norm", x, 4 * before), 4 * before, after, bias=False)


@module
def _norm(t: Tape, path: str, x: Tensor, width: int) -> Tensor:
    return ops.layer_norm(t, path, x, width)


@module
def adaptive_embed(
    t: Tape, spec: Adaptive, image: Tensor, pixels: Size, tokens: int, batch: int, channels: int, width: int
) -> Tensor:
    """Every pixel is gathered and projected once, whatever the tree; which patch size takes it, the images decide."""
    t.approximate("adaptive patches depend on the images: all are taken to have the same number of tokens")
    sizes = [patch.area * channels for patch in spec.patches]
    if spec.selector == "learned":
        for patch in spec.patches[1:]:
            _selector(t, image, batch * pixels.area // patch.area, channels)
    parts = []
    for i, size in enumerate(sizes):  # as if the finest patches took everything: the work is the same for all
        path, rows = f"embedding.projections.{i}", 0 if i else batch * tokens
        gathered = t.new(0 if i else image.count, image.size)
        parts.append(ops.gathered_linear(t, path, gathered, size, rows, width, 0 if i else 2 * image.count * width))
    return copy(t, ops.cat(t, *parts))


def _selector(t: Tape, image: Tensor, cells: int, channels: int) -> None:
    x = t.new(64 * channels * cells, image.size)
    x = ops.conv(t, "embedding.selector.conv1", x, 16 * 16 * channels, 16, 4 * cells)
    x = ops.saving_output(t, "embedding.selector", x)
    ops.saving_output(t, "embedding.selector", ops.conv(t, "embedding.selector.conv2", x, 4 * 16, 1, cells))
