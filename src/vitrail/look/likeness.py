"""Why two images are alike: the cosine of their vectors, split over their patches so that the parts add up to it.

A vector that is a sum over tokens, a = Σ aᵢ, makes the cosine a sum over pairs of tokens:

    cos(a, b) = Σᵢ Σⱼ aᵢ·bⱼ / (|a| |b|)

A patch of the first image has the part Σⱼ aᵢ·bⱼ / (|a| |b|). This is exact for mean pooling: aᵢ is the token divided by
the number of patches. The norm of a pooled vector is affine, so that it is exact there too.

Shapes: T tokens of which the last N (or M) are patches, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.charts.notebook import Brief
from vitrail.config import MobileConfig
from vitrail.look.record import Recording
from vitrail.nn.layout import Layout
from vitrail.nn.norm import Norm
from vitrail.nn.pool import one_vector
from vitrail.nn.vit import ViT
from vitrail.parts import AttentionPool, ClsMeanPool, ClsPool, MaxPool, MeanPool, Pool

__all__ = ["Likeness", "likeness", "split_cosine", "token_shares"]

EXACT = (MeanPool, ClsMeanPool)
INSTEAD = "which is no sum over patches; the parts are those of the mean patch tokens' cosine instead"
APPROXIMATION = {
    ClsPool: f"the model's vector is its CLS token, {INSTEAD}",
    MaxPool: f"the model's vector is the maximum of its patches, {INSTEAD}",
    AttentionPool: f"the model's vector comes from attention pooling and an MLP, {INSTEAD}",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Likeness(Brief):
    """The cosine of two images, and the part that each patch has in it.

    >>> from vitrail import load, synthesize_image
    >>> from vitrail.look import likeness, record
    >>> checkpoint = load("default")
    >>> first, second = (record(checkpoint.model(), checkpoint.transform(synthesize_image(seed))) for seed in (1, 2))
    >>> alike = likeness(first, second)
    >>> abs(alike.first.sum().item() + alike.prefix - alike.score) < 1e-6
    True
    """

    score: float
    """What the parts add up to: `vectors`, or the cosine of the mean patch tokens if the model pools otherwise."""
    first: Tensor
    """(N,): the parts of the first image's patches; with `prefix`, they add up to `score`."""
    second: Tensor
    """(M,): the parts of the second image's patches; with `prefix`, they add up to `score`."""
    prefix: float
    """The part of the CLS tokens, if the pool reads them beside the patches; otherwise 0."""
    vectors: float
    """The cosine of the model's own vectors, which `vitrail search` compares."""
    approximation: str
    """Why `score` is not `vectors`; empty if it is."""


@torch.no_grad()
def likeness(first: Recording, second: Recording) -> Likeness:
    """Split the cosine of two images, which may have different sizes, over their patches.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import likeness, record
    >>> model = load("default").model()
    >>> recording = record(model, torch.randn(1, 3, 32, 32))
    >>> round(likeness(recording, recording).score, 6)
    1.0
    """
    a, b = token_shares(first), token_shares(second)
    score, parts_a, parts_b = split_cosine(a, b)
    prefix = first.features[1].prefix
    own = [one_vector(each.model.pooled(*each.features))[0].double() for each in (first, second)]
    pool = _pool(first)
    return Likeness(
        score=score.item(),
        first=parts_a[prefix:],
        second=parts_b[prefix:],
        prefix=parts_a[:prefix].sum().item(),
        vectors=F.cosine_similarity(own[0], own[1], dim=0).item(),
        approximation="" if isinstance(pool, EXACT) else APPROXIMATION[type(pool)],
    )


def split_cosine(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(T, D) and (S, D) → the cosine of their sums, and what every row of each adds to it: (T,) and (S,)."""
    whole_a, whole_b = a.sum(dim=0), b.sum(dim=0)  # (D,)
    lengths = (whole_a.norm() * whole_b.norm()).clamp_min(torch.finfo(a.dtype).tiny)
    return whole_a @ whole_b / lengths, a @ whole_b / lengths, b @ whole_a / lengths


@torch.no_grad()
def token_shares(recording: Recording) -> Tensor:
    """Return (T, D), float64: a vector per token. They add up to the pooled vector, or to the mean patch token."""
    tokens, layout = recording.features
    shares = _mean_shares(tokens[0].double(), layout)
    if isinstance(_pool(recording), ClsMeanPool):
        cls = torch.zeros_like(shares)
        cls[0] = tokens[0, 0].double()
        return torch.cat([cls, shares], dim=1)
    if isinstance(recording.model, ViT) and recording.model.config.final_norm == "pooled":
        assert recording.model.norm is not None
        return _normed_shares(shares, recording.model.norm)
    return shares


def _pool(recording: Recording) -> Pool:
    config = recording.model.config
    return MeanPool() if isinstance(config, MobileConfig) else config.pool


def _mean_shares(tokens: Tensor, layout: Layout) -> Tensor:
    """(T, D) → (T, D): what each token adds to the mean of the patches; nothing for the prefix and for padding."""
    counts = torch.ones(len(tokens), 1, dtype=tokens.dtype)
    if layout.mask is not None:
        counts = layout.mask[0, :, None].to(tokens)
    counts[: layout.prefix] = 0
    return tokens * (counts / counts.sum())


def _normed_shares(shares: Tensor, norm: Norm) -> Tensor:
    """Carry shares of a vector through its norm: (x − mean) / std · weight + bias is affine once std is known."""
    if isinstance(norm, nn.LayerNorm):
        shares = shares - shares.mean(dim=1, keepdim=True)
    eps = torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps
    normed = shares * (shares.sum(dim=0).square().mean() + eps).rsqrt() * norm.weight.double()
    if not isinstance(norm, nn.LayerNorm):
        return normed
    given = shares.abs().sum(dim=1, keepdim=True) > 0
    return normed + norm.bias.double() * (given / given.sum())
