"""An image as a sequence of tokens, step by step: boxes in the image, projections, positions.

Shapes: C channels, H×W pixels, T tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitrail.config import MobileConfig, PyramidConfig, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size, position_id
from vitrail.parts import Adaptive, Patches, ResNetStem, Stem, WindowedAttention
from vitrail.server.plans import Box

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from vitrail.look.subject import Subject
    from vitrail.nn.layout import Layout

__all__ = ["Sequence", "run_sequence"]


@dataclass(frozen=True)
class Sequence:
    """The tokens of one image before the first block, with the steps that lead to them."""

    prefix: tuple[str, ...]
    grid: Size
    regular: bool
    """Whether each cell of the grid is one patch; otherwise the patches are a quadtree."""
    boxes: list[Box]
    """Top, left, height and width of every patch, in pixels."""
    cells: list[Box]
    """Boxes like these, but without overlap, for the pointer."""
    image: Tensor
    """(C, H, W), normalised."""
    pixels: np.ndarray
    projected: Tensor
    """(T, D): learned vectors for the prefix, projections for the patches."""
    vectors: Tensor
    """(T, D): the input of the first block."""
    no_position: str
    """Why no position is added; empty if one is."""
    projection: str
    """How a patch becomes a vector."""

    @property
    def middle(self) -> int:
        """The token of the patch in the middle, shown by default."""
        return self.owners()[position_id(self.grid.height // 2, self.grid.width // 2, self.grid, 0)]

    def owners(self) -> list[int]:
        """Return the token that covers each cell of the grid, in row-major order."""
        first = len(self.prefix)
        if self.regular:
            return list(range(first, first + len(self.cells)))
        unit = Size(self.image.shape[1] // self.grid.height, self.image.shape[2] // self.grid.width)
        import numpy as np

        owner = np.zeros(tuple(self.grid), dtype=int)
        for index, (top, left, height, width) in enumerate(self.cells):
            rows = slice(top // unit.height, (top + height) // unit.height)
            owner[rows, left // unit.width : (left + width) // unit.width] = first + index
        return owner.ravel().tolist()

    def place(self, index: int) -> tuple[int | None, int | None]:
        """Return row and column of a patch, or None for both if the grid is not regular."""
        if index < 0 or not self.regular:
            return None, None
        return divmod(index, self.grid.width)

    def index_formula(self, token: int) -> str:
        """Return how the index of a token is computed."""
        before = len(self.prefix)
        row, column = self.place(token - before)
        if token < before:
            return f"{self.prefix[token]} is not a patch: a learned vector, the same for every image, at index {token}"
        if row is None or column is None:
            return f"{before} + {token - before} = {token}: patches are ordered by their top left corners, row by row"
        return f"{before} + {row} · {self.grid.width} + {column} = {position_id(row, column, self.grid, before)}"

    def values(self, index: int) -> Tensor:
        """Return the pixels of a patch, flattened by channel, row and column."""
        top, left, height, width = self.boxes[index]
        return self.image[:, top : top + height, left : left + width].flatten()


def run_sequence(subject: Subject) -> Sequence:
    """Run the front end on one image."""
    import numpy as np
    import torch

    from vitrail.look.views.words import prefix_names
    from vitrail.nn.remainder import fit_pixels

    model, config = subject.model, subject.model.config
    if isinstance(config, MobileConfig):
        raise VitrailError("a mobile model does not begin with patches; choose a ViT or a pyramid")
    with torch.inference_mode():
        image = subject.image
        if isinstance(config, ViTConfig):
            image = fit_pixels(image, config.fit(Size(*image.shape[2:])))
        patches = model.patches if isinstance(config, ViTConfig) else model.embedding
        projected, layout = model.prefix(*patches(image))  # type: ignore[operator]
        tokens = model.embed(subject.image)[0]  # type: ignore[operator]
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
        vectors=tokens[0],
        no_position=_no_position(config),
        projection=_projection(config),
    )


def _boxes(config: ViTConfig | PyramidConfig, layout: Layout, seen: Size) -> tuple[list[Box], list[Box]]:
    if layout.rectangles is not None:
        height, width = config.patch
        scale = layout.rectangles.new_tensor([height, width, height, width])
        boxes = [tuple(box) for box in (layout.rectangles[0] * scale).tolist()]
        return boxes, boxes
    grid, patch = layout.grid, Size(seen.height // layout.grid.height, seen.width // layout.grid.width)
    stride = patch
    if isinstance(config.embedding, Patches):
        patch, stride = config.patch, config.embedding.stride or config.patch
    top, left = (patch.height - stride.height) // 2, (patch.width - stride.width) // 2
    corners = [
        (row * stride.height, column * stride.width) for row in range(grid.height) for column in range(grid.width)
    ]
    boxes = [(down, across, patch.height, patch.width) for down, across in corners]
    return boxes, [(down + top, across + left, stride.height, stride.width) for down, across in corners]


def _no_position(config: ViTConfig | PyramidConfig) -> str:
    """Return why no position is added to the tokens, or an empty string if one is."""
    match config.position.acts_on:
        case "tokens":
            return ""
        case "queries and keys":
            return "no position is added: every block rotates its queries and keys instead"
        case "scores":
            inside = " inside its windows" if isinstance(config.attention, WindowedAttention) else ""
            return f"no position is added: attention has a bias for every offset{inside}"
        case "nothing":
            return "this model has no positions"


def _projection(config: ViTConfig | PyramidConfig) -> str:
    if isinstance(config.embedding, Stem) and not config.embedding.overlap:
        return "by the convolutions of the stem, which see no more than the patch"
    if isinstance(config.embedding, Stem | ResNetStem):
        return "by the convolutions of the stem, whose receptive field is larger than the patch"
    if isinstance(config.embedding, Adaptive):
        return "by the projection for its patch size"
    if not isinstance(config.embedding, Patches):
        return "by the levels of the pyramid"
    return "by one matrix, the same for all patches"
