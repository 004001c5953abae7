"""A model's attention as the page hovers over it: a byte a weight, every row scaled to its own largest.

Shapes: h heads, T tokens of which p are the prefix, c cells of the grid, Q = p + c rows: cells that one adaptive patch
covers share its row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.look.capture import AttentionMap, capture
from vitrail.look.cells import Cells
from vitrail.look.heads import attention_distance, head_entropy, uniform_attention
from vitrail.look.rollout import fuse_heads, rollout
from vitrail.look.subject import Subject
from vitrail.look.views.words import cells_on, prefix_names
from vitrail.nn.adaptive import to_dense
from vitrail.nn.layout import Layout
from vitrail.parts import Adaptive
from vitrail.studio.rooms.attention.attention_facts import LayerHeads

__all__ = ["WHOLE_BYTES", "Attended", "Rows", "attend", "attend_row"]

WHOLE_BYTES = 12 << 20
"""Up to here all rows of all heads travel at once, and hovering asks nothing."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of attention for a canvas, and exactly what a canvas does not show."""

    bytes: np.ndarray
    """uint8 (…, Q, c): 255 is the row's largest weight on a patch."""
    exact: np.ndarray
    """float32 (…, Q, 1 + p): that largest weight, and what goes to each prefix token."""


@dataclass(frozen=True, kw_only=True)
class Attended:
    layers: list[LayerHeads]
    rows: list[Rows] | None
    """Every row, by layer; None where they are too many."""
    grid: Size
    """The first layer's."""
    prefix: list[str]
    cells: Cells
    """Where the first layer's grid lies on the image."""
    rolled: Rows | None
    """(Q, c): through all layers."""
    why_not_rolled: str


def attend(subject: Subject) -> Attended:
    """All layers in one forward pass."""
    whole = _is_small(subject)

    def keep(found: AttentionMap) -> tuple[LayerHeads, Rows | None, AttentionMap]:
        found = _one_place(found)
        step, even = cells_on(subject, found.layout).step, uniform_attention(found)
        distance, entropy = attention_distance(found, step)[0], head_entropy(found)[0]
        layer = LayerHeads(
            name=found.name,
            grid=tuple(found.layout.grid),
            distance=distance.tolist(),
            mean_distance=distance.mean().item(),
            entropy=entropy.tolist(),
            mean_entropy=entropy.mean().item(),
            effective_tokens=entropy.exp2().tolist(),
            even_distance=attention_distance(even, step).item(),
            even_entropy=head_entropy(even).item(),
        )
        return layer, _all_rows(found.weights[0], found.layout) if whole else None, fuse_heads(found)

    with torch.no_grad(), capture(subject.model, keep=keep) as maps:
        subject.model(subject.image)
    layers, rows, fused = zip(*maps.values(), strict=True)
    try:
        rolled, reason = _all_rows(rollout(dict(enumerate(fused)))[0], fused[0].layout), ""
    except VitrailError as error:  # a pyramid's stages have grids of their own
        rolled, reason = None, str(error)
    return Attended(
        layers=list(layers),
        rows=list(rows) if whole else None,
        grid=fused[0].layout.grid,
        prefix=prefix_names(subject),
        cells=cells_on(subject, fused[0].layout),
        rolled=rolled,
        why_not_rolled=reason,
    )


def attend_row(subject: Subject, token: int) -> list[Rows]:
    """One token's row, (h, 1, c), in every layer; `token` counts the prefix, then the first layer's cells."""
    first: list[Size] = []

    def keep(found: AttentionMap) -> Rows:
        first.append(found.layout.grid)
        asks = _token_at(token, first[0], found.layout)
        return _scaled(_one_place(found).weights[0][:, found.queries == asks], found.layout)

    config = subject.model.config
    known = isinstance(config, ViTConfig) and not isinstance(config.embedding, Adaptive)
    with torch.no_grad(), capture(subject.model, queries=[token] if known else "all", keep=keep) as maps:
        subject.model(subject.image)
    return list(maps.values())


def _is_small(subject: Subject) -> bool:
    config = subject.model.config
    if not isinstance(config, ViTConfig):
        return False
    cells = config.fit(Size(*subject.image.shape[2:])).grid.area
    return config.depth * config.num_heads * (config.prefix.count + cells) * cells <= WHOLE_BYTES


def _one_place(found: AttentionMap) -> AttentionMap:
    """In a mobile model the places of a patch attend apart: their mean."""
    return found if found.places is None else replace(found, weights=found.weights.mean(dim=0, keepdim=True))


def _holders(layout: Layout) -> Tensor:
    """(c,): which patch covers each cell of the grid."""
    if layout.rectangles is None:
        return torch.arange(layout.grid.area)
    numbers = torch.arange(layout.rectangles.shape[1], dtype=torch.float32)
    return to_dense(numbers[None, :, None], replace(layout, mask=None)).long().flatten()


def _token_at(token: int, first: Size, layout: Layout) -> int:
    """The token that a place of the first layer's sequence has become in this layer."""
    total, grid = layout.prefix + first.area, layout.grid
    require(0 <= token < total, f"token {token} is outside the sequence of {total}; use 0 to {total - 1}")
    if token < layout.prefix:
        return token
    row, column = divmod(token - layout.prefix, first.width)
    cell = (row * grid.height // first.height) * grid.width + column * grid.width // first.width
    return layout.prefix + int(_holders(layout)[cell])


def _all_rows(weights: Tensor, layout: Layout) -> Rows:
    """(…, T, T) → every row, a cell's being that of the patch which covers it."""
    order = torch.cat([torch.arange(layout.prefix), layout.prefix + _holders(layout)])
    return _scaled(weights[..., order, :], layout)


def _scaled(weights: Tensor, layout: Layout) -> Rows:
    """(…, Q, T) → rows of cells."""
    cells = weights[..., layout.prefix + _holders(layout)]
    largest = cells.amax(dim=-1, keepdim=True)
    scaled = (cells * (255 / largest.clamp_min(torch.finfo(cells.dtype).tiny))).round_().byte()
    exact = torch.cat([largest, weights[..., : layout.prefix]], dim=-1)
    return Rows(bytes=scaled.numpy(), exact=exact.float().numpy())
