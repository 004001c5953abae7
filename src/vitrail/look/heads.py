"""Statistics of attention heads: mean attention distance and entropy.

Shapes: B images, h heads, Q queries of which q are patches, N patches.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.look.capture import AttentionMap
from vitrail.look.cells import Spacing

__all__ = ["attention_distance", "head_entropy", "uniform_attention"]


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
    layout = attention.layout
    is_patch = attention.queries >= layout.prefix
    queries = attention.queries[is_patch] - layout.prefix
    weights = F.normalize(attention.patches[:, :, is_patch], p=1, dim=-1)  # (B, h, q, N)
    centres = layout.centres(weights.device).to(weights.dtype) * weights.new_tensor(tuple(step))
    if centres.ndim == 2:
        centres = centres[None]
    distances = torch.cdist(centres[:, queries], centres, compute_mode="donot_use_mm_for_euclid_dist")  # (B or 1, q, N)
    return _mean((weights * distances[:, None]).sum(dim=-1), replace(attention, queries=attention.queries[is_patch]))


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
    weights = attention.weights
    return _mean(-torch.special.xlogy(weights, weights).sum(dim=-1) / torch.log(weights.new_tensor(2.0)), attention)


def uniform_attention(attention: AttentionMap) -> AttentionMap:
    """Return the map of one uniform head: all keys that a query attends to get equal weight."""
    reach = (attention.weights[:, :1] > 0).to(attention.weights)
    return replace(attention, weights=reach / reach.sum(dim=-1, keepdim=True).clamp_min(1))


def _mean(values: Tensor, attention: AttentionMap) -> Tensor:
    """(B, h, Q) → (B, h): the mean over queries that are not padding."""
    if attention.layout.mask is None:
        return values.mean(dim=-1)
    real = attention.layout.mask[:, None, attention.queries].to(values.dtype)
    return (values * real).sum(dim=-1) / real.sum(dim=-1)
