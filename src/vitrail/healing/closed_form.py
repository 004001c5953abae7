"""The first step of healing, without gradients: least squares from the images' own patches, in seconds.

The new projection is fitted to give the tokens that the original gives to the same parts of the images, the table of
positions to what is left of them on average, and the final norm's scale and shift to the original's output.

Shapes: B images, N patches, D width, X = C·P·Q values of a patch (and a one, for the bias).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.pixels import resize, with_channels
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import ViTConfig
from vitrail.data.source import Source
from vitrail.geometry import Size
from vitrail.healing.target import Target, at_view, same_grid
from vitrail.images.decode import ImageError
from vitrail.nn.patches import PatchEmbed, cut_patches
from vitrail.nn.positions import LearnedTable
from vitrail.nn.vit import ViT
from vitrail.training.augment import CROP_DRAWS, crop_box
from vitrail.training.random import uniform

__all__ = ["FITS", "Drawn", "fit_grey", "fit_norm", "fit_positions", "fit_projection", "ridge"]

PATCHES_PER_VALUE = 64
"""Patches that are seen for every value of a patch, where the images allow it."""
MOST_VIEWS = 512
MOST_VALUES = 8192
"""Above this, the equations of the projection would not fit into memory."""
RIDGE = (1e-6, 1e-4, 1e-2)
"""Strengths of the pull towards the resized projection, relative to the mean square of a pixel."""
SMALLEST_PART = 0.35
AT_ONCE = 4


class Drawn(NamedTuple):
    """Where fits take their random parts of images from."""

    source: Source
    own: Preprocessing
    seed: int

    def pairs(self, views: Preprocessing, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield `count` random parts of images, at most AT_ONCE at a time, for the model and for the original."""
        indices = np.arange(count) % len(self.source)
        draws = uniform(self.seed, np.arange(count) // len(self.source) + 1, indices, CROP_DRAWS)
        own, theirs = [], []
        for place, index in enumerate(indices):
            try:
                pixels, _ = self.source[int(index)]
            except ImageError:  # the pictures remember it, for the report
                continue
            top, left, height, width = crop_box(Size(*pixels.shape[:2]), SMALLEST_PART, draws[place])
            part = pixels[top : top + height, left : left + width]
            for steps, into in ((self.own, own), (views, theirs)):
                cut = with_channels(resize(part, steps.image), steps.channels)
                into.append(torch.from_numpy(np.ascontiguousarray(cut)).permute(2, 0, 1))
            if len(own) == AT_ONCE:
                yield self.own.normalise(torch.stack(own)), views.normalise(torch.stack(theirs))
                own, theirs = [], []
        if own:
            yield self.own.normalise(torch.stack(own)), views.normalise(torch.stack(theirs))


def ridge(squares: Tensor, products: Tensor, prior: Tensor, strength: float) -> Tensor:
    """Return the (X, D) that minimises |A w − y|² + λ |w − prior|², from AᵀA (X, X) and Aᵀy (X, D).

    λ is `strength` times the mean of AᵀA's diagonal.
    """
    pull = strength * squares.diagonal().mean().clamp_min(1e-12)  # of nothing, the prior
    eye = torch.eye(len(squares), dtype=squares.dtype)
    return prior + torch.linalg.solve(squares + pull * eye, products - squares @ prior)


# ── fits: each returns a changed checkpoint, or None if it does not apply ───────────────────────────────────────


@torch.no_grad()
def fit_grey(before: Checkpoint, after: Checkpoint, target: Target, drawn: Drawn) -> Checkpoint | None:
    """Let one channel give exactly what the original gives to a grey image: equal channels, each with its mean and std.

    Summed filters alone read them with one mean and std.
    """
    old, new = before.config, after.config
    assert isinstance(old, ViTConfig)
    assert isinstance(new, ViTConfig)
    weight, bias = before.tensors.get("embedding.weight"), before.tensors.get("embedding.bias")
    plain = weight is not None and bias is not None and weight.ndim == 4
    if not plain or old.channels != 3 or new.channels != 1 or old.embedding != new.embedding:
        return None
    assert weight is not None
    assert bias is not None
    mean, std = (
        torch.tensor(each, dtype=torch.float64) for each in (before.preprocessing.mean, before.preprocessing.std)
    )
    (one,), (scale,) = after.preprocessing.mean, after.preprocessing.std
    filters = weight.double() / std[:, None, None]  # (D, C, P, Q) of pixels in 0 … 1
    shift = (filters.sum((2, 3)) * (one - mean)).sum(1)  # (D,)
    return with_tensors(
        after,
        {"embedding.weight": scale * filters.sum(1, keepdim=True), "embedding.bias": bias.double() + shift},
    )


@torch.no_grad()
def fit_projection(before: Checkpoint, after: Checkpoint, target: Target, drawn: Drawn) -> Checkpoint | None:
    """Fit projection and bias to the original's patch embeddings of the same parts of images."""
    old, new = before.config, after.config
    assert isinstance(old, ViTConfig)
    assert isinstance(new, ViTConfig)
    if (old.patch, old.channels) == (new.patch, new.channels):
        return None
    original = at_view(before, same_grid(old, new))
    taught, own = (each.model(dtype=torch.float32).embedding for each in (original, after))
    values = new.channels * new.patch.area
    if not all(isinstance(each, PatchEmbed) and each.stride in (None, each.patch) for each in (taught, own)):
        return None
    assert isinstance(own, PatchEmbed)
    assert isinstance(taught, PatchEmbed)
    if values > MOST_VALUES:
        return None
    weight = own.weight.flatten(1).double().T  # (X, D)
    prior = weight if own.bias is None else torch.cat([weight, own.bias.double()[None]])
    squares, products, held = prior.new_zeros(len(prior), len(prior)), torch.zeros_like(prior), []
    count = min(MOST_VIEWS, -(-PATCHES_PER_VALUE * values // new.grid.area))
    for place, (images, views) in enumerate(drawn.pairs(original.preprocessing, count)):
        patches = cut_patches(images, new.patch).flatten(0, 1).double()  # (B·N, X)
        if own.bias is not None:
            patches = F.pad(patches, (0, 1), value=1.0)
        wanted = taught(views)[0].flatten(0, 1).double()  # (B·N, D)
        if place % 8 == 0:  # to choose the strength by
            held.append((patches, wanted))
        else:
            squares += patches.T @ patches
            products += patches.T @ wanted
    if not squares.any() or not held:
        return None
    fitted = min(
        (ridge(squares, products, prior, strength) for strength in RIDGE),
        key=lambda found: sum(float((patches @ found - wanted).square().sum()) for patches, wanted in held),
    )
    if not fitted.isfinite().all():
        return None
    tensors = {"embedding.weight": fitted[:values].T.unflatten(1, (new.channels, *new.patch))}
    if own.bias is not None:
        tensors["embedding.bias"] = fitted[values]
    return with_tensors(after, tensors)


@torch.no_grad()
def fit_positions(before: Checkpoint, after: Checkpoint, target: Target, drawn: Drawn) -> Checkpoint | None:
    """Add to the table of positions what the first block's input lacks on average, less what may be chance."""
    old, new = before.config, after.config
    assert isinstance(old, ViTConfig)
    assert isinstance(new, ViTConfig)
    own = after.model(dtype=torch.float32)
    if not isinstance(own, ViT) or not isinstance(own.position, LearnedTable):
        return None
    original = at_view(before, same_grid(old, new))
    taught = original.model(dtype=torch.float32)
    assert isinstance(taught, ViT)
    total = spread = torch.zeros(())
    seen = 0
    for images, views in drawn.pairs(original.preprocessing, 128):
        (given, layout), (wanted, frame) = own.embed(images), taught.embed(views)
        if layout.rectangles is not None:
            return None
        lacking = (wanted[:, frame.prefix :] - given[:, layout.prefix :]).double()  # (B, N, D)
        total, spread = total + lacking.sum(0), spread + lacking.square().sum(0)
        seen += len(images)
    if seen < 2:
        return None
    mean = total / seen  # (N, D)
    chance = ((spread / seen - mean.square()).clamp_min(0) / (seen - 1)).sum(1, keepdim=True)
    share = (1 - chance / mean.square().sum(1, keepdim=True).clamp_min(torch.finfo(mean.dtype).tiny)).clamp_min(0)
    if not share.any():
        return None
    table = own.position.table.double().clone()
    table[own.position.prefix_rows :] += share * mean
    return with_tensors(after, {"position.table": table})


@torch.no_grad()
def fit_norm(before: Checkpoint, after: Checkpoint, target: Target, drawn: Drawn) -> Checkpoint | None:
    """Fit the final norm's scale and shift, channel by channel, to the original's output."""
    own, taught = (each.model(dtype=torch.float32) for each in (after, target.original))
    assert isinstance(own, ViT)
    assert isinstance(taught, ViT)
    if own.config.final_norm != "tokens" or not target.token_by_token:
        return None
    if not isinstance(own.norm, nn.LayerNorm):  # an RMS norm has no shift
        return None
    sums = torch.zeros(5, own.config.width, dtype=torch.float64)
    for images, views in drawn.pairs(target.original.preprocessing, 64):
        (given, layout), (wanted, frame) = own.features(images), taught.features(views)
        if layout.rectangles is not None:
            return None
        pairs = [(given[:, layout.prefix :], wanted[:, frame.prefix :], 1.0)]
        if own.config.prefix.cls and taught.config.prefix.cls:  # one token that counts as much as all patches
            pairs.append((given[:, :1], wanted[:, :1], float(layout.grid.area)))
        for x, y, weight in pairs:
            x, y = (each.flatten(0, 1).double() for each in (x, y))
            sums += weight * torch.stack([torch.ones_like(x), x, y, x * x, x * y]).sum(1)
    count, x, y, xx, xy = sums
    if not count.all():
        return None
    variance = xx / count - (x / count).square()
    scale = torch.where(variance > 1e-12, (xy / count - x * y / count.square()) / variance.clamp_min(1e-12), 1.0)
    shift = (y - scale * x) / count
    weight, bias = own.norm.weight.double(), own.norm.bias.double()
    return with_tensors(after, {"norm.weight": scale * weight, "norm.bias": scale * bias + shift})


Fit = Callable[[Checkpoint, Checkpoint, Target, Drawn], Checkpoint | None]
FITS: dict[str, Fit] = {
    "one channel, as the original reads a grey image": fit_grey,
    "projection, by least squares": fit_projection,
    "positions, by least squares": fit_positions,
    "final norm, rescaled": fit_norm,
}
"""The fits, in the order in which they are tried."""


def with_tensors(checkpoint: Checkpoint, tensors: dict[str, Tensor]) -> Checkpoint:
    """Return the checkpoint with some tensors changed, in the dtypes that it has."""
    held = checkpoint.tensors
    changed = {name: tensor.to(held[name].dtype).contiguous().clone() for name, tensor in tensors.items()}
    return checkpoint.but(tensors={**held, **changed})
