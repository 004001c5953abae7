"""A model's attention as the page hovers over it: a byte a weight, every row scaled to its own largest.

Shapes: h heads, T tokens of which p are the prefix, c cells of the grid, Q = p + c rows: cells that one adaptive patch
covers share its row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.look.capture import AttentionMap, capture
from vitrail.look.cells import Step
from vitrail.look.heads import attention_distance, evenly, head_entropy
from vitrail.look.rollout import fuse_heads, rollout
from vitrail.look.subject import Subject
from vitrail.look.views.words import cells_on, prefix_names
from vitrail.nn.adaptive import to_dense
from vitrail.nn.layout import Layout

__all__ = ["WHOLE_BYTES", "Attended", "LayerHeads", "Rows", "attend", "attend_row"]

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
class LayerHeads:
    """One layer's heads; distances in pixels of the image as the model sees it, entropies in bits."""

    name: str
    grid: Size
    distance: list[float]
    entropy: list[float]
    even_distance: float
    """Of a head that weighs everything alike."""
    even_entropy: float
    rows: Rows | None
    """None where all of them are too many."""


@dataclass(frozen=True, kw_only=True)
class Attended:
    layers: list[LayerHeads]
    prefix: list[str]
    step: Step
    """Pixels from cell to cell, in the first layer."""
    rolled: Rows | None
    why_not_rolled: str = ""
    whole: bool = field(default=True)


def attend(subject: Subject) -> Attended:
    """All layers in one forward pass."""
    whole = _count(subject) <= WHOLE_BYTES

    def keep(found: AttentionMap) -> tuple[LayerHeads, AttentionMap]:
        found = _one_place(found)
        step = cells_on(subject, found.layout).step
        even = evenly(found)
        layer = LayerHeads(
            name=found.name,
            grid=found.layout.grid,
            distance=attention_distance(found, step)[0].tolist(),
            entropy=head_entropy(found)[0].tolist(),
            even_distance=attention_distance(even, step).item(),
            even_entropy=head_entropy(even).item(),
            rows=_rows(found.weights[0], found.layout) if whole else None,
        )
        return layer, fuse_heads(found)

    with torch.no_grad(), capture(subject.model, keep=keep) as maps:
        subject.model(subject.image)
    fused = {index: one for index, (_, one) in maps.items()}
    layout = fused[0].layout
    try:
        rolled, reason = _rows(rollout(fused), layout)[0], ""
    except VitrailError as error:  # a pyramid's stages have grids of their own
        rolled, reason = None, str(error)
    return Attended(
        layers=[layer for layer, _ in maps.values()],
        prefix=prefix_names(subject),
        step=cells_on(subject, layout).step,
        rolled=rolled,
        why_not_rolled=reason,
        whole=whole,
    )


def attend_row(subject: Subject, token: int) -> list[Rows]:
    """One token's row, (h, 1, c), in every layer; `token` counts the prefix, then the first layer's cells."""
    first: list[Size] = []

    def keep(found: AttentionMap) -> Rows:
        layout = found.layout
        first.append(layout.grid)
        _check(token, layout.prefix + first[0].area)
        found = _one_place(found)
        place = _place(token, layout, first[0])
        at = (found.queries == place).nonzero()[0]
        return _scaled(replace(found, weights=found.weights[:, :, at]))

    # a grid of its own in every stage: which row it is, is known when the layer runs
    plain = isinstance(subject.model.config, ViTConfig)
    asked = [_plain_token(subject, token)] if plain else "all"
    with torch.no_grad(), capture(subject.model, queries=asked, keep=keep) as maps:
        subject.model(subject.image)
    return list(maps.values())
