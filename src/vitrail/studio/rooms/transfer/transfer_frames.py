"""Pictures of a transfer, as bytes for a canvas: a table, filters, and features that moved.

Shapes: h×w old grid, r×s new grid, D width, C channels, P×Q patch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.images.decode import Pixels
from vitrail.parts import Adaptive, Patches
from vitrail.studio.plans import Pair
from vitrail.studio.rooms.transfer.transfer_question import TableView

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.checkpoint.checkpoint import Checkpoint
    from vitrail.checkpoint.surgery.projection import Projection
    from vitrail.checkpoint.surgery.resample import Method

__all__ = [
    "DriftFacts",
    "FilterFacts",
    "TableFacts",
    "carried_filters",
    "carried_table",
    "feature_drift",
    "image_of",
]

Pictures = dict[str, np.ndarray]
SHOWN_FILTERS = 8


class TableFacts(BaseModel):
    components: int
    channels: int
    low: float
    high: float
    """What the darkest and the brightest byte of the table stand for; in colours, of the difference."""
    reach: float
    """The largest difference."""
    share: float | None
    """How much of all that tells places apart is shown; None for a channel."""


class FilterFacts(BaseModel):
    numbers: list[int]
    """Which filters are shown."""


class DriftFacts(BaseModel):
    image: Pair
    cosines: dict[str, float]
    """By method."""
    resampled: bool
    low: float
    high: float
    mean: float


def carried_table(
    table: Tensor, old: Size, new: Size, method: Method, view: TableView, index: int
) -> tuple[TableFacts, Pictures]:
    """`before` (h, w), `after`, `exact` and `difference` (r, s): in colours, three principal components; else one."""
    import torch

    from vitrail.checkpoint.surgery.resample import resample_table

    table = table.double()
    mean = table.mean(dim=0)
    after, exact = (resample_table(table, old=old, new=new, method=each) for each in (method, "exact"))
    _, strengths, directions = torch.linalg.svd(table - mean, full_matrices=False)
    shares = strengths.square() / strengths.square().sum().clamp(min=1e-300)
    if view == "channel":
        basis, origin = torch.eye(table.shape[1], dtype=torch.float64)[[index]], torch.zeros_like(mean)
    else:
        chosen = [min(each, len(directions) - 1) for each in ((0, 1, 2) if view == "colours" else (index,))]
        basis, origin = directions[chosen], mean
    before, there, truth = ((rows - origin) @ basis.T for rows in (table, after, exact))
    low, high = before.amin(dim=0), before.amax(dim=0)
    pictures = {
        name: _bytes(rows, low, high).reshape(*grid, -1)
        for name, rows, grid in (("before", before, old), ("after", there, new), ("exact", truth, new))
    }
    if view == "colours":
        size = (exact - mean).square().sum(dim=1).mean().sqrt()
        off = (after - exact).norm(dim=1) / size
        reach = max(float(off.max()), 1e-9)
        pictures["difference"] = _bytes(off, off.new_zeros(()), off.new_tensor(reach)).reshape(*new)
        bottom, top, share = 0.0, reach, float(shares[:3].sum())
    else:
        off = (there - truth)[:, 0]
        reach = max(float(off.abs().max()), 1e-9)
        pictures = {name: picture[..., 0] for name, picture in pictures.items()}
        pictures["difference"] = _bytes(off, off.new_tensor(-reach), off.new_tensor(reach)).reshape(*new)
        share = None if view == "channel" else float(shares[min(index, len(shares) - 1)])
        bottom, top = float(low[0]), float(high[0])
    facts = TableFacts(
        components=len(directions), channels=table.shape[1], low=bottom, high=top, reach=reach, share=share
    )
    return facts, pictures


def _bytes(values: Tensor, low: Tensor, high: Tensor) -> np.ndarray:
    span = (high - low).clamp(min=1e-12)
    return ((values - low) / span * 255).round().clamp(0, 255).byte().numpy()


def carried_filters(weight: Tensor, new: Size, how: Projection) -> tuple[FilterFacts, Pictures]:
    """`before`, `after` and `back`, (filters, P, Q, 3) each: the strongest, grey at zero.

    Before and back are on one scale; after on its own, since the weights of a larger patch are smaller.
    """
    from vitrail.checkpoint.surgery.projection import resize_projection

    weight = weight.double()
    if weight.shape[1] not in (1, 3):
        weight = weight.mean(dim=1, keepdim=True)
    strongest = weight.flatten(1).norm(dim=1).argsort(descending=True)[:SHOWN_FILTERS]
    before = weight[strongest]
    after = resize_projection(before, new, how=how)
    back = resize_projection(after, Size(*before.shape[2:]), how=how)
    reach = before.flatten(1).abs().amax(dim=1)
    own = after.flatten(1).abs().amax(dim=1)
    pictures = {
        name: _filter_bytes(filters, scale)
        for name, filters, scale in (("before", before, reach), ("after", after, own), ("back", back, reach))
    }
    return FilterFacts(numbers=strongest.tolist()), pictures


def _filter_bytes(filters: Tensor, reach: Tensor) -> np.ndarray:
    scaled = filters / reach.clamp(min=1e-12).view(-1, 1, 1, 1)
    pictures = (127.5 + 127.5 * scaled).round().clamp(0, 255).byte().permute(0, 2, 3, 1)
    return pictures.expand(-1, -1, -1, 3).contiguous().numpy()


def feature_drift(checkpoint: Checkpoint, new: Size, pixels: Pixels, method: Method) -> tuple[DriftFacts, Pictures]:
    """Cosines of the pooled vector at the new size with the one at the old, by method; and, for one of them, a map.

    The same as `vitrail adapt --images` measures. The map compares tokens place by place, on the coarser of the grids.
    """
    import torch
    import torch.nn.functional as F

    from vitrail.checkpoint.surgery.adapt import adapt
    from vitrail.checkpoint.surgery.resample import METHODS, resample_table
    from vitrail.nn.vit import ViT

    config = checkpoint.config
    assert isinstance(config, ViTConfig)
    require(
        not isinstance(config.embedding, Adaptive),
        "adaptive patches differ from image to image, and so do their tokens; choose weights with a regular grid",
    )
    old, image = config.grid, image_of(config, new)

    @torch.inference_mode()
    def seen(given: Checkpoint, places: bool) -> tuple[Tensor, Tensor | None]:
        steps = given.preprocessing.squashed(given.config.image)
        model, shown = given.model(dtype=torch.float32), steps(pixels)
        assert isinstance(model, ViT)
        vector = model.vector(shown).flatten().double()
        if not places:
            return vector, None
        tokens, layout = model.features(shown)
        return vector, tokens[0, layout.prefix :].double()

    vector, tokens = seen(checkpoint, places=True)
    resampled = config.position.resampled
    methods: list[Method] = list(METHODS) if resampled else [method]
    cosines, moved = {}, tokens
    for name in methods:
        adapted = adapt(checkpoint, {"image": image}, method=name if resampled else None)[0]
        there, at = seen(adapted, places=name == method)
        cosines[name] = F.cosine_similarity(vector, there, dim=0).item()
        moved = moved if at is None else at
    assert tokens is not None
    assert moved is not None
    common = Size(*map(min, old, new))
    before, after = (
        resample_table(rows, old=grid, new=common, method="area") for rows, grid in ((tokens, old), (moved, new))
    )
    places = F.cosine_similarity(before, after, dim=1)
    low = min(0.99, float(places.min()))
    facts = DriftFacts(
        image=(image.height, image.width),
        cosines=cosines if resampled else {"recomputed": cosines[method]},
        resampled=resampled,
        low=low,
        high=1.0,
        mean=float(places.mean()),
    )
    picture = _bytes(places, places.new_tensor(low), places.new_tensor(1.0)).reshape(*common)
    return facts, {"places": picture}


def image_of(config: ViTConfig, grid: Size) -> Size:
    """The image whose patches make this grid."""
    patch = config.patch
    stride = config.embedding.stride if isinstance(config.embedding, Patches) else None
    sides = zip(grid, patch, stride or patch, strict=True)
    return Size(*((count - 1) * step + side for count, side, step in sides))
