"""The cost of adaptive patches."""

from __future__ import annotations

from vitrail.geometry import Size
from vitrail.parts import Adaptive
from vitrail.plan import ops
from vitrail.plan.graph import Tensor, module
from vitrail.plan.tape import Tape

__all__ = ["adaptive_embed"]


@module
def adaptive_embed(
    t: Tape, spec: Adaptive, image: Tensor, pixels: Size, tokens: int, batch: int, channels: int, width: int
) -> Tensor:
    """Every pixel is gathered and projected once, for any tree; the patch size depends on the image."""
    t.approximate("adaptive patches depend on the images: every image is assumed to have the same number of tokens")
    sizes = [patch.area * channels for patch in spec.patches]
    if spec.selector == "learned":
        for patch in spec.patches[1:]:
            _selector(t, image, batch * pixels.area // patch.area, channels)
    parts = []
    for i, size in enumerate(sizes):  # count all pixels for the finest patch: the cost is the same for all sizes
        path, rows = f"embedding.projections.{i}", 0 if i else batch * tokens
        gathered = t.new(0 if i else image.count, image.size)
        parts.append(ops.gathered_linear(t, path, gathered, size, rows, width, 0 if i else 2 * image.count * width))
    return ops.copy(t, ops.cat(t, *parts))


def _selector(t: Tape, image: Tensor, cells: int, channels: int) -> None:
    x = t.new(64 * channels * cells, image.size)
    x = ops.conv(t, "embedding.selector.conv1", x, 16 * 16 * channels, 16, 4 * cells)
    x = ops.saving_output(t, "embedding.selector", x)
    ops.saving_output(t, "embedding.selector", ops.conv(t, "embedding.selector.conv2", x, 4 * 16, 1, cells))
