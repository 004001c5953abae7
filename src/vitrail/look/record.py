"""Record one forward pass, so that every view of a model on an image is computed without another one.

    recording = record(model, image)
    recording.attention[11].rows([0]).weights  # (1, h, 1, T): one row of every head
    recording.after(3)                         # the tokens after block 3, and their layout

Queries and keys are kept instead of maps: 2·T·D numbers per layer instead of h·T².

Shapes: B images, C channels, H×W pixels, h heads, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.charts.notebook import Brief
from vitrail.look.inputs import AttentionInputs, watching
from vitrail.look.tokens import block_outputs, blocks_of
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

    def after(self, layer: int | None = None) -> tuple[Tensor, Layout]:
        """Return the tokens after a block, and their layout; by default, the features: see `tokens_after`."""
        if layer is None:
            return self.features
        return self.blocks[layer_index(layer, len(blocks_of(self.model, layer)))]


@torch.no_grad()
def record(model: ViT | PyramidViT | MobileViT, image: Tensor) -> Recording:
    """Run the model once on (B, C, H, W) and record what its views need.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import record
    >>> model = load("default").model()
    >>> recording = record(model, torch.zeros(1, 3, 32, 32))
    >>> recording.attention[0].rows([3, 4]).weights.shape
    torch.Size([1, 4, 2, 65])
    """
    attention: list[AttentionInputs] = []
    with watching(model, attention.append), block_outputs(model) as blocks, _returned(model, "features") as features:
        output = model(image)
    return Recording(model=model, attention=attention, blocks=blocks, features=features[0], output=output)


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
