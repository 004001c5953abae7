"""Show tokens as colours: their first three principal components as red, green and blue.

Shapes: B images, T tokens of which the last N are patches, n real patches of all images, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.charts.notebook import Brief
from vitrail.errors import require
from vitrail.nn.layout import Layout

__all__ = ["TokenColours", "eigendecomposition", "otsu", "pca_colours", "principal_scores", "scaled_to_colours"]

CLIP = (0.02, 0.98)


@dataclass(frozen=True, kw_only=True, repr=False)
class TokenColours(Brief):
    """A colour per patch token; similar tokens have similar colours, across all images of the batch.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import pca_colours
    >>> model = load("default").model()
    >>> tokens, layout = model.features(torch.randn(1, 3, 32, 32))
    >>> len(pca_colours(tokens.detach(), layout).shares)
    3
    """

    rgb: Tensor
    """(B, N, 3), 0 … 1; padding and a removed background are black."""
    shares: tuple[float, ...]
    """The share of the tokens' variance that each of the three components explains."""
    shown: Tensor
    """(B, N), true for the patches that were coloured."""


@torch.no_grad()
def pca_colours(
    tokens: Tensor, layout: Layout, *, foreground: bool = False, clip: tuple[float, float] = CLIP
) -> TokenColours:
    """Colour the patches of (B, T, D) by the principal components of the whole batch.

    Signs are chosen for positive skewness, so that a rotation of the features changes nothing. Values are scaled from
    their `clip` quantiles to 0 … 1, so that a few extreme tokens do not use up the contrast. With `foreground`, the
    first component is split by Otsu's threshold, the side with more of the image's border is removed as background,
    and the components of the rest give the colours.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import pca_colours
    >>> model = load("default").model()
    >>> tokens, layout = model.features(torch.randn(1, 3, 32, 32))
    >>> pca_colours(tokens.detach(), layout).rgb.shape
    torch.Size([1, 64, 3])
    """
    require(0 <= clip[0] < clip[1] <= 1, f"clip {clip} is not two increasing values in 0 … 1; use (0.02, 0.98)")
    patches = tokens[:, layout.prefix :].double()
    shown = layout.patch_mask
    if shown is None:
        shown = torch.ones(patches.shape[:2], dtype=torch.bool, device=patches.device)
    if foreground:
        first = patches.new_zeros(patches.shape[:2])
        first[shown] = principal_scores(patches[shown])[0][:, 0]
        above = first > otsu(first[shown])
        border = _border(layout, patches.shape[:2], patches.device) & shown
        outside = above if _share(above, border) > _share(~above, border) else ~above
        shown = shown & ~outside
    scores, shares = principal_scores(patches[shown])
    rgb = patches.new_zeros(*patches.shape[:2], 3)
    rgb[shown] = scaled_to_colours(scores, clip)
    return TokenColours(rgb=rgb.float(), shares=tuple(shares.tolist()), shown=shown)


Leading = Callable[[Tensor], tuple[Tensor, Tensor]]
"""(D, D) → up to three largest eigenvalues in descending order, and their eigenvectors as columns."""


def eigendecomposition(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the three leading eigenvalues and eigenvectors of a symmetric matrix."""
    values, vectors = torch.linalg.eigh(matrix)  # ascending
    return values.flip(0)[:3].clamp_min(0), vectors.flip(1)[:, :3]


def principal_scores(x: Tensor, leading: Leading = eigendecomposition) -> tuple[Tensor, Tensor]:
    """(n, D) → scores (n, 3) and shares of variance (3,); missing components are zero."""
    x = x - x.mean(dim=0)
    values, vectors = leading(x.T @ x)
    scores = x @ vectors
    scores = scores * torch.where(scores.pow(3).sum(dim=0) < 0, -1.0, 1.0)
    shares = values / x.square().sum().clamp_min(torch.finfo(x.dtype).tiny)
    missing = (0, 3 - min(3, x.shape[1]))
    return F.pad(scores, missing), F.pad(shares, missing)


def scaled_to_colours(scores: Tensor, clip: tuple[float, float] = CLIP) -> Tensor:
    """Scale each component from its `clip` quantiles to 0 … 1."""
    ranked = scores.sort(dim=0).values
    low, high = (_at(ranked, share * (len(ranked) - 1)) for share in clip)
    spread = high - low
    return torch.where(spread > 0, (scores - low) / spread.clamp_min(torch.finfo(scores.dtype).tiny), 0.5).clamp(0, 1)


def _at(ranked: Tensor, place: float) -> Tensor:
    """Return the row at a place between two rows, as `torch.quantile` does, which ONNX does not have."""
    lower, upper = ranked[int(place)], ranked[min(int(place) + 1, len(ranked) - 1)]
    return lower + (upper - lower) * (place - int(place))


def otsu(values: Tensor) -> Tensor:
    """Return Otsu's threshold, which maximises the variance between its two sides."""
    values = values.sort().values
    below = torch.arange(1, len(values), device=values.device)
    sums = values.cumsum(0)
    left, right = sums[:-1] / below, (sums[-1] - sums[:-1]) / (len(values) - below)
    cut = (below * (len(values) - below) * (left - right).square()).argmax()
    return (values[cut] + values[cut + 1]) / 2


def _border(layout: Layout, shape: torch.Size, device: torch.device) -> Tensor:
    """(B, N), true for patches at the edge of the grid."""
    rectangles = layout.rectangles
    if rectangles is None:
        top, left = layout.centres(device).long().unbind(-1)
        bottom, right = top + 1, left + 1
    else:
        top, left, height, width = rectangles.unbind(-1)
        bottom, right = top + height, left + width
    edge = (top == 0) | (left == 0) | (bottom == layout.grid.height) | (right == layout.grid.width)
    return edge.expand(shape)


def _share(side: Tensor, border: Tensor) -> float:
    return (side & border).sum().item() / max(1, int(side.sum()))
