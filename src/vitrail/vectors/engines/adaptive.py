"""Run a plain model on adaptive patches: flat parts of an image get larger patches, and fewer tokens are computed.

The model was not trained for it (`vitrail.checkpoint.surgery.adaptive`), so a large patch replaces the small ones that
it covers: it is counted that many times in attention and in pooling. An image with hardly a flat part keeps its small
patches, because cutting and packing would cost more than they save.

Shapes: B images, N patches of the image that has most, T tokens of one image, D width, H×W pixels, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from torch import Tensor

from vitrail.geometry import Size
from vitrail.nn.adaptive import AdaptiveEmbed
from vitrail.nn.attention import within
from vitrail.nn.layout import Layout
from vitrail.nn.patches import PatchEmbed
from vitrail.vectors.engines.engine import LeanEngine
from vitrail.vectors.engines.lean import Group
from vitrail.vectors.engines.merged import Merged
from vitrail.vectors.engines.pack import PackedEngine

__all__ = ["AdaptiveEngine"]

WORTHWHILE = 0.05
"""The share of its patches that an image must save to be cut into patches of different sizes."""


class AdaptiveEngine(PackedEngine):
    """An engine that packs images, because adaptive patches differ in number from image to image."""

    def __init__(self, engine: LeanEngine) -> None:
        super().__init__(engine)
        embedding, steps = engine.model.embedding, engine.preprocessing
        assert isinstance(embedding, AdaptiveEmbed)
        small = embedding.projections[0]
        assert isinstance(small, PatchEmbed)
        self.adaptive, self.small = embedding, small.from_bytes(steps.mean, steps.std)

    def groups(self, batch: Tensor) -> Iterator[tuple[Tensor, Group]]:
        if self.engine.model.config.remainder != "error":  # pixels are fitted to the patches first
            yield from self._cut(*self.engine.embed(batch))
            return
        pixels = self.engine.preprocessing.normalise(batch.permute(0, 3, 1, 2))
        scores = self.adaptive.scores(pixels)
        most = self.engine.model.config.fit(Size(*batch.shape[1:3])).grid.area
        flat = (self.adaptive.counts(scores) <= (1 - WORTHWHILE) * most).tolist()
        start = 0
        for cut, alike in groupby(flat):
            part = slice(start, start + len(list(alike)))
            start = part.stop
            if cut:
                yield from self._cut(*self._placed(*self.adaptive.cut(pixels[part], [each[part] for each in scores])))
            else:
                x, layout = self._placed(*self.small(batch[part]))
                position = within(self.engine.model.position, layout, x)
                yield x.flatten(0, 1), Group(count=len(x), layout=layout, tokens=x.shape[1], position=position)

    def _placed(self, x: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """Patches → the input of the first block."""
        model = self.engine.model
        x, layout = model.placed(x if model.patch_norm is None else model.patch_norm(x), layout)
        return x if model.embedding_norm is None else model.embedding_norm(x), layout

    def _cut(self, x: Tensor, layout: Layout) -> Iterator[tuple[Tensor, Group]]:
        """Images of different lengths, each a group of its own."""
        assert layout.rectangles is not None
        counts = [x.shape[1]] * len(x) if layout.mask is None else layout.mask.sum(dim=1).tolist()
        for index, tokens in enumerate(counts):
            rectangles = layout.rectangles[index : index + 1, : tokens - layout.prefix]
            own = replace(layout, mask=None, rectangles=rectangles)
            position = within(self.engine.model.position, own, x)
            group = Group(count=1, layout=own, tokens=tokens, position=position, merged=Merged.of(own))
            yield x[index, :tokens], group
