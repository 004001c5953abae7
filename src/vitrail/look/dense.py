"""Features at any resolution (`vitrail.dense`): passes of shifted windows, put together on a finer grid.

A pass gives a token every P pixels, P being the side of a patch. The image, moved by s = P / k pixels at a time, gives
k × k passes, whose tokens lie on a grid with a step of s pixels: every token is exactly that of a truly moved image. An
image larger than a tile is covered by overlapping tiles, in which a token counts less the nearer it is to an edge.

Shapes: B windows, C channels, H×W pixels, D width, h×w tokens of the fine grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from PIL import Image as PillowImage
from torch import Tensor

from vitrail.charts.notebook import Brief
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.pixels import Image, read_pixels
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.sources.names import DEFAULT
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size, in_shape_of
from vitrail.images.decode import Pixels
from vitrail.look.cells import Cells
from vitrail.look.tokens import tokens_after
from vitrail.nn.vit import ViT
from vitrail.parts import Patches

__all__ = ["Dense", "Watch", "dense", "features_of"]

Watch = Callable[[int, int], None]
"""Called with the number of passes that are done, and of all."""
AT_ONCE = 4
"""Windows of a batch."""
OVERLAP = 0.25
"""The least share of a tile that the next one covers again."""
MOST_BYTES = 4 << 30


@dataclass(frozen=True, kw_only=True, repr=False)
class Dense(Brief):
    """Features of an image on a fine grid.

    >>> from vitrail import dense, synthesize_image
    >>> found = dense(synthesize_image(1), stride=2)
    >>> found.features.shape, found.passes, found.cells.step
    (torch.Size([96, 16, 16]), 4, (2, 2))
    """

    features: Tensor
    """(D, h, w)"""
    cells: Cells
    """Where the tokens are, in pixels of `pixels`: one cell per token, around the middle of its patch."""
    pixels: Pixels
    """uint8 (H, W, 3): the image as the model's windows see it."""
    original: Size
    """The size of the whole image."""
    passes: int

    def over(self, photograph: Pixels, side: int) -> Dense:
        """Return the same features over a larger copy of the image, uint8 (H, W, 1 or 3), of up to `side` pixels.

        Every pixel that the model saw becomes a square of whole pixels, so that cells keep whole pixels too.
        """
        rows, columns = self.pixels.shape[:2]
        times = max(1, side // max(rows, columns))
        if times == 1:
            return self
        picture = PillowImage.fromarray(photograph if photograph.shape[2] == 3 else photograph[:, :, 0]).convert("RGB")
        larger = picture.resize((columns * times, rows * times), PillowImage.Resampling.LANCZOS)
        cells, (down, across) = self.cells, self.cells.step
        scaled = replace(cells, step=(down * times, across * times), top=cells.top * times, left=cells.left * times)
        return replace(self, cells=scaled, pixels=np.array(larger))


def dense(
    image: Image,
    weights: str | Path | Checkpoint = DEFAULT,
    *,
    size: Size | str | int | None = None,
    stride: int | None = None,
    tile: Size | str | int | None = None,
    layer: int | None = None,
    watch: Watch = lambda done, total: None,
) -> Dense:
    """Return the features of an image on a grid with a step of `stride` pixels (default: the patch, in one pass).

    The image keeps its shape, with about as many pixels as `size` (default: the model's input). With `tile`, it is
    covered by overlapping windows of that size, each seen alone. Features are the model's, or the tokens after `layer`.

    >>> from vitrail import dense, synthesize_image
    >>> dense(synthesize_image(1), size=64, tile=32).passes
    9
    """
    checkpoint = weights if isinstance(weights, Checkpoint) else load(weights)
    checkpoint.config.require_still("dense")
    patch, steps = _patch_of(checkpoint), checkpoint.preprocessing
    pixels = read_pixels(image, steps)
    area = (steps.image if size is None else Size.of(size)).area
    whole = in_shape_of(Size(*pixels.shape[:2]), area, patch)
    window = Size(*map(min, whole, whole if tile is None else _tile(Size.of(tile), patch)))
    model = _model_at(checkpoint, window)
    return features_of(model, pixels, steps, whole=whole, step=_step(patch, stride), layer=layer, watch=watch)


def features_of(
    model: ViT,
    pixels: Pixels,
    steps: Preprocessing,
    *,
    whole: Size,
    step: Size,
    layer: int | None = None,
    watch: Watch = lambda done, total: None,
) -> Dense:
    """Return the features of an image of `whole` pixels, which the model sees through windows of its own input size."""
    patch, window = model.config.patch, model.config.image
    grid = Size(*(side // move for side, move in zip(whole, step, strict=True)))
    size_bytes = 4 * _width(model, layer) * grid.area
    require(
        size_bytes <= MOST_BYTES,
        f"features of {grid} tokens take {size_bytes / 2**30:.1f} GiB; use a larger stride or a smaller size",
    )
    spare = Size(*(side + edge - move for side, edge, move in zip(whole, patch, step, strict=True)))
    seen = steps.squashed(spare).pixels(pixels, exact=True).pixels
    corners = _corners(whole, window, patch, step)
    tensor = steps.normalise(torch.from_numpy(seen).permute(2, 0, 1)[None])  # (1, C, H, W)
    features = _joined(model, tensor, corners, window, patch, step, grid, layer, watch)
    shown = seen.repeat(3, axis=2) if seen.shape[2] == 1 else seen
    top, left = ((edge - move) / 2 for edge, move in zip(patch, step, strict=True))
    cells = Cells(grid=grid, step=(step.height, step.width), top=top, left=left)
    return Dense(features=features, cells=cells, pixels=shown, original=Size(*pixels.shape[:2]), passes=len(corners))


def _width(model: ViT, layer: int | None) -> int:
    """Return the width of the tokens after a block, or of the features."""
    return model.config.feature_width if layer is None else model.config.width


def _patch_of(checkpoint: Checkpoint) -> Size:
    config = checkpoint.config
    if not isinstance(config, ViTConfig) or not isinstance(config.embedding, Patches) or config.embedding.stride:
        raise VitrailError("dense features need a plain ViT with patches that do not overlap; use such a model")
    return config.patch


def _step(patch: Size, stride: int | None) -> Size:
    step = patch if stride is None else Size(stride, stride)
    require(
        all(side % move == 0 for side, move in zip(patch, step, strict=True)),
        f"stride {stride} does not divide the patch {patch}; use a divisor, such as {_divisor(patch)}",
    )
    return step


def _divisor(patch: Size) -> int:
    """Return the largest stride below the patch."""
    return next(side for side in range(min(patch) - 1 or 1, 0, -1) if patch.height % side == patch.width % side == 0)


def _tile(tile: Size, patch: Size) -> Size:
    return Size(*(max(1, side // edge) * edge for side, edge in zip(tile, patch, strict=True)))


def _corners(whole: Size, window: Size, patch: Size, step: Size) -> list[tuple[int, int]]:
    """Return the top left corners of all windows: tiles that cover the image, each moved by parts of a patch."""
    rows, columns = (
        [start + move for start in _starts(side, seen, edge) for move in range(0, edge, by)]
        for side, seen, edge, by in zip(whole, window, patch, step, strict=True)
    )
    return list(product(rows, columns))


def _starts(whole: int, window: int, edge: int) -> list[int]:
    """Return where tiles begin along one side, at whole patches, so that neighbours overlap."""
    if window == whole:
        return [0]
    count = -(-(whole - OVERLAP * window) // ((1 - OVERLAP) * window))
    room = (whole - window) // edge
    return sorted({round(room * place / max(1, count - 1)) * edge for place in range(int(count))})


def _model_at(checkpoint: Checkpoint, window: Size) -> ViT:
    adapted = checkpoint if window == checkpoint.config.image else adapt(checkpoint, {"image": str(window)})[0]
    model = adapted.model(dtype=torch.float32)
    assert isinstance(model, ViT)
    return model


@torch.inference_mode()
def _joined(
    model: ViT,
    image: Tensor,
    corners: Sequence[tuple[int, int]],
    window: Size,
    patch: Size,
    step: Size,
    grid: Size,
    layer: int | None,
    watch: Watch,
) -> Tensor:
    """Run the model on every window, and put the tokens (D, h, w) in their places; where tiles overlap, blend them."""
    rows, columns = (side // edge for side, edge in zip(window, patch, strict=True))
    nearness = _from_edge(rows)[:, None] * _from_edge(columns)
    total = image.new_zeros(_width(model, layer), *grid)
    weight = image.new_zeros(*grid)
    apart = [edge // move for edge, move in zip(patch, step, strict=True)]  # tokens of a window are so far apart
    for start in range(0, len(corners), AT_ONCE):
        some = corners[start : start + AT_ONCE]
        cut = torch.cat([image[:, :, top : top + window.height, left : left + window.width] for top, left in some])
        tokens, layout = tokens_after(model, cut, layer)
        for each, (top, left) in zip(tokens[:, layout.prefix :], some, strict=True):
            down, across = top // step.height, left // step.width
            place = (
                slice(down, down + rows * apart[0], apart[0]),
                slice(across, across + columns * apart[1], apart[1]),
            )
            total[:, *place] += each.T.unflatten(1, (rows, columns)) * nearness
            weight[place] += nearness
        watch(min(start + AT_ONCE, len(corners)), len(corners))
    return total / weight


def _from_edge(count: int) -> Tensor:
    """Return how near the middle each token is: 1 at an edge, more towards the middle."""
    places = torch.arange(count, dtype=torch.float32)
    return torch.minimum(places, count - 1 - places) + 1
