"""Run a plain model on adaptive patches: flat parts of an image get larger patches, and fewer tokens are computed.

The model was not trained for it (`vitrail.checkpoint.surgery.adaptive`), so a large patch replaces the small ones that
it covers: it is counted that many times in attention and in pooling.

Shapes: B images, N patches of the image that has most, T tokens of one image, D width, H×W pixels, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.nn.adaptive import to_dense
from vitrail.nn.attention import within
from vitrail.nn.layout import Layout
from vitrail.vectors.engines.pack import Group, PackedEngine

__all__ = ["AdaptiveEngine"]


class AdaptiveEngine(PackedEngine):
    """An engine that packs images, because adaptive patches differ in number from image to image."""

    def groups(self, batch: Tensor) -> Iterator[tuple[Tensor, Group]]:
        x, layout = self.engine.embed(batch)
        assert layout.rectangles is not None
        counts = [x.shape[1]] * len(x) if layout.mask is None else layout.mask.sum(dim=1).tolist()
        for index, tokens in enumerate(counts):
            rectangles = layout.rectangles[index : index + 1, : tokens - layout.prefix]
            own = replace(layout, mask=None, rectangles=rectangles)
            # rotary positions leave no place for a bias: large patches are counted once
            position = within(self.engine.model.position, own, x)
            position = _counted(own) if position is None else position
            yield x[index, :tokens], Group(count=1, layout=own, tokens=tokens, position=position)

    def pooled(self, x: Tensor, layout: Layout) -> Tensor:
        """Pool over the cells of the full grid, each with the token that covers it."""
        if x.shape[1] > layout.prefix:
            patches = to_dense(x[:, layout.prefix :], layout).flatten(2).mT  # (1, h·w, D)
            x = torch.cat([x[:, : layout.prefix], patches], dim=1)
        return super().pooled(x, replace(layout, rectangles=None))


def _counted(layout: Layout) -> Tensor:
    """(1, 1, 1, T): the bias that counts a key once per cell that it covers."""
    assert layout.rectangles is not None
    cells = layout.rectangles[..., 2:].prod(dim=-1).float()  # (1, N)
    return F.pad(cells.log(), (layout.prefix, 0))[:, None, None]
