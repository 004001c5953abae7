"""Content-adaptive patches: a quadtree with small patches where the image has detail and large ones where it is flat.

The image is cut into cells of the coarsest patch; a cell whose score reaches the threshold splits into four, down to
the finest patch. Leaves are ordered row by row by their top left corner, so a threshold of 0 gives exactly the finest
regular grid and infinity exactly the coarsest. Every patch size has its own projection, and every pixel is projected
once, so the cost is that of one regular grid for any tree.

Shapes: B images, C channels, H×W pixels, h×w cells of the finest grid, N tokens (the most of any image), D width,
n leaves of one level, P×Q the level's patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail import parts
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size, fit
from vitrail.nn.initialise import initialise
from vitrail.nn.layout import Layout
from vitrail.nn.patches import PatchEmbed

__all__ = [
    "AdaptiveEmbed",
    "Selector",
    "TokensSaved",
    "cell_scores",
    "detail_scores",
    "leaves_of",
    "quadtree",
    "random_scores",
    "to_dense",
    "tokens_saved",
]


class AdaptiveEmbed(nn.Module):
    """Image → tokens of several patch sizes.

    The selectors "detail" and "local" compare `detail_scores` with the threshold, "random" `random_scores`, "learned"
    the probability of a `Selector`. The choice is a step function without a gradient, so the learned selector uses a
    straight-through estimator: each token is multiplied by 1 + (c − c.detach()), where c is the probability of the
    choices that led to it. The forward value is unchanged to the bit, and the gradient raises the probability of leaves
    whose token the loss wants larger.
    """

    def __init__(self, spec: parts.Adaptive, width: int, *, channels: int = 3) -> None:
        super().__init__()
        self.patches, self.threshold = spec.patches, spec.threshold
        self.by_pixels, self.local = spec.looks_at_pixels, spec.selector == "local"
        self.projections = nn.ModuleList(PatchEmbed(patch, width, channels=channels) for patch in spec.patches)
        self.selector = Selector(channels) if spec.selector == "learned" else None

    def forward(self, image: Tensor, inside: Tensor | None = None) -> tuple[Tensor, Layout]:
        """(B, C, H, W) → (B, N, D); `inside` (B, h, w) is true for cells of the image, false for padding."""
        return self.cut(image, self.scores(image, inside), inside)

    def cut(self, image: Tensor, scores: list[Tensor], inside: Tensor | None = None) -> tuple[Tensor, Layout]:
        """As `forward`, for `scores` that are known."""
        grid = fit(fit(Size(*image.shape[2:]), self.patches[-1]).fitted, self.patches[0]).grid
        leaves = leaves_of(scores, self.threshold, inside)
        slots, counts = _slots(leaves, grid)

        tokens, rectangles, places = [], [], []
        for level, (leaf, projection) in enumerate(zip(leaves, self.projections, strict=True)):
            assert isinstance(projection, PatchEmbed)
            batch, row, column = leaf.nonzero(as_tuple=True)  # (n,) each
            pixels = _cells(image, projection.patch)[batch, row, column].flatten(1)  # (n, C·P·Q)
            tokens.append(F.linear(pixels, projection.weight.flatten(1), projection.bias))  # (n, D)
            rectangles.append(_rectangles(torch.stack([row, column], dim=1), level))
            places.append((batch, slots[batch, row * 2**level, column * 2**level]))
        if self.selector is not None:
            chances = _chances(scores, leaves)
            tokens = [t * (1 + (c - c.detach())).unsqueeze(1) for t, c in zip(tokens, chances, strict=True)]

        batch, slot = (torch.cat(part) for part in zip(*places, strict=True))
        size = (len(image), int(counts.max()))
        sequence = tokens[0].new_zeros(*size, tokens[0].shape[1]).index_put((batch, slot), torch.cat(tokens))
        # padding tokens get a rectangle of one cell, so that averages over it stay finite
        corners = slots.new_tensor([0, 0, 1, 1]).repeat(*size, 1).index_put((batch, slot), torch.cat(rectangles))
        return sequence, Layout(grid=grid, frame=grid, mask=_mask(counts, size[1]), rectangles=corners)

    def scores(self, image: Tensor, inside: Tensor | None = None) -> list[Tensor]:
        """Return the scores that decide whether a cell splits: (B, rows, columns) per patch size but the finest."""
        fit(Size(*image.shape[2:]), self.patches[-1])  # refuses a size that the coarsest patch does not divide
        if self.by_pixels:
            return detail_scores(image, self.patches, inside, local=self.local)
        grids = [fit(Size(*image.shape[2:]), patch).grid for patch in self.patches[1:]]
        if self.selector is None:
            return [scores.expand(len(image), -1, -1) for scores in random_scores(grids, image.device)]
        return [self.selector(image, grid) for grid in grids]

    def counts(self, scores: list[Tensor]) -> Tensor:
        """Return the number of patches of every image, (B,), from its scores."""
        leaves = leaves_of(scores, self.threshold)
        return torch.stack([leaf.sum((1, 2)) for leaf in leaves]).sum(0)

    def token_share(self, image: Tensor) -> Tensor:
        """Return the tokens' share of the finest grid, over the batch, with the gradient of its expected value.

        Splits have no gradient; their probabilities have one, and so has the number of tokens that they lead to expect.
        """
        scores = self.scores(image)
        leaves = leaves_of(scores, self.threshold)
        expected, reached = scores[-1].new_zeros(()), torch.ones_like(scores[-1])
        for score in reversed(scores):
            expected = expected + (reached * (1 - score)).sum()
            reached = _double(reached * score)
        expected = expected + reached.sum()
        kept = torch.stack([leaf.sum() for leaf in leaves]).sum()
        return (kept + (expected - expected.detach())) / leaves[0].numel()


class Selector(nn.Module):
    """Predict the probability that a cell should split, from its pixels averaged to 8×8, by two convolutions.

    Strides equal kernel sizes, so only a cell's own pixels count; all patch sizes share the weights.
    """

    side = 8

    def __init__(self, channels: int, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, kernel_size=4, stride=4)
        self.conv2 = nn.Conv2d(width, 1, kernel_size=2, stride=2)
        initialise(self.conv1.weight.data, followed_by="relu")
        initialise(self.conv2.weight.data, followed_by="linear")
        for conv in (self.conv1, self.conv2):
            nn.init.zeros_(conv.bias)  # type: ignore[arg-type]

    def forward(self, image: Tensor, grid: Size) -> Tensor:
        x = F.adaptive_avg_pool2d(image, (self.side * grid.height, self.side * grid.width))
        x = F.relu(self.conv1(x))  # (B, 16, 2·rows, 2·columns)
        return self.conv2(x).squeeze(1).sigmoid()  # (B, rows, columns)


def detail_scores(
    image: Tensor, patches: Sequence[Size], inside: Tensor | None = None, *, local: bool = False
) -> list[Tensor]:
    """Return the standard deviation of each cell's pixels, relative to that of the whole image; with `local`, to the
    root mean square over its coarsest cells, so that a texture is not flat because another part is much brighter.

    One list entry, (B, rows, columns), per patch size but the finest. All channels count together. Adding a constant
    per channel or scaling the image changes nothing, so bytes, [0, 1] and normalised pixels give the same splits. A
    uniform image scores 0 everywhere.
    """
    pixels = image.to(torch.promote_types(image.dtype, torch.float32))
    return cell_scores(_cells(pixels, patches[0]), len(patches), inside, local=local)


def cell_scores(cells: Tensor, sizes: int, inside: Tensor | None = None, *, local: bool = False) -> list[Tensor]:
    """Return the `detail_scores` of an image that is cut into its finest cells, (B, h, w, C, P, Q)."""
    mean, variance = cells.mean((-2, -1)), cells.var((-2, -1), correction=0)  # (B, h, w, C)
    variances = []
    for _ in range(sizes - 1):
        mean, variance = _merge(mean, variance)
        variances.append(variance.sum(-1))

    weight = _within(variances[-1], inside).unsqueeze(-1).to(mean.dtype)
    weight = weight / weight.sum((1, 2), keepdim=True)
    centre = (weight * mean).sum((1, 2), keepdim=True)
    whole = (weight * (variance if local else variance + (mean - centre).square())).sum((1, 2, 3))  # (B,)
    # rounding gives a uniform image a tiny variance: deviations below 100 ulp of the pixels count as zero
    ulp, tiny = torch.finfo(mean.dtype).eps, torch.finfo(mean.dtype).tiny
    rounding = (100 * ulp) ** 2 * centre.square().sum((1, 2, 3))
    whole = torch.maximum(whole, rounding).clamp_min(tiny)[:, None, None]
    return [(variance / whole).sqrt() for variance in variances]


def random_scores(grids: Sequence[Size], device: torch.device | None = None) -> list[Tensor]:
    """Return a number of [0, 1) for every cell, a hash of its place: (1, rows, columns) per grid."""
    found = []
    for level, grid in enumerate(grids):
        rows, columns = (torch.arange(side, dtype=torch.float64, device=device) for side in grid)
        places = 12.9898 * rows[:, None] + 78.233 * columns + 37.719 * (level + 1)
        found.append((places.sin() * 43758.5453).frac().abs().float().unsqueeze(0))
    return found


def quadtree(scores: Sequence[Tensor], threshold: float) -> Layout:
    """Return the leaves of one image, from its scores (1, rows, columns) alone, without projecting anything."""
    require(len(scores[0]) == 1, f"scores has {len(scores[0])} images, and a quadtree takes one; give those of one")
    leaves = leaves_of(scores, threshold)
    grid = Size(*leaves[0].shape[1:])
    corners = torch.cat([_rectangles(leaf[0].nonzero(), level) for level, leaf in enumerate(leaves)])
    order = (corners[:, 0] * grid.width + corners[:, 1]).argsort()
    return Layout(grid=grid, frame=grid, rectangles=corners[order].unsqueeze(0))


def to_dense(tokens: Tensor, layout: Layout) -> Tensor:
    """Patch tokens (B, N, D), without the prefix → (B, D, h, w): each token fills its rectangle of the grid.

    Those of a clip become (B, steps, D, h, w).
    """
    height, width = layout.grid
    if layout.steps > 1:
        return tokens.unflatten(1, (layout.steps, -1)).mT.unflatten(3, (height, width))
    if layout.rectangles is None:
        return tokens.mT.unflatten(2, (height, width))
    batch, count = tokens.shape[:2]
    numbers = torch.arange(1, count + 1, device=tokens.device).expand(batch, count)
    if layout.patch_mask is not None:
        numbers = numbers * layout.patch_mask
    top, left, rows, columns = layout.rectangles.unbind(-1)  # (B, N) each
    # add each token's number at its first corner and subtract it past its edges: cumulative sums then fill rectangles
    steps = numbers.new_zeros(batch, (height + 1) * (width + 1))
    for row, column, number in (
        (top, left, numbers),
        (top + rows, left, -numbers),
        (top, left + columns, -numbers),
        (top + rows, left + columns, numbers),
    ):
        steps.scatter_add_(1, row * (width + 1) + column, number)
    owner = steps.view(batch, height + 1, width + 1).cumsum(1).cumsum(2)[:, :height, :width]  # (B, h, w)
    tokens = F.pad(tokens, (0, 0, 1, 0))  # cells without a token, beyond a padded image's edge, become zeros
    dense = tokens.gather(1, owner.flatten(1).unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))  # (B, h·w, D)
    return dense.mT.unflatten(2, (height, width))


@dataclass(frozen=True)
class TokensSaved:
    """The tokens of adaptive patches, compared with the finest regular grid."""

    kept: tuple[int, ...]
    """Patch tokens per image."""
    finest: int
    """Patch tokens of the finest regular grid."""

    @property
    def share(self) -> float:
        """The share of tokens saved over all images, 0 … 1."""
        return 1 - sum(self.kept) / (len(self.kept) * self.finest)

    def __str__(self) -> str:
        kept = ", ".join(f"{count:,}" for count in self.kept)
        return f"{kept} of {self.finest:,} tokens kept: {self.share:.1%} saved"


def tokens_saved(layout: Layout) -> TokensSaved:
    """Compare the patch tokens of a batch with its finest grid."""
    if layout.rectangles is None:
        raise VitrailError(f"a regular grid {layout.grid} saves no tokens; pass the layout that AdaptiveEmbed returned")
    batch, most = layout.rectangles.shape[:2]
    kept = [most] * batch if layout.patch_mask is None else layout.patch_mask.sum(1).tolist()
    return TokensSaved(kept=tuple(kept), finest=layout.grid.area)


# ── the tree ────────────────────────────────────────────────────────────────────────────────────────────────────


def _within(coarsest: Tensor, inside: Tensor | None) -> Tensor:
    """(B, rows, columns) of the coarsest cells: true if the image, which is at the top left, overlaps the cell."""
    if inside is None:
        return torch.ones_like(coarsest, dtype=torch.bool)
    return inside[:, :: inside.shape[1] // coarsest.shape[1], :: inside.shape[2] // coarsest.shape[2]]


def leaves_of(scores: Sequence[Tensor], threshold: float | Tensor, inside: Tensor | None = None) -> list[Tensor]:
    """Return, per patch size, finest first: (B, rows, columns), true if a cell of that size is a leaf."""
    leaves, active = [], _within(scores[-1], inside)
    for score in reversed(scores):
        split = active & (score >= threshold)
        leaves.append(active & ~split)
        active = _double(split)
    return [active, *reversed(leaves)]


def _chances(scores: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    """Per patch size, finest first: (n,) probabilities of the choices that led to each leaf, in the leaves' order."""
    reached = torch.ones_like(scores[-1])
    chances = []
    for score, leaf in zip(reversed(scores), reversed(leaves[1:]), strict=True):
        chances.append((reached * (1 - score))[leaf])
        reached = _double(reached * score)
    return [reached[leaves[0]], *reversed(chances)]


