"""An image as a model's tokens, step by step: where each comes from, what is projected, what is added.

Shapes: C channels, H×W pixels, T tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from vitrail.config import MobileConfig, PyramidConfig, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size, position_id
from vitrail.parts import Adaptive, Patches, Stem

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.look.subject import Subject
    from vitrail.nn.layout import Layout

__all__ = ["Box", "Sequence", "run_sequence"]

Box = Annotated[tuple[int, ...], Field(min_length=4, max_length=4)]
"""Top, left, height and width."""


@dataclass(frozen=True)
class Sequence:
    """An image as a model's tokens, step by step; arrays on the CPU."""

    prefix: tuple[str, ...]
    grid: Size
    regular: bool
    """One patch a cell of the grid; otherwise a quadtree over it."""
    boxes: list[Box]
    """Top, left, height and width of every patch, in pixels of the image that is cut."""
    cells: list[Box]
    """The same where no two share a pixel: what a patch is hovered by."""
    image: Tensor
    """(C, H, W), normalised."""
    pixels: np.ndarray
    projected: Tensor
    """(T, D): learned vectors for the prefix, projections for the patches."""
    tokens: Tensor
    """(T, D): what the first block reads."""
    added: str
    """What happens to positions, in words."""
    cut: str
    """How a patch becomes a vector, in words."""

    @property
    def middle(self) -> int:
        """The token of the patch in the middle, which is looked at unless another is chosen."""
        return self.owners()[position_id(self.grid.height // 2, self.grid.width // 2, self.grid, 0)]

    def owners(self) -> list[int]:
        """The token that covers each cell of the grid, rows first."""
        first = len(self.prefix)
        if self.regular:
            return list(range(first, first + len(self.cells)))
        unit = Size(self.image.shape[1] // self.grid.height, self.image.shape[2] // self.grid.width)
        owner = np.zeros(tuple(self.grid), dtype=int)
        for index, (top, left, height, width) in enumerate(self.cells):
            rows = slice(top // unit.height, (top + height) // unit.height)
            owner[rows, left // unit.width : (left + width) // unit.width] = first + index
        return owner.ravel().tolist()

    def place(self, index: int) -> tuple[int | None, int | None]:
        """Row and column of a patch on a regular grid."""
        if index < 0 or not self.regular:
            return None, None
        return divmod(index, self.grid.width)

    def number(self, token: int) -> str:
        """How a token's number comes about, in words."""
        before = len(self.prefix)
        row, column = self.place(token - before)
        if token < before:
            return f"{self.prefix[token]} is no patch: a learned vector, the same for every image, at place {token}"
        if row is None or column is None:
            return f"{before} + {token - before} = {token}: leaves are numbered row by row, by their top left corners"
        number = position_id(row, column, self.grid, before)
        return f"{before} + {row} · {self.grid.width} + {column} = {number}"

    def values(self, index: int) -> Tensor:
        """A patch's pixels, flattened channel by channel, row by row."""
        top, left, height, width = self.boxes[index]
        return self.image[:, top : top + height, left : left + width].flatten()


def run_sequence(subject: Subject) -> Sequence:
    """The front end on one image."""
    import torch

    from vitrail.look.views.words import prefix_names
    from vitrail.nn.remainder import fit_pixels

    model, config = subject.model, subject.model.config
    if isinstance(config, MobileConfig):
        raise VitrailError("a mobile model has no patches at its entrance; look at a ViT or a pyramid")
    with torch.inference_mode():
        image = subject.image
        if isinstance(config, ViTConfig):
            image = fit_pixels(image, config.fit(Size(*image.shape[2:])))
        projected, layout = model.embedding(image)  # type: ignore[operator]
        if isinstance(config, ViTConfig):
            projected, layout = model.prefix(projected, layout)  # type: ignore[operator]
            tokens = model.embed(subject.image)[0]  # type: ignore[operator]
        else:
            tokens = projected
    boxes, cells = _boxes(config, layout, Size(*image.shape[2:]))
    return Sequence(
        prefix=tuple(prefix_names(subject)),
        grid=layout.grid,
        regular=layout.rectangles is None,
        boxes=boxes,
        cells=cells,
        image=image[0],
        pixels=np.ascontiguousarray(subject.pixels),
        projected=projected[0],
        tokens=tokens[0],
        added=_added(config),
        cut=_cut(config),
    )


def _boxes(config: ViTConfig | PyramidConfig, layout: Layout, seen: Size) -> tuple[list[Box], list[Box]]:
    if layout.rectangles is not None:
        height, width = config.patch
        scale = layout.rectangles.new_tensor([height, width, height, width])
        found = [tuple(box) for box in (layout.rectangles[0] * scale).tolist()]
        return found, found
    grid, patch = layout.grid, Size(seen.height // layout.grid.height, seen.width // layout.grid.width)
    stride = patch
    if isinstance(config, ViTConfig) and isinstance(config.embedding, Patches):
        patch, stride = config.patch, config.embedding.stride or config.patch
    top, left = (patch.height - stride.height) // 2, (patch.width - stride.width) // 2
    corners = [
        (row * stride.height, column * stride.width) for row in range(grid.height) for column in range(grid.width)
    ]
    boxes = [(down, across, patch.height, patch.width) for down, across in corners]
    return boxes, [(down + top, across + left, stride.height, stride.width) for down, across in corners]


def _added(config: ViTConfig | PyramidConfig) -> str:
    """Why nothing is added, or nothing where something is."""
    if isinstance(config, PyramidConfig):
        return "no position is added: a bias on every offset inside the windows does that work"
    match config.position.acts_on:
        case "tokens":
            return ""
        case "queries and keys":
            return "no position is added: it turns queries and keys in every block"
        case "scores":
            return "no position is added: attention has a bias for every offset"
        case "nothing":
            return "no position is added anywhere"


def _cut(config: ViTConfig | PyramidConfig) -> str:
    if isinstance(config, ViTConfig) and isinstance(config.embedding, Stem):
        return "through the stem's convolutions, which see a little beyond the patch"
    if isinstance(config, ViTConfig) and isinstance(config.embedding, Adaptive):
        return "by the projection of its own size"
    if isinstance(config, ViTConfig) and not isinstance(config.embedding, Patches):
        return "through the levels of the pyramid"
    return "by one matrix, the same for all patches"
