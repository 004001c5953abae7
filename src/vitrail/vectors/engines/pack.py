"""Images of different shapes in one batch: their tokens are concatenated, without padding.

Linear layers and norms process all tokens at once. Attention runs per image, for all images of one grid together, so
that an image gets the same vector as alone.

Shapes: B images, R tokens of all of them, T of one, D width, H×W pixels, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from vitrail.checkpoint.pixels import Image, Prepared, size_of
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.nn.attention import within
from vitrail.nn.layout import Layout
from vitrail.nn.positions import AddedPosition
from vitrail.plan.reading import PatchBudget
from vitrail.vectors.engines.engine import LeanEngine
from vitrail.vectors.engines.lean import Group, of_groups

__all__ = ["PackedEngine", "native_grid", "prepare_native"]

ROWS = 1600
"""Tokens that are packed at a time."""
GRIDS = 64
"""Number of grids whose positions are cached."""


def native_grid(original: Size, patch: Size, token_budget: int, *, fill: bool = False) -> Size:
    """Return the grid of an image at its own size, shrunk to at most `token_budget` patches; never enlarged.

    With `fill`, it is what NaFlex models were trained on: the largest grid of the image's shape within the budget,
    enlarged if need be, with sides rounded up.

    >>> native_grid(Size(480, 640), Size(16, 16), 196)
    Size(height=12, width=16)
    >>> native_grid(Size(1, 20_000), Size(16, 16), 196)
    Size(height=1, width=196)
    >>> native_grid(Size(60, 80), Size(16, 16), 196, fill=True)
    Size(height=12, width=16)
    """
    require(token_budget > 0, f"token budget {token_budget} is not positive; give the most patches per image")
    if fill:
        require(
            patch.height == patch.width, f"patch {patch} is not square, and those of NaFlex are; leave out --native"
        )
        return PatchBudget(patch=patch.height, most=token_budget).read(original).views[0].grid
    scale = min(1.0, math.sqrt(token_budget * patch.area / original.area))
    height = min(token_budget, max(1, int(original.height * scale / patch.height)))
    return Size(height, max(1, min(token_budget // height, int(original.width * scale / patch.width))))


def prepare_native(
    image: Image,
    preprocessing: Preprocessing,
    patch: Size,
    token_budget: int,
    *,
    exact: bool = False,
) -> Prepared:
    """Prepare the whole image at its own aspect ratio, its sides rounded to whole patches: down, or as NaFlex does if
    the model has a `patch_budget`."""
    grid = native_grid(size_of(image), patch, token_budget, fill=preprocessing.patch_budget is not None)
    whole = Size(grid.height * patch.height, grid.width * patch.width)
    return preprocessing.squashed(whole).pixels(image, exact=exact)


class PackedEngine:
    """An engine for images of any shape that the patch divides."""

    def __init__(self, engine: LeanEngine) -> None:
        self.engine, self.name, self.width = engine, engine.name, engine.width
        self._added: dict[Size, Tensor] = {}

    @torch.inference_mode()
    def vectors(self, images: Sequence[Tensor] | Tensor) -> Tensor:
        """uint8 images, each (H, W, C) → float32 (B, D), in the same order."""
        order = sorted(range(len(images)), key=lambda index: tuple(images[index].shape[:2]))
        vectors = torch.empty(len(images), self.width)
        for part in self._parts(images, order):
            vectors[part] = self._vectors([images[index] for index in part])
        return vectors

    def _parts(self, images: Sequence[Tensor] | Tensor, order: list[int]) -> list[list[int]]:
        parts, rows = [[]], 0
        for index in order:
            tokens = self.engine.model.config.fit(Size(*images[index].shape[:2])).grid.area
            if parts[-1] and rows + tokens > ROWS:
                parts, rows = [*parts, []], 0
            parts[-1].append(index)
            rows += tokens
        return [part for part in parts if part]

    def _vectors(self, images: list[Tensor]) -> Tensor:
        """Images sorted by shape → (B, D)."""
        alike: dict[tuple[int, ...], list[Tensor]] = {}
        for image in images:
            alike.setdefault(tuple(image.shape), []).append(image)
        sequences, groups = zip(*chain(*(self.groups(torch.stack(each)) for each in alike.values())), strict=True)
        x, groups = self.engine.packed(torch.cat(sequences), groups)
        return torch.cat(
            [
                self.engine.pooled(group.every_patch(part), replace(group.layout, rectangles=None))
                for part, group in of_groups(x, groups)
            ]
        )

    def groups(self, batch: Tensor) -> Iterator[tuple[Tensor, Group]]:
        """Images of one shape → their tokens, per group of images whose attention is computed together."""
        x, layout = self._sequence(batch)
        position = within(self.engine.model.position, layout, x)
        yield x.flatten(0, 1), Group(count=len(x), layout=layout, tokens=x.shape[1], position=position)

    def _sequence(self, batch: Tensor) -> tuple[Tensor, Layout]:
        """As the engine's `embed`, with the added positions cached per grid."""
        model, front = self.engine.model, self.engine.front
        if front is None or not isinstance(model.position, AddedPosition):
            return self.engine.embed(batch)
        x, layout = model.prefix(*front.patches(batch))
        if layout.grid not in self._added:
            if len(self._added) == GRIDS:
                self._added.clear()
            self._added[layout.grid] = model.position(torch.zeros_like(x[:1]), layout)
        x = x + self._added[layout.grid]
        return x if model.embedding_norm is None else model.embedding_norm(x), layout