def _slots(leaves: list[Tensor], grid: Size) -> tuple[Tensor, Tensor]:
    """(B, h, w), the sequence index of the leaf whose top left cell this is, and (B,), the leaves per image."""
    corners = torch.zeros(len(leaves[0]), *grid, dtype=torch.long, device=leaves[0].device)
    for level, leaf in enumerate(leaves):
        corners[:, :: 2**level, :: 2**level] += leaf
    order = corners.flatten(1).cumsum(1)
    return order.sub(1).view_as(corners), order[:, -1]


def _rectangles(places: Tensor, level: int) -> Tensor:
    """(n, 2), rows and columns of one patch size → (n, 4), top, left, height, width in cells of the finest grid."""
    return torch.cat([places * 2**level, torch.full_like(places, 2**level)], dim=1)


def _mask(counts: Tensor, most: int) -> Tensor | None:
    """(B, N), true for tokens that are not padding; None if there is no padding."""
    mask = torch.arange(most, device=counts.device) < counts.unsqueeze(1)
    return None if bool(mask.all()) else mask


def _cells(image: Tensor, patch: Size) -> Tensor:
    """(B, C, H, W) → (B, rows, columns, C, P, Q), a view."""
    rows, columns = image.shape[2] // patch.height, image.shape[3] // patch.width
    cells = image.unflatten(3, (columns, patch.width)).unflatten(2, (rows, patch.height))
    return cells.permute(0, 2, 4, 1, 3, 5)


def _merge(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Statistics of cells (B, rows, columns, C) → those of cells twice as large: variance within plus between."""
    mean, variance = (x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)) for x in (mean, variance))
    return mean.mean((2, 4)), variance.mean((2, 4)) + mean.var((2, 4), correction=0)


def _double(x: Tensor) -> Tensor:
    """(B, rows, columns) → (B, 2·rows, 2·columns), every cell repeated four times."""
    return x.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)
