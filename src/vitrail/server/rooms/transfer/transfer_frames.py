"""Pictures of a transfer, as bytes for a canvas: the position table, the filters, and the feature drift.

Shapes: h×w old grid, r×s new grid, D width, C channels, P×Q patch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import Adaptive, Patches
from vitrail.server.plans import Pair
from vitrail.server.rooms.transfer.transfer_question import TableView

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from vitrail.checkpoint.checkpoint import Checkpoint
    from vitrail.checkpoint.surgery.projection import Projection
    from vitrail.checkpoint.surgery.resample import Method
    from vitrail.images.decode import Pixels

    Pictures = dict[str, np.ndarray]

__all__ = [
    "DriftFacts",
    "FilterFacts",
    "TableFacts",
    "feature_drift",
    "image_of",
    "resampled_table",
    "resized_filters",
]

SHOWN_FILTERS = 8


class TableFacts(BaseModel):
    components: int
    channels: int
    low: float
    high: float
    """The values of byte 0 and byte 255 in the table or, for colours, in the difference."""
    reach: float
    """The largest difference."""
    share: float | None
    """The share of the table's variance that is shown; None for a channel."""


class FilterFacts(BaseModel):
    numbers: list[int]
    """The indices of the filters."""


class DriftFacts(BaseModel):
    image: Pair
    cosines: dict[str, float]
    """Cosines by method."""
    resampled: bool
    low: float
    high: float
    mean: float


def resampled_table(
    table: Tensor, old: Size, new: Size, method: Method, view: TableView, index: int
) -> tuple[TableFacts, Pictures]:
    """Return `before` (h, w), `after`, `exact` and `difference` (r, s); colours are three principal components."""
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
    rows_before, rows_after, rows_exact = ((rows - origin) @ basis.T for rows in (table, after, exact))
    low, high = rows_before.amin(dim=0), rows_before.amax(dim=0)
    pictures = {
        name: _bytes(rows, low, high).reshape(*grid, -1)
        for name, rows, grid in (
            ("before", rows_before, old),
            ("after", rows_after, new),
            ("exact", rows_exact, new),
        )
    }
    if view == "colours":
        size = (exact - mean).square().sum(dim=1).mean().sqrt()
        error = (after - exact).norm(dim=1) / size
        reach = max(float(error.max()), 1e-9)
        pictures["difference"] = _bytes(error, error.new_zeros(()), error.new_tensor(reach)).reshape(*new)
        bottom, top, share = 0.0, reach, float(shares[:3].sum())
    else:
        error = (rows_after - rows_exact)[:, 0]
        reach = max(float(error.abs().max()), 1e-9)
        pictures = {name: picture[..., 0] for name, picture in pictures.items()}
        pictures["difference"] = _bytes(error, error.new_tensor(-reach), error.new_tensor(reach)).reshape(*new)
        share = None if view == "channel" else float(shares[min(index, len(shares) - 1)])
        bottom, top = float(low[0]), float(high[0])
    facts = TableFacts(
        components=len(directions), channels=table.shape[1], low=bottom, high=top, reach=reach, share=share
    )
    return facts, pictures


def _bytes(values: Tensor, low: Tensor, high: Tensor) -> np.ndarray:
    span = (high - low).clamp(min=1e-12)
    return ((values - low) / span * 255).round().clamp(0, 255).byte().numpy()


def resized_filters(weight: Tensor, new: Size, how: Projection) -> tuple[FilterFacts, Pictures]:
    """Return the strongest filters `before`, `after` and `back`, (filters, P, Q, 3) each; zero is grey.

    `before` and `back` share a scale; `after` has its own, since the weights of a larger patch are smaller.
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
    """Return the cosine of the pooled vectors at the old and the new size, by method, and a map for one method.

    `vitrail adapt --images` measures the same cosines. The map compares tokens on the coarser of the two grids.
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
        "adaptive patches differ between images, so tokens cannot be compared; choose weights with a regular grid",
    )
    old, image = config.grid, image_of(config, new)

    @torch.inference_mode()
    def features(given: Checkpoint, with_tokens: bool) -> tuple[Tensor, Tensor | None]:
        steps = given.preprocessing.squashed(given.config.image)
        model, images = given.model(dtype=torch.float32), steps(pixels)
        assert isinstance(model, ViT)
        vector = model.vector(images).flatten().double()
        if not with_tokens:
            return vector, None
        tokens, layout = model.features(images)
        return vector, tokens[0, layout.prefix :].double()

    vector, tokens = features(checkpoint, with_tokens=True)
    resampled = config.position.resampled
    methods: list[Method] = list(METHODS) if resampled else [method]
    cosines, new_tokens = {}, tokens
    for name in methods:
        adapted = adapt(checkpoint, {"image": image}, method=name if resampled else None)[0]
        new_vector, adapted_tokens = features(adapted, with_tokens=name == method)
        cosines[name] = F.cosine_similarity(vector, new_vector, dim=0).item()
        new_tokens = new_tokens if adapted_tokens is None else adapted_tokens
    assert tokens is not None
    assert new_tokens is not None
    common = Size(*map(min, old, new))
    before, after = (
        resample_table(rows, old=grid, new=common, method="area") for rows, grid in ((tokens, old), (new_tokens, new))
    )
    places = F.cosine_similarity(before, after, dim=1)
    low = min(0.99, float(places.min()))
    facts = DriftFacts(
        image=image,
        cosines=cosines if resampled else {"recomputed": cosines[method]},
        resampled=resampled,
        low=low,
        high=1.0,
        mean=float(places.mean()),
    )
    picture = _bytes(places, places.new_tensor(low), places.new_tensor(1.0)).reshape(*common)
    return facts, {"places": picture}


def image_of(config: ViTConfig, grid: Size) -> Size:
    """Return the image size whose patches form this grid."""
    patch = config.patch
    stride = config.embedding.stride if isinstance(config.embedding, Patches) else None
    sides = zip(grid, patch, stride or patch, strict=True)
    return Size(*((count - 1) * step + side for count, side, step in sides))
