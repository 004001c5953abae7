"""Statistics of attention heads: mean attention distance and entropy.

Shapes: B images, h heads, Q queries of which q are patches, N patches.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from vitrail.look.attention_map import AttentionMap
from vitrail.look.cells import Spacing
from vitrail.nn.layout import Layout

__all__ = [
    "attention_distance",
    "head_entropy",
    "mean_over_queries",
    "patch_distances",
    "patch_queries",
    "row_distance",
    "row_entropy",
    "uniform_attention",
]


def attention_distance(attention: AttentionMap, step: Spacing = (1, 1)) -> Tensor:
    """Return (B, h): the mean distance from a patch to the patches it attends to, weighted by attention.

    The unit is patches, or pixels if `step` is a cell's (height, width). Prefix tokens have no position, so they are
    left out as queries and as keys; so is padding.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import attention_distance, capture
    >>> model = load("default").model()
    >>> with capture(model) as maps:
    ...     _ = model(torch.zeros(1, 3, 32, 32))
    >>> attention_distance(maps[0]).shape
    torch.Size([1, 4])
    """
    distances = patch_distances(attention.layout, attention.weights, step)
    return mean_over_queries(row_distance(attention, distances), patch_queries(attention), attention.layout)


def patch_distances(layout: Layout, like: Tensor, step: Spacing = (1, 1)) -> Tensor:
    """Return (B or 1, N, N): the distances between the centres of patches, with the dtype and device of `like`."""
    centres = layout.centres(like.device).to(like.dtype) * like.new_tensor(tuple(step))
    if centres.ndim == 2:
        centres = centres[None]
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")


def row_distance(attention: AttentionMap, distances: Tensor) -> Tensor:
    """Return (B, h, q): the mean distance of every query that is a patch, given `patch_distances`."""
    weights, prefix = attention.patches, attention.layout.prefix
    queries = attention.queries.tolist()
    if queries == list(range(queries[0], queries[-1] + 1)):  # views instead of copies
        weights = weights[:, :, max(0, prefix - queries[0]) :]
        distances = distances[:, max(0, queries[0] - prefix) : max(0, queries[-1] + 1 - prefix)]
    else:
        weights = weights[:, :, attention.queries >= prefix]
        distances = distances[:, patch_queries(attention) - prefix]
    total = weights.sum(dim=-1).clamp_min(1e-12)  # a row whose weights are all on the prefix has distance 0
    return torch.einsum("bhqn,bqn->bhq", weights, distances) / total


def patch_queries(attention: AttentionMap) -> Tensor:
    """Return the queries that are patches, (q,)."""
    return attention.queries[attention.queries >= attention.layout.prefix]


def head_entropy(attention: AttentionMap) -> Tensor:
    """Return (B, h): the mean entropy of a row, in bits; 2ᵇ equal weights have an entropy of b bits.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import capture, head_entropy
    >>> model = load("default").model()
    >>> with capture(model) as maps:
    ...     _ = model(torch.zeros(1, 3, 32, 32))
    >>> head_entropy(maps[0]).shape
    torch.Size([1, 4])
    """
    return mean_over_queries(row_entropy(attention), attention.queries, attention.layout)


def row_entropy(attention: AttentionMap) -> Tensor:
    """Return (B, h, Q): the entropy of every row, in bits."""
    weights, scores = attention.weights, attention.scores
    if scores is None:
        nats = -torch.special.xlogy(weights, weights).sum(dim=-1)
    else:  # log p = score − log Σ exp, and a row's largest weight gives the latter: no logarithm for every weight
        log_sum = scores.amax(dim=-1) - weights.amax(dim=-1).log()
        nats = log_sum - torch.einsum("bhqt,bhqt->bhq", weights, scores)
    return nats / math.log(2)


def uniform_attention(attention: AttentionMap) -> AttentionMap:
    """Return the map of one uniform head: all keys that a query attends to get equal weight."""
    reach = (attention.weights[:, :1] > 0).to(attention.weights)
    return replace(attention, weights=reach / reach.sum(dim=-1, keepdim=True).clamp_min(1), scores=None)


def mean_over_queries(values: Tensor, queries: Tensor, layout: Layout) -> Tensor:
    """(B, h, Q) → (B, h): the mean over queries that are not padding."""
    if layout.mask is None:
        return values.mean(dim=-1)
    real = layout.mask[:, None, queries].to(values.dtype)
    return (values * real).sum(dim=-1) / real.sum(dim=-1)
