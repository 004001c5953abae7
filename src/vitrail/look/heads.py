"""What kind of head it is: how far it looks, and how widely it spreads.

Shapes: B images, h heads, Q queries of which q are patches, N patches.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.look.capture import AttentionMap
from vitrail.look.cells import Step

__all__ = ["attention_distance", "evenly", "head_entropy"]


def attention_distance(found: AttentionMap, step: Step = (1, 1)) -> Tensor:
    """(B, h): the mean distance from a patch to the patches it attends to, weighted by attention.

    In patches; in pixels if `step` is a cell's (height, width). Prefix tokens lie nowhere: they neither ask nor count,
    and what goes to them is left out of a row's weights. Padding counts as little.
    """
    layout = found.layout
    asks = found.queries >= layout.prefix
    queries = found.queries[asks] - layout.prefix
    weights = F.normalize(found.patches[:, :, asks], p=1, dim=-1)  # (B, h, q, N)
    centres = layout.centres(weights.device).to(weights.dtype) * weights.new_tensor(tuple(step))
    if centres.ndim == 2:
        centres = centres[None]
    away = torch.cdist(centres[:, queries], centres, compute_mode="donot_use_mm_for_euclid_dist")  # (B or 1, q, N)
    return _mean((weights * away[:, None]).sum(dim=-1), replace(found, queries=found.queries[asks]))


def head_entropy(found: AttentionMap) -> Tensor:
    """(B, h): the mean entropy of a row, in bits: b bits spread as widely as 2ᵇ tokens of equal weight."""
    weights = found.weights
    return _mean(-torch.special.xlogy(weights, weights).sum(dim=-1) / torch.log(weights.new_tensor(2.0)), found)


def evenly(found: AttentionMap) -> AttentionMap:
    """The same rows with one head that has no preference: whatever it may meet weighs the same."""
    reach = (found.weights[:, :1] > 0).to(found.weights)
    return replace(found, weights=reach / reach.sum(dim=-1, keepdim=True).clamp_min(1))


def _mean(values: Tensor, found: AttentionMap) -> Tensor:
    """(B, h, Q) → (B, h), over the queries that are real."""
    if found.layout.mask is None:
        return values.mean(dim=-1)
    real = found.layout.mask[:, None, found.queries].to(values.dtype)
    return (values * real).sum(dim=-1) / real.sum(dim=-1)
