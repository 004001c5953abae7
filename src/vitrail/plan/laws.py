"""How tokens, attention and detail scale with image and patch: closed forms, exact, and the folklore they correct.

Counts are whole numbers and ratios are fractions; rounding is for whoever prints them. Sides need not be equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import sqrt

from vitrail.geometry import Size, attention_elements, fit
from vitrail.rules import at_least_zero, positive

__all__ = [
    "FOLKLORE",
    "TEXT_VOCABULARY",
    "BlockFlops",
    "Crossover",
    "Density",
    "Folklore",
    "Impact",
    "Laws",
    "PixelTokens",
    "Projection",
    "Scaling",
    "block_flops",
    "crossover",
    "density",
    "impact",
    "laws",
    "neighbouring_patches",
    "pixels_as_tokens",
    "projection",
    "scaling",
]

TEXT_VOCABULARY = 50_000
"""Rows of a typical text model's lookup table, the thing that a patch projection stands in for."""


@dataclass(frozen=True, kw_only=True)
class Impact:
    """What one patch size makes of one image."""

    image: Size
    patch: Size
    grid: Size
    patches: int
    tokens: int
    """Patches and prefix."""
    attention_elements: int
    """Elements of one head's matrix over the patches alone: the laws' T²; see `attention_elements_with_prefix`."""
    attention_elements_with_prefix: int


def impact(image: Size, patch: Size, prefix: int = 1) -> Impact:
    """Tokens and attention of an image cut by a patch.

    >>> impact(Size(512, 512), Size(8, 8)).attention_elements
    16777216
    """
    at_least_zero("prefix", prefix)
    grid = fit(image, patch).grid
    return Impact(
        image=image,
        patch=patch,
        grid=grid,
        patches=grid.area,
        tokens=grid.area + prefix,
        attention_elements=attention_elements(grid.area),
        attention_elements_with_prefix=attention_elements(grid.area + prefix),
    )


