"""Scaling laws: how tokens, attention and detail depend on image and patch, in closed form.

Counts are integers and ratios are exact fractions. Images and patches need not be square.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import sqrt

from vitrail.geometry import Size, attention_elements, fit
from vitrail.rules import at_least_zero, positive

__all__ = [
    "TEXT_VOCABULARY",
    "BlockFlops",
    "Crossover",
    "Density",
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
"""Rows of a typical text model's embedding table, which corresponds to the patch projection."""


@dataclass(frozen=True, kw_only=True)
class Impact:
    """Tokens and attention of one image with one patch size."""

    image: Size
    patch: Size
    grid: Size
    patches: int
    tokens: int
    """Patches and prefix."""
    attention_elements: int
    """Elements of one head's attention matrix over the patches alone, without prefix tokens."""
    attention_elements_with_prefix: int


def impact(image: Size, patch: Size, prefix: int = 1) -> Impact:
    """Return tokens and attention of an image with a patch size.

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
    """Return the patch and those of a quarter, half, two and four times its side that divide the image."""
    patches = []
    for numerator, denominator in ((1, 4), (1, 2), (1, 1), (2, 1), (4, 1)):
        sides = [side * numerator for side in patch]
        if any(side % denominator for side in sides):
            continue
        candidate = Size(*(side // denominator for side in sides))
        if all(whole % side == 0 for whole, side in zip(image, candidate, strict=True)):
            patches.append(candidate)
    return tuple(patches)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Factors from one (image, patch) to another, over patches alone."""

    tokens: Fraction
    attention: Fraction


def scaling(before: tuple[Size, Size], after: tuple[Size, Size]) -> Scaling:
    """Return how tokens and attention grow from one (image, patch) to another.

    >>> scaling((Size(512, 512), Size(32, 32)), (Size(512, 512), Size(8, 8))).attention
    Fraction(256, 1)
    """
    old, new = (fit(image, patch).grid.area for image, patch in (before, after))
    return Scaling(tokens=Fraction(new, old), attention=Fraction(new * new, old * old))


@dataclass(frozen=True, kw_only=True)
class Density:
    """How much of the image one token represents."""

    pixels_per_token: int
    effective_resolution: float
    """√(H·W)/P: the side, in tokens, of a square image with the same number of tokens."""
    summarised_share: Fraction
    """1 − 1/P²: the share of the pixels' detail that a token must summarise."""
    attention_per_pixel: Fraction
    """N²·D/(H·W) = H·W·D/P⁴."""


def density(image: Size, patch: Size, width: int) -> Density:
    """Return the information density of an image's tokens."""
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
    """Pixels, or channel values, as tokens instead of patches."""

    pixels: int
    values: int
    attention_cut_from_pixels: Fraction
    attention_cut_from_values: Fraction


def pixels_as_tokens(image: Size, patch: Size, channels: int = 3) -> PixelTokens:
    """Return what patches save compared with pixels as tokens.

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
    """Inputs per output: above 1, a token has fewer values than its patch, and information is lost."""
    rank_bound: int
    """The highest possible rank of the projection."""
    lost_directions: int
    """Dimensions of a patch that no projection of this width can keep."""
    lookup_params: int
    """A text model's embedding table of the same width: TEXT_VOCABULARY · D."""
    lookup_ratio: Fraction
    """Embedding table parameters per projection parameter."""


def projection(patch: Size, width: int, channels: int = 3) -> Projection:
    """Return what the patch projection can keep, and its parameters.

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
    """Tokens at which attention's FLOPs (4·N²·D per block) equal those of other parts of the block."""

    mlp_tokens: int
    """4·N²·D = 4·N·D·m, so N = m."""
    linear_tokens: int
    """4·N²·D = 2·N·(4·D² + 2·D·m), so N = 2·D + m."""


def crossover(width: int, mlp_width: int | None = None) -> Crossover:
    """Return the number of tokens from which attention costs more than the other parts.

    >>> crossover(768)
    Crossover(mlp_tokens=3072, linear_tokens=4608)
    """
    mlp_width = 4 * width if mlp_width is None else mlp_width
    positive("width", width)
    positive("mlp_width", mlp_width)
    return Crossover(mlp_tokens=mlp_width, linear_tokens=2 * width + mlp_width)


@dataclass(frozen=True, kw_only=True)
class BlockFlops:
    """Forward FLOPs of one block on one image, by part."""

    attention: int
    """QKᵀ and the weighted sum of V: 4·N²·D."""
    projections: int
    """To q, k, v and out: 8·N·D²."""
    mlp: int
    """4·N·D·m."""


def block_flops(tokens: int, width: int, mlp_width: int | None = None) -> BlockFlops:
    """Return the forward FLOPs of one block on one image, by part.

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
class Laws:
    """All laws for one image and patch, and the impact of neighbouring patch sizes."""

    impact: Impact
    neighbours: tuple[Impact, ...]
    density: Density
    pixels: PixelTokens
    projection: Projection
    crossover: Crossover
    attention_share: Fraction
    """The share of attention in a block's FLOPs, with prefix tokens."""
    twice_as_fine: Scaling
    """The effect of halving the patch's sides or doubling the image's, which is the same."""


def laws(
    image: Size, patch: Size, *, width: int = 768, mlp_width: int | None = None, channels: int = 3, prefix: int = 1
) -> Laws:
    """Compute all laws for one image and patch."""
    current, cross = impact(image, patch, prefix), crossover(width, mlp_width)
    return Laws(
        impact=current,
        neighbours=tuple(impact(image, other, prefix) for other in neighbouring_patches(image, patch)),
        density=density(image, patch, width),
        pixels=pixels_as_tokens(image, patch, channels),
        projection=projection(patch, width, channels),
        crossover=cross,
        attention_share=Fraction(current.tokens, current.tokens + cross.linear_tokens),
        twice_as_fine=scaling((image, patch), (Size(*(2 * side for side in image)), patch)),
    )
