"""Position similarity: how similar a model's positions make each patch to every other.

Shapes: r×c grid, N = r·c patches, T tokens with the prefix, h heads, d values per head, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.charts.notebook import Brief
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.nn.attention import Attention
from vitrail.nn.front import VisionFrontEnd
from vitrail.nn.intermediates import layer_index
from vitrail.nn.layout import Layout
from vitrail.nn.mobile import MobileViT
from vitrail.nn.positions import AddedPosition, AttentionPosition
from vitrail.nn.pyramid import PyramidViT
from vitrail.nn.query_bias import OffsetVectors
from vitrail.nn.relative import RelativePosition
from vitrail.nn.rotary import Rotation

__all__ = ["PositionSimilarity", "position_similarity"]


@dataclass(frozen=True, kw_only=True, repr=False)
class PositionSimilarity(Brief):
    """A grid of grids: `values[i, j]` is the similarity of patch (i, j) to all patches.

    >>> from vitrail import load
    >>> from vitrail.look import position_similarity
    >>> model = load("default").model()
    >>> position_similarity(model)
    PositionSimilarity(values=<float64 8×8×8×8>, kind='learned', measure='cosine similarity')
    """

    values: Tensor
    """(r, c, r, c)"""
    kind: str
    """The kind of position: learned, sine, rotary, relative …"""
    measure: str
    """What the values are, with their unit."""

    @property
    def grid(self) -> Size:
        return Size(*self.values.shape[:2])


@torch.no_grad()
def position_similarity(
    model: VisionFrontEnd | PyramidViT | MobileViT,
    *,
    grid: Size | None = None,
    layer: int = 0,
    head: int | None = None,
) -> PositionSimilarity:
    """Return the similarity that positions alone cause, on the model's grid or on another, as the model would run it.

    Added positions: the cosine of two rows. Rotary: q·k of two equal tokens, each rotated for its position, over their
    norms. Relative: the bias itself, within a window if attention is windowed. `layer` and `head` choose among
    positions that differ by layer or head; the default is the mean over heads.

    >>> from vitrail import load
    >>> from vitrail.look import position_similarity
    >>> model = load("default").model()
    >>> position_similarity(model).values[2, 3].argmax() == 2 * 8 + 3
    tensor(True)
    """
    if isinstance(model, MobileViT):
        raise VitrailError("a mobile model has no positions, only convolutions; use a ViT or a pyramid")
    prefix, where = model.config.prefix.count, grid or model.config.position_grid
    layout = Layout(grid=where, frame=where).with_prefix(prefix)
    shared = model.position
    position = shared or _position_of(model, layer)
    match position:
        case AddedPosition():
            rows = position(torch.zeros(1, prefix + where.area, position.width), layout)[0, prefix:].double()
            values = F.normalize(rows, dim=-1) @ F.normalize(rows, dim=-1).T
            measure = "cosine similarity"
        case RelativePosition():
            where = Size(*map(min, position.grid, grid or position.grid)) if position.windowed else where
            values = position.bias(Layout(grid=where, frame=where)).double()
            measure = "bias, logits"
        case AttentionPosition():
            width = model.config.head_width  # type: ignore[union-attr]
            equal = torch.ones(1, 1, prefix + where.area, width, dtype=torch.float64)
            rotation = position.within(layout, equal)
            assert isinstance(rotation, Rotation)
            rotated = rotation.rotate(equal)[0, :, prefix:]  # (1 or h, N, d)
            values, measure = rotated @ rotated.mT / width, "q·k of equal tokens, over |q||k|"
        case OffsetVectors():
            raise VitrailError(
                "DecomposedBias depends on the queries, so that positions alone cause no similarity; "
                "look at the attention of an image instead"
            )
        case _:
            raise VitrailError("this model has no positions, so there is no similarity to show; use one that has some")
    kind = model.config.position.describe().words
    if shared is None:
        kind = f"{kind}, layer {layer}"
    if values.ndim == 3 and len(values) > 1:
        kind = f"{kind}, {'mean of heads' if head is None else f'head {head}'}"
    values = _one_head(values, head).view(*where, *where)
    return PositionSimilarity(values=values, kind=kind, measure=measure)


def _position_of(model: VisionFrontEnd | PyramidViT, layer: int):
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    require(len(attentions) > 0, f"{type(model).__name__} has no layers; give the whole model")
    return attentions[layer_index(layer, len(attentions))].position


def _one_head(values: Tensor, head: int | None) -> Tensor:
    if values.ndim == 2:
        return values
    if head is None or len(values) == 1:
        return values.mean(dim=0)
    require(0 <= head < len(values), f"head {head} is out of range for {len(values)} heads; use 0 to {len(values) - 1}")
    return values[head]