def neighbouring_patches(image: Size, patch: Size) -> tuple[Size, ...]:
    """The patch, its halves and its doubles, as far as they divide the image: from a quarter to four times its side."""
    found = []
    for numerator, denominator in ((1, 4), (1, 2), (1, 1), (2, 1), (4, 1)):
        sides = [side * numerator for side in patch]
        if any(side % denominator for side in sides):
            continue
        candidate = Size(*(side // denominator for side in sides))
        if all(whole % side == 0 for whole, side in zip(image, candidate, strict=True)):
            found.append(candidate)
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Factors from one (image, patch) to another, over patches alone."""

    tokens: Fraction
    attention: Fraction


def scaling(before: tuple[Size, Size], after: tuple[Size, Size]) -> Scaling:
    """How tokens and attention grow from one (image, patch) to another.

    >>> scaling((Size(512, 512), Size(32, 32)), (Size(512, 512), Size(8, 8))).attention
    Fraction(256, 1)
    """
    old, new = (fit(image, patch).grid.area for image, patch in (before, after))
    return Scaling(tokens=Fraction(new, old), attention=Fraction(new * new, old * old))


@dataclass(frozen=True, kw_only=True)
class Density:
    """How much image one token carries."""

    pixels_per_token: int
    effective_resolution: float
    """√(H·W)/P: the side, in tokens, of a square image with as many."""
    summarised_share: Fraction
    """1 − 1/P²: of the fine detail, the share that one token must summarise."""
    attention_per_pixel: Fraction
    """N²·D/(H·W) = H·W·D/P⁴."""


def density(image: Size, patch: Size, width: int) -> Density:
    """Information density of an image's tokens."""
    positive("width", width)
    patches = fit(image, patch).grid.area
    return Density(
        pixels_per_token=patch.area,
        effective_resolution=sqrt(image.area / patch.area),
        summarised_share=1 - Fraction(1, patch.area),
        attention_per_pixel=Fraction(patches * patches * width, image.area),
    )


@dataclass(frozen=True, kw_only=True)
class PixelTokens:
    """The image as a sequence of pixels, or of channel values, against patches."""

    pixels: int
    values: int
    attention_cut_from_pixels: Fraction
    attention_cut_from_values: Fraction


def pixels_as_tokens(image: Size, patch: Size, channels: int = 3) -> PixelTokens:
    """What patches save over pixels as tokens.

    >>> pixels_as_tokens(Size(224, 224), Size(16, 16)).attention_cut_from_pixels
    Fraction(65536, 1)
    """
    positive("channels", channels)
    patches, values = fit(image, patch).grid.area, image.area * channels
    return PixelTokens(
        pixels=image.area,
        values=values,
        attention_cut_from_pixels=Fraction(image.area, patches) ** 2,
        attention_cut_from_values=Fraction(values, patches) ** 2,
    )


@dataclass(frozen=True, kw_only=True)
class Projection:
    """The linear map from a patch's values to a token."""

    inputs: int
    """P²·C values of a patch."""
    width: int
    params: int
    """D·(P²·C + 1)."""
    compression: Fraction
    """Inputs per output: above 1 the token is smaller than its patch, and something must go."""
    rank_bound: int
    """At most this many independent directions of a patch reach the token."""
    lost_directions: int
    """Directions of a patch that no weights can keep."""
    lookup_params: int
    """A text model's lookup table of the same width: TEXT_VOCABULARY · D."""
    lookup_ratio: Fraction
    """Lookup parameters per projection parameter."""


def projection(patch: Size, width: int, channels: int = 3) -> Projection:
    """What the patch projection can keep, and what it costs.

    >>> projection(Size(16, 16), 768).params
    590592
    """
    positive("width", width)
    positive("channels", channels)
    inputs = patch.area * channels
    params = width * (inputs + 1)
    return Projection(
        inputs=inputs,
        width=width,
        params=params,
        compression=Fraction(inputs, width),
        rank_bound=min(inputs, width),
        lost_directions=max(0, inputs - width),
        lookup_params=TEXT_VOCABULARY * width,
        lookup_ratio=Fraction(TEXT_VOCABULARY * width, params),
    )


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """Tokens at which attention's FLOPs (4·N²·D a block) equal those of other parts of the block."""

    mlp_tokens: int
    """4·N²·D = 4·N·D·m, so N = m."""
    linear_tokens: int
    """4·N²·D = 2·N·(4·D² + 2·D·m), so N = 2·D + m."""


def crossover(width: int, mlp_width: int | None = None) -> Crossover:
    """Where attention stops being the cheap part.

    >>> crossover(768)
    Crossover(mlp_tokens=3072, linear_tokens=4608)
    """
    mlp_width = 4 * width if mlp_width is None else mlp_width
    positive("width", width)
    positive("mlp_width", mlp_width)
    return Crossover(mlp_tokens=mlp_width, linear_tokens=2 * width + mlp_width)


@dataclass(frozen=True, kw_only=True)
class BlockFlops:
    """Forward FLOPs of one block on one image, by what they are spent on."""

    attention: int
    """QKᵀ and the weighted sum of V: 4·N²·D."""
    projections: int
    """To q, k, v and out: 8·N·D²."""
    mlp: int
    """4·N·D·m."""


def block_flops(tokens: int, width: int, mlp_width: int | None = None) -> BlockFlops:
    """Where one block's FLOPs go.

    >>> block_flops(197, 768).attention
    119221248
    """
    mlp_width = 4 * width if mlp_width is None else mlp_width
    for name, value in (("tokens", tokens), ("width", width), ("mlp_width", mlp_width)):
        positive(name, value)
    return BlockFlops(
        attention=4 * tokens * tokens * width,
        projections=8 * tokens * width * width,
        mlp=4 * tokens * width * mlp_width,
    )


@dataclass(frozen=True, kw_only=True)
class Folklore:
    """A figure that is often repeated and wrong, and the true one."""

    about: str
    said: str
    true: str
    why: str


FOLKLORE = (
    Folklore(
        about="patch 32 → 8 at 512 px, attention",
        said="258×",
        true="256×",
        why="(4,096 / 256)² = 16²",
    ),
    Folklore(
        about="image side doubled, attention",
        said="4×",
        true="16×",
        why="4× the tokens, and attention goes with their square",
    ),
    Folklore(
        about="attention cost per pixel",
        said="D/P²",
        true="H·W·D/P⁴",
        why="N²·D/(H·W) with N = H·W/P²: it grows with the image",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Laws:
    """All of it for one image and one patch, with the neighbouring patch sizes beside it."""

    impact: Impact
    neighbours: tuple[Impact, ...]
    density: Density
    pixels: PixelTokens
    projection: Projection
    crossover: Crossover
    attention_share: Fraction
    """The share of a block's FLOPs that is attention, at this many tokens (prefix included)."""
    twice_as_fine: Scaling
    """Every side of the patch halved, or every side of the image doubled: the same thing to a token count."""
    folklore: tuple[Folklore, ...] = FOLKLORE


def laws(
    image: Size, patch: Size, *, width: int = 768, mlp_width: int | None = None, channels: int = 3, prefix: int = 1
) -> Laws:
    """Every law for one image and patch."""
    here, cross = impact(image, patch, prefix), crossover(width, mlp_width)
    return Laws(
        impact=here,
        neighbours=tuple(impact(image, other, prefix) for other in neighbouring_patches(image, patch)),
        density=density(image, patch, width),
        pixels=pixels_as_tokens(image, patch, channels),
        projection=projection(patch, width, channels),
        crossover=cross,
        attention_share=Fraction(here.tokens, here.tokens + cross.linear_tokens),
        twice_as_fine=scaling((image, patch), (Size(*(2 * side for side in image)), patch)),
    )
