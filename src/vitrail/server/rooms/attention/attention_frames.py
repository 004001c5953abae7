"""A model's attention maps as bytes, one per weight, each row scaled by its largest weight.

Shapes: h heads, T tokens of which p are the prefix, c cells of the grid, Q = p + c rows. Cells that one adaptive patch
covers share its row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.look.attention_map import AttentionMap
from vitrail.look.heads import patch_distances
from vitrail.look.inputs import AttentionInputs
from vitrail.look.rollout import rollout
from vitrail.look.statistics import HeadStatistics, head_statistics
from vitrail.look.subject import Subject
from vitrail.look.views.words import cells_on, prefix_names
from vitrail.nn.layout import Layout
from vitrail.server.cells import patch_of_cell
from vitrail.server.formulas import Formula
from vitrail.server.rooms.attention.attention_facts import LayerHeads, head_formulas, same_places

__all__ = ["WHOLE_BYTES", "Heads", "RolledRows", "Rows", "all_rows", "fits_in_one_frame", "heads_of", "rows_of"]

WHOLE_BYTES = 12 << 20
"""Up to this size all rows of all heads are sent at once, so that hovering needs no request."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of attention as bytes, with the exact values that bytes cannot represent."""

    bytes: Tensor
    """uint8 (…, Q, c): 255 is the row's largest weight on a patch."""
    exact: Tensor
    """float32 (…, Q, 1 + p): that largest weight, and the weight on each prefix token."""


@dataclass(frozen=True, kw_only=True)
class RolledRows(Rows):
    """Rows of the rollout. They are nearly even, and a token is mostly itself, so the page limits their contrast."""

    contrast: Tensor
    """float32 (Q, 2): a row's median share of a patch, drawn dark, and its 99th percentile, drawn bright."""


@dataclass(frozen=True, kw_only=True)
class Heads:
    """What every weight of every layer is needed for: numbers per head, and the mean map of each layer."""

    names: list[str]
    """The modules' names, by layer."""
    statistics: list[HeadStatistics]
    formulas: list[list[Formula]]
    """Of the numbers of a layer's heads."""
    why_not_rolled: str = ""

    @property
    def layers(self) -> list[LayerHeads]:
        return [_described(*layer) for layer in zip(self.names, self.statistics, self.formulas, strict=True)]

    def rolled(self, token: int | None = None) -> RolledRows:
        """Return the rollout into one token, or into all; `token` counts the prefix, then the first layer's cells."""
        fused = [layer.fused for layer in self.statistics]
        layout = fused[0].layout
        queries = _order(layout).tolist() if token is None else [_token_at(token, layout.grid, layout)]
        return _with_contrast(_scaled(rollout(dict(enumerate(fused)), queries=queries)[0], layout))


def heads_of(subject: Subject, layers: Iterable[AttentionInputs]) -> Heads:
    """Compute the statistics of all heads, layer by layer."""
    distances: dict[Size, Tensor] = {}  # the layers of one grid share them
    names, statistics, formulas = [], [], []
    for inputs in layers:
        grid = inputs.layout.grid
        step, width = cells_on(subject, inputs.layout).step, int(inputs.k.shape[-1])
        if grid not in distances:
            distances[grid] = patch_distances(inputs.layout, inputs.k, step)
        names.append(inputs.name)
        statistics.append(head_statistics(map(_mean_over_places, inputs.chunks()), distances[grid]))
        formulas.append(head_formulas(grid, prefix_names(subject), step, width))
    heads = Heads(names=names, statistics=statistics, formulas=formulas)
    try:
        heads.rolled(0)
    except VitrailError as error:  # the stages of a pyramid have different grids
        return replace(heads, why_not_rolled=str(error))
    return heads


def _described(name: str, heads: HeadStatistics, formulas: list[Formula]) -> LayerHeads:
    distance, entropy = heads.distance[0], heads.entropy[0]
    return LayerHeads(
        name=name,
        grid=heads.fused.layout.grid,
        distance=distance.tolist(),
        mean_distance=distance.mean().item(),
        entropy=entropy.tolist(),
        mean_entropy=entropy.mean().item(),
        effective_tokens=entropy.exp2().tolist(),
        even_distance=heads.even_distance,
        even_entropy=heads.even_entropy,
        formulas=formulas,
    )


def all_rows(layers: Iterable[AttentionInputs]) -> list[Rows]:
    """Return every row of every head, (h, Q, c), by layer."""
    return [
        _scaled(_mean_over_places(inputs.rows()).weights[0][:, _order(inputs.layout)], inputs.layout)
        for inputs in layers
    ]


def rows_of(layers: Sequence[AttentionInputs], token: int) -> list[Rows]:
    """Return one token's row, (h, 1, c), in every layer; `token` counts the prefix, then the first layer's cells."""
    first = layers[0].layout.grid
    found = [inputs.rows([_token_at(token, first, inputs.layout)]) for inputs in layers]
    return [_scaled(_mean_over_places(each).weights[0], each.layout) for each in found]


def fits_in_one_frame(layers: Iterable[AttentionInputs]) -> bool:
    """Whether every row of every head is at most WHOLE_BYTES; the grids of a pyramid's stages differ, so not there."""
    layers = list(layers)
    cells = {inputs.layout.grid.area for inputs in layers}
    if len(cells) > 1 or layers[0].places is not None:
        return False
    return sum(each.k.shape[1] * (each.layout.prefix + area) * area for each in layers for area in cells) <= WHOLE_BYTES


def _mean_over_places(attention: AttentionMap) -> AttentionMap:
    """Average over the pixel positions inside a patch, which attend separately in a mobile model."""
    if attention.places is None:
        return attention
    return replace(attention, weights=attention.weights.mean(dim=0, keepdim=True), scores=None)


def _token_at(token: int, first: Size, layout: Layout) -> int:
    """Return this layer's token at the place of a token of the first layer."""
    total = layout.prefix + first.area
    require(0 <= token < total, f"token {token} is outside the sequence of {total}; use 0 to {total - 1}")
    if token < layout.prefix:
        return token
    cell = same_places(first, layout.grid)[token - layout.prefix]
    return layout.prefix + int(patch_of_cell(layout)[cell])


def _order(layout: Layout) -> Tensor:
    """Return (Q,): the token of each row that is sent, which for a cell is the patch that covers it."""
    return torch.cat([torch.arange(layout.prefix), layout.prefix + patch_of_cell(layout)])


def _scaled(weights: Tensor, layout: Layout) -> Rows:
    """(…, Q, T) → (…, Q, c) as bytes."""
    cells = weights[..., layout.prefix + patch_of_cell(layout)]
    largest = cells.amax(dim=-1, keepdim=True)
    scaled = (cells * (255 / largest.clamp_min(torch.finfo(cells.dtype).tiny))).round_().byte()
    exact = torch.cat([largest, weights[..., : layout.prefix]], dim=-1)
    return Rows(bytes=scaled, exact=exact.float())


def _with_contrast(rows: Rows) -> RolledRows:
    unit = rows.exact[:, 0] / 255
    ranked = rows.bytes.int().sort(dim=-1).values
    dark, bright = (ranked[:, int(share * (ranked.shape[-1] - 1))] for share in (0.5, 0.99))
    contrast = torch.stack([dark * unit, torch.maximum(bright, dark + 1) * unit], dim=-1)
    return RolledRows(bytes=rows.bytes, exact=rows.exact, contrast=contrast)
