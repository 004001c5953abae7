"""Ways to cut one image for one model, each with its tokens and what the planner says it costs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import log2
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size, attention_elements
from vitrail.images.decode import Pixels
from vitrail.parts import Adaptive, Embedding, Hierarchical, Patches, Stem
from vitrail.plan.ledger import ledger
from vitrail.plan.workload import Workload
from vitrail.studio.plans import Pair

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "PYRAMID",
    "Detail",
    "Kind",
    "adaptive_of",
    "detail_of",
    "kinds_of",
    "leaves_of",
    "pyramid_means",
    "spread_of",
]

PYRAMID = (4, 8, 16, 32)
MOST_CELLS = 2**16
"""Most cells of the finest grid that a quadtree is drawn on."""


class Level(BaseModel):
    patch: Pair
    grid: Pair
    width: int
    tokens: int


class Kind(BaseModel):
    name: str
    about: str
    image: Pair
    """The image that this way cuts: the nearest size that it divides."""
    levels: list[Level]
    """Finest first; the last is what the encoder reads."""
    stride: Pair
    """Pixels from one token that the encoder reads to the next; from the smallest, where sizes differ."""
    patches: int
    """Patch tokens that the encoder reads."""
    sees: Pair
    """Pixels that one token sees, at most."""
    attention_elements: int
    """Attention elements of one head, prefix included."""
    embedding_params: int
    flops_forward: int
    refused: str
    """Why this model cannot be cut this way; everything else is then 0."""


def kinds_of(config: ViTConfig, stride: Size) -> list[Kind]:
    """The ways that need no look at the image."""
    patch, width = config.patch, config.width
    found = [
        _kind(config, "regular", "edge to edge, one matrix for all", Patches(patch=patch, bias=_bias(config)), patch),
        _kind(
            config,
            "overlapping",
            f"a patch of {patch.height}×{patch.width} every {stride.height}×{stride.width} pixels: "
            "an edge between two lies inside a third",
            Patches(patch=patch, stride=stride, bias=_bias(config)),
            patch,
        ),
    ]
    steps = log2(patch.height)
    if patch.height == patch.width and steps.is_integer():
        widths = tuple(max(1, width // 2**level) for level in range(int(steps), 0, -1))
        sight = 2 * patch.height - 1  # of that many 3×3 convolutions of stride 2
        about = f"{len(widths)} convolutions of 3×3, each halving the image"
        found.append(_kind(config, "stem", about, Stem(patch=patch, widths=widths), Size(sight, sight)))
    widths = tuple(max(1, width // 2**level) for level in range(len(PYRAMID) - 1, 0, -1))
    found.append(
        _kind(
            config,
            "hierarchical",
            "fine patches, merged two by two into ever coarser, wider grids",
            Hierarchical(finest=Size(PYRAMID[0], PYRAMID[0]), widths=widths),
            Size(PYRAMID[-1], PYRAMID[-1]),
        )
    )
    return found


def _bias(config: ViTConfig) -> bool:
    return not isinstance(config.embedding, Patches) or config.embedding.bias


def _kind(
    config: ViTConfig, name: str, about: str, embedding: Embedding, sees: Size, patches: int | None = None
) -> Kind:
    fitted = embedding.fit(config.image, "resize").fitted
    stride = (embedding.stride if isinstance(embedding, Patches) else None) or embedding.patch
    said = {"name": name, "about": about, "image": tuple(fitted), "stride": tuple(stride), "sees": tuple(sees)}
    try:
        cut = config.but(image=fitted, embedding=embedding, remainder="error")
        books = ledger(cut, Workload(adaptive_tokens=patches))
    except VitrailError as error:
        none = {"levels": [], "patches": 0, "attention_elements": 0, "embedding_params": 0, "flops_forward": 0}
        return Kind(**said, **none, refused=str(error))
    count = cut.grid.area if patches is None else patches
    return Kind(
        **said,
        levels=_levels(cut, embedding),
        patches=count,
        attention_elements=attention_elements(config.prefix.count + count),
        embedding_params=sum(row.params for row in books.rows if row.path.split(".")[0] == "embedding"),
        flops_forward=books.flops_forward,
        refused="",
    )


def _levels(cut: ViTConfig, embedding: Embedding) -> list[Level]:
    match embedding:
        case Hierarchical(finest=finest, widths=widths):
            sides = [Size(*(side * 2**level for side in finest)) for level in range(len(widths) + 1)]
            pairs = zip(sides, (*widths, cut.width), strict=True)
        case Adaptive(patches=sides):
            pairs = ((side, cut.width) for side in sides)
        case _:
            return [_level(embedding.patch, cut.grid, cut.width)]
    return [_level(side, _grid(cut.image, side), width) for side, width in pairs]


def _level(patch: Size, grid: Size, width: int) -> Level:
    return Level(patch=tuple(patch), grid=tuple(grid), width=width, tokens=grid.area)


def _grid(image: Size, patch: Size) -> Size:
    return Size(image.height // patch.height, image.width // patch.width)


# ── by content ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Detail:
    """What a threshold decides upon: computed once for an image, a size and patches."""

    scores: list[Tensor]
    means: list[Tensor]
    """(1, 3, rows, columns) per patch size, finest first: the mean colour of every cell, 0 … 255."""


def adaptive_of(config: ViTConfig, threshold: float) -> Adaptive:
    """Half the model's patch, the patch, and twice it; of an odd patch, from the patch itself upwards."""
    halves = config.patch.height % 2 == 0 and config.patch.width % 2 == 0
    first = Size(config.patch.height // 2, config.patch.width // 2) if halves else config.patch
    sizes = tuple(Size(first.height * 2**level, first.width * 2**level) for level in range(3))
    return Adaptive(patches=sizes, threshold=threshold)


def detail_of(pixels: Pixels, image: Size, spec: Adaptive) -> Detail:
    """Scores and mean colours of all cells of the image at the size that the patches divide."""
    import torch
    import torch.nn.functional as F

    from vitrail.nn.adaptive import detail_scores

    fitted = spec.fit(image, "resize")
    require(
        fitted.grid.area <= MOST_CELLS,
        f"a finest grid of {fitted.grid} has more than {MOST_CELLS:,} cells; take a larger patch or a smaller image",
    )
    values = torch.from_numpy(_seen(pixels, fitted.fitted)).permute(2, 0, 1)[None].float()
    means = [F.avg_pool2d(values, tuple(spec.patch))]
    for _ in pairwise(spec.patches):
        means.append(F.avg_pool2d(means[-1], 2))
    return Detail(scores=detail_scores(values, spec.patches), means=means)


@dataclass(frozen=True)
class Leaves:
    """A quadtree, back on the finest grid."""

    levels: np.ndarray
    """(rows, columns): which patch size covers a cell, 0 the finest."""
    dense: np.ndarray
    """(rows, columns, 3): every token's colour in all of its cells."""
    counts: list[int]
    """Leaves of every size, finest first."""


def leaves_of(detail: Detail, threshold: float) -> Leaves:
    """What a threshold makes of the scores, and the way back from its tokens to a dense map."""
    import torch

    from vitrail.nn.adaptive import quadtree, to_dense

    tree = quadtree(detail.scores, threshold)
    assert tree.rectangles is not None
    top, left, side, _ = tree.rectangles[0].unbind(-1)
    level = side.float().log2().long()
    tokens = torch.empty(1, len(level), 4)
    tokens[0, :, 3] = level
    for number, means in enumerate(detail.means):
        mine = level == number
        tokens[0, mine, :3] = means[0, :, top[mine] // 2**number, left[mine] // 2**number].T
    dense = to_dense(tokens, tree)[0].permute(1, 2, 0).round().clamp(0, 255).byte().numpy()
    return Leaves(
        levels=np.ascontiguousarray(dense[:, :, 3]),
        dense=np.ascontiguousarray(dense[:, :, :3]),
        counts=torch.bincount(level, minlength=len(detail.means)).tolist(),
    )


def spread_of(config: ViTConfig, spec: Adaptive, patches: int) -> Kind:
    """Adaptive patches as a kind, with as many tokens as the image got."""
    about = "small where the image is busy, large where it is flat"
    return _kind(config, "adaptive", about, spec, spec.patches[-1], patches)


def pyramid_means(pixels: Pixels, image: Size) -> list[np.ndarray]:
    """The image as each level of the pyramid divides it: one mean colour a token, finest first."""
    coarsest = Size(PYRAMID[-1], PYRAMID[-1])
    fitted = Patches(patch=coarsest).fit(image, "resize").fitted
    values = _seen(pixels, fitted)
    found = []
    for side in PYRAMID:
        rows, columns = fitted.height // side, fitted.width // side
        cells = values.reshape(rows, side, columns, side, 3).mean(axis=(1, 3))
        found.append(cells.round().astype(np.uint8))
    return found


def _seen(pixels: Pixels, image: Size) -> Pixels:
    """The pixels as a model of this image size gets them."""
    from vitrail.checkpoint.preprocessing import Preprocessing

    return Preprocessing(image=image).pixels(pixels, exact=True).pixels
