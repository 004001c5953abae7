"""Kinds of patch embedding for one image and one model, each with its tokens and its planned cost."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size, attention_elements, fit
from vitrail.parts import Adaptive, Embedding, Hierarchical, Patches, Stem
from vitrail.plan.ledger import ledger
from vitrail.plan.workload import Workload
from vitrail.server.formulas import Formula
from vitrail.server.plan_formulas import attention_formula, forward_formula
from vitrail.server.plans import Pair

__all__ = [
    "ADAPTIVE_SIZES",
    "PYRAMID",
    "Cut",
    "Kind",
    "adaptive_cut",
    "adaptive_kind",
    "adaptive_of",
    "kinds_of",
    "pyramid_cut",
]

PYRAMID = (4, 8, 16, 32)
ADAPTIVE_SIZES = 3
"""How many sizes adaptive patches have."""
MAX_CELLS = 2**16
"""The largest finest grid of a quadtree, in cells."""


class Level(BaseModel):
    patch: Pair
    grid: Pair
    width: int
    tokens: int


class Kind(BaseModel):
    name: str
    about: str
    image: Pair
    """The nearest image size that the patches divide."""
    levels: list[Level]
    """Finest first; the encoder reads the last."""
    stride: Pair
    """Pixels between neighbouring tokens of the encoder; for adaptive patches, the smallest ones."""
    patches: int
    """Patch tokens of the encoder."""
    sees: Pair
    """The largest receptive field of a token, in pixels."""
    attention_elements: int
    """Attention elements per head, prefix included."""
    embedding_params: int
    flops_forward: int
    refused: str
    """Why the model cannot have this embedding; the other numbers are then 0."""
    formulas: list[Formula] = []
    """Forward FLOPs and attention elements."""


def kinds_of(config: ViTConfig, stride: Size) -> list[Kind]:
    """Return the kinds that do not depend on the image's content."""
    patch, width = config.patch, config.width
    kinds = [
        _kind(config, "regular", "adjacent patches, one projection", Patches(patch=patch, bias=_bias(config)), patch),
        _kind(
            config,
            "overlapping",
            f"a patch of {patch.height}×{patch.width} every {stride.height}×{stride.width} pixels, "
            "so that the edge of one patch is inside another",
            Patches(patch=patch, stride=stride, bias=_bias(config)),
            patch,
        ),
    ]
    steps = log2(patch.height)
    if patch.height == patch.width and steps.is_integer():
        widths = tuple(max(1, width // 2**level) for level in range(int(steps), 0, -1))
        field = 2 * patch.height - 1  # receptive field of that many 3×3 convolutions with stride 2
        about = f"{len(widths)} convolutions of 3×3, each halving the image"
        kinds.append(_kind(config, "stem", about, Stem(patch=patch, widths=widths), Size(field, field)))
    widths = tuple(max(1, width // 2**level) for level in range(len(PYRAMID) - 1, 0, -1))
    kinds.append(
        _kind(
            config,
            "hierarchical",
            "fine patches, merged 2×2 into coarser grids of wider tokens",
            Hierarchical(finest=Size(PYRAMID[0], PYRAMID[0]), widths=widths),
            Size(PYRAMID[-1], PYRAMID[-1]),
        )
    )
    return kinds


def _bias(config: ViTConfig) -> bool:
    return not isinstance(config.embedding, Patches) or config.embedding.bias


def _kind(
    config: ViTConfig, name: str, about: str, embedding: Embedding, sees: Size, patches: int | None = None
) -> Kind:
    fitted = embedding.fit(config.image, "resize").fitted
    stride = (embedding.stride if isinstance(embedding, Patches) else None) or embedding.patch
    common = {"name": name, "about": about, "image": fitted, "stride": stride, "sees": sees}
    try:
        cut = config.but(image=fitted, embedding=embedding, remainder="error")
        costs = ledger(cut, Workload(adaptive_tokens=patches))
    except VitrailError as error:
        none = {"levels": [], "patches": 0, "attention_elements": 0, "embedding_params": 0, "flops_forward": 0}
        return Kind(**common, **none, refused=str(error))
    count = cut.grid.area if patches is None else patches
    return Kind(
        **common,
        levels=_levels(cut, embedding),
        patches=count,
        attention_elements=attention_elements(config.prefix.count + count),
        embedding_params=sum(row.params for row in costs.rows if row.path.split(".")[0] == "embedding"),
        flops_forward=costs.flops_forward,
        refused="",
        formulas=[forward_formula(costs), attention_formula(config.prefix.count + count)],
    )


def _levels(cut: ViTConfig, embedding: Embedding) -> list[Level]:
    match embedding:
        case Hierarchical(finest=finest, widths=widths):
            sides = [Size(*(side * 2**level for side in finest)) for level in range(len(widths) + 1)]
            pairs = zip(sides, (*widths, cut.width), strict=True)
        case Adaptive(patches=sides):
            pairs = ((side, cut.width) for side in sides)
        case _:
            return [Level(patch=embedding.patch, grid=cut.grid, width=cut.width, tokens=cut.grid.area)]
    grids = [(side, width, fit(cut.image, side).grid) for side, width in pairs]
    return [Level(patch=side, grid=grid, width=width, tokens=grid.area) for side, width, grid in grids]


# ── adaptive patches and pyramids ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Cut:
    """How an image is cut: the size to which it is resized and cropped, and the smallest patch."""

    image: Size
    patch: Size


def adaptive_of(config: ViTConfig, threshold: float) -> Adaptive:
    """Return patches of half, once and twice the model's patch; for an odd patch, once, twice and four times."""
    halves = config.patch.height % 2 == 0 and config.patch.width % 2 == 0
    first = Size(config.patch.height // 2, config.patch.width // 2) if halves else config.patch
    sizes = tuple(Size(first.height * 2**level, first.width * 2**level) for level in range(ADAPTIVE_SIZES))
    return Adaptive(patches=sizes, threshold=threshold)


def adaptive_cut(config: ViTConfig) -> Cut:
    """Return the nearest image size that adaptive patches divide, and the smallest of them."""
    spec = adaptive_of(config, 0)
    fitted = spec.fit(config.image, "resize")
    require(
        fitted.grid.area <= MAX_CELLS,
        f"a finest grid of {fitted.grid} has more than {MAX_CELLS:,} cells; use a larger patch or a smaller image",
    )
    return Cut(fitted.fitted, spec.patch)


def pyramid_cut(config: ViTConfig) -> Cut:
    """Return the nearest image size that hierarchical patches divide, and the smallest of them."""
    finest, coarsest = (Size(side, side) for side in (PYRAMID[0], PYRAMID[-1]))
    return Cut(Patches(patch=coarsest).fit(config.image, "resize").fitted, finest)


def adaptive_kind(config: ViTConfig, spec: Adaptive, patches: int) -> Kind:
    """Return adaptive patches as a kind, planned for the number of patches that the image has."""
    about = "small patches where the image has detail, large ones where it is flat"
    return _kind(config, "adaptive", about, spec, spec.patches[-1], patches)
