"""A plain model on adaptive patches: flat parts of an image are seen through larger ones, and fewer tokens do the work.

The model was not trained for it (`vitrail.checkpoint.surgery.adaptive`), so a large patch stands for the small ones
that it covers: it counts as many times in attention, and as many times when tokens are pooled.

Shapes: B images, N patches of the image that has most, T tokens of one image, D width, H×W pixels, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.embed.engines.pack import Group, PackedEngine
from vitrail.nn.adaptive import to_dense
from vitrail.nn.attention import within
from vitrail.nn.layout import Layout

__all__ = ["AdaptiveEngine"]


class AdaptiveEngine(PackedEngine):
    """Images have different numbers of patches, so they are packed, each attending by itself."""

    def groups(self, batch: Tensor) -> Iterator[tuple[Tensor, Group]]:
        x, layout = self.engine.embed(batch)
        assert layout.rectangles is not None
        counts = [x.shape[1]] * len(x) if layout.mask is None else layout.mask.sum(dim=1).tolist()
        for index, tokens in enumerate(counts):
            rectangles = layout.rectangles[index : index + 1, : tokens - layout.prefix]
            own = replace(layout, mask=None, rectangles=rectangles)
            # a rotary position leaves no room for a bias: its large patches count once
            position = within(self.engine.model.position, own, x)
            position = _counted(own) if position is None else position
            yield x[index, :tokens], Group(count=1, layout=own, tokens=tokens, position=position)

    def pooled(self, x: Tensor, layout: Layout) -> Tensor:
        """Every cell of the grid takes the token that stands for it, so that pooling means what it meant."""
        if x.shape[1] > layout.prefix:
            patches = to_dense(x[:, layout.prefix :], layout).flatten(2).mT  # (1, h·w, D)
            x = torch.cat([x[:, : layout.prefix], patches], dim=1)
        return super().pooled(x, replace(layout, rectangles=None))


def _counted(layout: Layout) -> Tensor:
    """(1, 1, 1, T): what makes a key count as often as the cells that it stands for."""
    assert layout.rectangles is not None
    cells = layout.rectangles[..., 2:].prod(dim=-1).float()  # (1, N)
    return F.pad(cells.log(), (layout.prefix, 0))[:, None, None]
