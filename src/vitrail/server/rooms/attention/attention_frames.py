"""A model's attention maps as bytes, one per weight, each row scaled by its largest weight.

Shapes: h heads, T tokens of which p are the prefix, c cells of the grid, Q = p + c rows. Cells that one adaptive patch
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
from vitrail.server.rooms.attention.attention_facts import LayerHeads, same_places

__all__ = ["WHOLE_BYTES", "Captured", "RolledRows", "Rows", "capture_all", "capture_row"]

WHOLE_BYTES = 12 << 20
"""Up to this size all rows of all heads are sent at once, so that hovering needs no request."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of attention as bytes, with the exact values that bytes cannot represent."""

    bytes: np.ndarray
    """uint8 (…, Q, c): 255 is the row's largest weight on a patch."""
    exact: np.ndarray
    """float32 (…, Q, 1 + p): that largest weight, and the weight on each prefix token."""


@dataclass(frozen=True, kw_only=True)
class RolledRows(Rows):
    """Rows of the rollout. They are nearly even, and a token is mostly itself, so the page limits their contrast."""

    contrast: np.ndarray
    """float32 (Q, 2): a row's median share of a patch, drawn dark, and its 99th percentile, drawn bright."""

    def row(self, token: int) -> RolledRows:
        one = slice(token, token + 1)
        return RolledRows(bytes=self.bytes[one], exact=self.exact[one], contrast=self.contrast[one])


@dataclass(frozen=True, kw_only=True)
class Captured:
    """The attention of all layers on one image."""

    layers: list[LayerHeads]
    rows: list[Rows] | None
    """Every row, by layer; None if they exceed WHOLE_BYTES."""
    grid: Size
    """The first layer's grid."""
    prefix: list[str]
    cells: Cells
    """The first layer's grid on the image."""
    rolled: RolledRows | None
    """(Q, c): attention through all layers."""
    why_not_rolled: str


def capture_all(subject: Subject) -> Captured:
    """Capture the attention of all layers in one forward pass."""
    whole = _is_small(subject)

    def keep(attention: AttentionMap) -> tuple[LayerHeads, Rows | None, AttentionMap]:
        attention = _mean_over_places(attention)
        step, even = cells_on(subject, attention.layout).step, uniform_attention(attention)
        distance, entropy = attention_distance(attention, step)[0], head_entropy(attention)[0]
        layer = LayerHeads(
            name=attention.name,
            grid=attention.layout.grid,
            distance=distance.tolist(),
            mean_distance=distance.mean().item(),
            entropy=entropy.tolist(),
            mean_entropy=entropy.mean().item(),
            effective_tokens=entropy.exp2().tolist(),
            even_distance=attention_distance(even, step).item(),
            even_entropy=head_entropy(even).item(),
        )
        return layer, _all_rows(attention.weights[0], attention.layout) if whole else None, fuse_heads(attention)

    with torch.no_grad(), capture(subject.model, keep=keep) as maps:
        subject.model(subject.image)
    layers, rows, fused = zip(*maps.values(), strict=True)
    try:
        rolled, reason = _with_contrast(_all_rows(rollout(dict(enumerate(fused)))[0], fused[0].layout)), ""
    except VitrailError as error:  # the stages of a pyramid have different grids
        rolled, reason = None, str(error)
    return Captured(
        layers=list(layers),
        rows=list(rows) if whole else None,
        grid=fused[0].layout.grid,
        prefix=prefix_names(subject),
        cells=cells_on(subject, fused[0].layout),
        rolled=rolled,
        why_not_rolled=reason,
    )


def capture_row(subject: Subject, token: int) -> list[Rows]:
    """Return one token's row, (h, 1, c), in every layer; `token` counts the prefix, then the first layer's cells."""
    grids: list[Size] = []

    def keep(attention: AttentionMap) -> Rows:
        grids.append(attention.layout.grid)
        query = _token_at(token, grids[0], attention.layout)
        return _scaled(_mean_over_places(attention).weights[0][:, attention.queries == query], attention.layout)

    config = subject.model.config
    one_grid = isinstance(config, ViTConfig) and not isinstance(config.embedding, Adaptive)
    with torch.no_grad(), capture(subject.model, queries=[token] if one_grid else "all", keep=keep) as maps:
        subject.model(subject.image)
    return list(maps.values())


def _is_small(subject: Subject) -> bool:
    config = subject.model.config
    if not isinstance(config, ViTConfig):
        return False
    cells = config.fit(Size(*subject.image.shape[2:])).grid.area
    return config.depth * config.num_heads * (config.prefix.count + cells) * cells <= WHOLE_BYTES


def _mean_over_places(attention: AttentionMap) -> AttentionMap:
    """Average over the pixel positions inside a patch, which attend separately in a mobile model."""
    if attention.places is None:
        return attention
    return replace(attention, weights=attention.weights.mean(dim=0, keepdim=True))


def _patch_of_cell(layout: Layout) -> Tensor:
    """Return (c,): the patch that covers each cell of the grid."""
    if layout.rectangles is None:
        return torch.arange(layout.grid.area)
    numbers = torch.arange(layout.rectangles.shape[1], dtype=torch.float32)
    return to_dense(numbers[None, :, None], replace(layout, mask=None)).long().flatten()


def _token_at(token: int, first: Size, layout: Layout) -> int:
    """Return this layer's token at the place of a token of the first layer."""
    total = layout.prefix + first.area
    require(0 <= token < total, f"token {token} is outside the sequence of {total}; use 0 to {total - 1}")
    if token < layout.prefix:
        return token
    cell = same_places(first, layout.grid)[token - layout.prefix]
    return layout.prefix + int(_patch_of_cell(layout)[cell])


def _all_rows(weights: Tensor, layout: Layout) -> Rows:
    """(…, T, T) → (…, Q, c): the row of a cell is that of the patch that covers it."""
    order = torch.cat([torch.arange(layout.prefix), layout.prefix + _patch_of_cell(layout)])
    return _scaled(weights[..., order, :], layout)


def _scaled(weights: Tensor, layout: Layout) -> Rows:
    """(…, Q, T) → (…, Q, c) as bytes."""
    cells = weights[..., layout.prefix + _patch_of_cell(layout)]
    largest = cells.amax(dim=-1, keepdim=True)
    scaled = (cells * (255 / largest.clamp_min(torch.finfo(cells.dtype).tiny))).round_().byte()
    exact = torch.cat([largest, weights[..., : layout.prefix]], dim=-1)
    return Rows(bytes=scaled.numpy(), exact=exact.float().numpy())


def _with_contrast(rows: Rows) -> RolledRows:
    unit = rows.exact[:, 0] / 255
    dark, bright = np.quantile(rows.bytes, (0.5, 0.99), axis=-1, method="lower")
    contrast = np.stack([dark * unit, np.maximum(bright, dark + 1) * unit], axis=-1)
    return RolledRows(bytes=rows.bytes, exact=rows.exact, contrast=contrast)
