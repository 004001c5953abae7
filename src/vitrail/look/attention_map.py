"""The attention weights of one layer.

Shapes: B images, h heads, T tokens of which p are the prefix and N patches, Q queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from vitrail.charts.notebook import Shown, pictures
from vitrail.charts.raster import data_uri, heat
from vitrail.geometry import Size
from vitrail.nn.adaptive import to_dense
from vitrail.nn.layout import Layout

__all__ = ["AttentionMap", "heat_map"]


@dataclass(frozen=True, kw_only=True, repr=False)
class AttentionMap(Shown):
    """The attention weights of one layer.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import capture
    >>> model = load("default").model()
    >>> with capture(model) as maps:
    ...     _ = model(torch.zeros(1, 3, 32, 32))
    >>> maps[-1]
    <AttentionMap: blocks.5.attention, 1 × 4 heads × 65 queries × 65 keys, grid 8x8>
    >>> maps[-1].on_grid().shape
    torch.Size([1, 4, 65, 8, 8])
    """

    layer: int
    name: str
    """The module's name in the model: `blocks.6.attention`."""
    weights: Tensor
    """(B, h, Q, T), without dropout; a row sums to 1 over the keys that it attends to."""
    queries: Tensor
    """(Q,): indices in the sequence."""
    layout: Layout
    places: Size | None = None
    """Set in a mobile model, where attention runs per pixel of a patch: B counts (image, row, column in the patch)."""
    scores: Tensor | None = None
    """(B, h, Q, T): the weights before their softmax, in a chunk of rows that attend to every key."""

    @property
    def prefix(self) -> Tensor:
        """(B, h, Q, p): the weights of CLS, distillation and registers."""
        return self.weights[..., : self.layout.prefix]

    @property
    def patches(self) -> Tensor:
        """(B, h, Q, N): the weights of patches."""
        return self.weights[..., self.layout.prefix :]

    def on_grid(self) -> Tensor:
        """Return the weights of patches on the grid, (B, h, Q, rows, columns); an adaptive patch fills its cells."""
        flat = self.patches.flatten(1, 2).mT  # (B, N, h·Q)
        return to_dense(flat, self.layout).unflatten(1, self.weights.shape[1:3])

    def _summary(self) -> str:
        images, heads, queries, keys = self.weights.shape
        return f"{self.name}, {images} × {heads} heads × {queries} queries × {keys} keys, grid {self.layout.grid}"

    def _panel(self) -> Iterator[str]:
        heads = self.on_grid()[0, :, 0]
        yield f"<div>The first image, query {int(self.queries[0])}, by head, each from 0 to its largest weight</div>"
        yield pictures((f"head {place}", heat_map(each)) for place, each in enumerate(heads))


def heat_map(weights: Tensor) -> str:
    """(rows, columns) → a picture."""
    values = weights.detach().float().cpu().numpy()
    return data_uri(heat(values, 0.0, float(values.max())))
