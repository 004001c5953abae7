"""Record one forward pass, so that every view of a model on an image is computed without another one.

    recording = record(model, image)
    recording.attention[11].rows([0]).weights  # (1, h, 1, T): one row of every head
    recording.after(3)                         # the tokens after block 3, and their layout

Queries and keys are kept instead of maps: 2·T·D numbers per layer instead of h·T².

Shapes: B images, C channels, H×W pixels, h heads, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.charts.notebook import Brief
from vitrail.geometry import Size
from vitrail.look.attention_map import AttentionMap
from vitrail.look.cells import Spacing
from vitrail.look.heads import patch_distances
from vitrail.look.inputs import AttentionInputs, watching
from vitrail.look.statistics import HeadStatistics, head_statistics
from vitrail.look.tokens import block_outputs, blocks_of
from vitrail.nn.attention import FullMix
from vitrail.nn.intermediates import layer_index
from vitrail.nn.layout import Layout
from vitrail.nn.mobile import MobileViT
from vitrail.nn.pyramid import PyramidViT
from vitrail.nn.vit import ViT

__all__ = ["Recording", "record"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Recording(Brief):
    """One forward pass of a model.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import record
    >>> recording = record(load("default").model(), torch.zeros(1, 3, 32, 32))
    >>> recording.attention[5].rows("cls").weights.shape, recording.after(2)[0].shape, recording.output.shape
    (torch.Size([1, 4, 1, 65]), torch.Size([1, 65, 96]), torch.Size([1, 10]))
    """

    model: ViT | PyramidViT | MobileViT
    attention: list[AttentionInputs]
    """By layer."""
    blocks: list[tuple[Tensor, Layout]]
    """The tokens (B, T, D) after each block, and their layout."""
    features: tuple[Tensor, Layout]
    """What `model.features` returned."""
    output: Tensor
    """What the model returned: logits, or the vector of a model without a head."""
    heads: dict[int, HeadStatistics]
    """By layer: the statistics that were computed in the pass."""

    def after(self, layer: int | None = None) -> tuple[Tensor, Layout]:
        """Return the tokens after a block, and their layout; by default, the features: see `tokens_after`."""
        if layer is None:
            return self.features
        return self.blocks[layer_index(layer, len(blocks_of(self.model, layer)))]


@torch.no_grad()
def record(
    model: ViT | PyramidViT | MobileViT, image: Tensor, *, spacing: Callable[[Layout], Spacing] | None = None
) -> Recording:
    """Run the model once on (B, C, H, W) and record what its views need.

    `spacing` gives the size of a patch in pixels. With it, the statistics of heads are computed in the same pass where
    attention is full and nothing is padded: the rows that they reduce also mix the values, in place of the fused
    kernel, whose results they equal up to rounding.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import record
    >>> model = load("default").model()
    >>> recording = record(model, torch.zeros(1, 3, 32, 32))
    >>> recording.attention[0].rows([3, 4]).weights.shape
    torch.Size([1, 4, 2, 65])
    >>> record(model, torch.zeros(1, 3, 32, 32), spacing=lambda layout: (4, 4)).heads[5].distance.shape
    torch.Size([1, 4])
    """
    attention: list[AttentionInputs] = []
    heads: dict[int, HeadStatistics] = {}
    distances: dict[tuple[Size, torch.dtype], Tensor] = {}

    def observe(inputs: AttentionInputs, v: Tensor) -> Tensor | None:
        attention.append(inputs)
        layout = inputs.layout
        if spacing is None or not isinstance(inputs.mix, FullMix) or layout.mask is not None or inputs.places:
            return None
        key = layout.grid, v.dtype
        if layout.rectangles is not None or key not in distances:  # the layers of one grid share them
            distances[key] = patch_distances(layout, v, spacing(layout))
        rows = _Mixed(inputs, v)
        heads[inputs.layer] = head_statistics(rows, distances[key])
        return rows.values

    with watching(model, observe), block_outputs(model) as blocks, _returned(model, "features") as features:
        output = model(image)
    return Recording(model=model, attention=attention, blocks=blocks, features=features[0], output=output, heads=heads)


class _Mixed:
    """The rows of attention, which mix the values (B, h, T, d) while they are iterated over."""

    def __init__(self, inputs: AttentionInputs, v: Tensor) -> None:
        self._inputs, self._v = inputs, v.contiguous()
        batch, heads, tokens, width = v.shape
        self.values = v.new_empty(batch, tokens, heads, width).transpose(1, 2)  # the order that the layer goes on with

    def __iter__(self) -> Iterator[AttentionMap]:
        done = 0
        for rows in self._inputs.chunks():
            count = len(rows.queries)
            self.values[:, :, done : done + count] = rows.weights.to(self._v.dtype) @ self._v
            done += count
            yield rows


@contextmanager
def _returned(model: nn.Module, name: str) -> Iterator[list[Any]]:
    """Collect what a method of the model returns inside the `with` block."""
    method, returned = getattr(model, name), []

    def noted(*arguments: Any, **keywords: Any) -> Any:
        returned.append(method(*arguments, **keywords))
        return returned[-1]

    vars(model)[name] = noted
    try:
        yield returned
    finally:
        del vars(model)[name]
