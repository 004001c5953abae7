"""The statistics of a layer's heads from chunks of its rows, so that the whole map is never in memory.

Shapes: B images, h heads, T tokens, N patches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitrail.charts.notebook import Brief
from vitrail.look.attention_map import AttentionMap
from vitrail.look.heads import mean_over_queries, row_distance, row_entropy, uniform_attention

__all__ = ["HeadStatistics", "head_statistics"]


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadStatistics(Brief):
    """One layer: what `attention_distance`, `head_entropy` and `fuse_heads` return for its whole map."""

    distance: Tensor
    """(B, h)"""
    entropy: Tensor
    """(B, h)"""
    even_distance: float
    even_entropy: float
    """Distance and entropy of a head with equal weights."""
    fused: AttentionMap
    """The mean over heads, (B, 1, T, T)."""


@torch.no_grad()
def head_statistics(chunks: Iterable[AttentionMap], distances: Tensor) -> HeadStatistics:
    """Reduce the rows of all queries, as `AttentionInputs.chunks` yields them; `distances` are `patch_distances`."""
    rows, even, done = [], [], 0
    fused, chunk = torch.empty(0), None
    for chunk in chunks:
        batch, _, count, tokens = chunk.weights.shape
        if done == 0:
            fused = chunk.weights.new_empty(batch, 1, tokens, tokens)
        torch.mean(chunk.weights, dim=1, keepdim=True, out=fused[:, :, done : done + count])
        rows.append((row_distance(chunk, distances), row_entropy(chunk)))
        if chunk.scores is None:  # some keys take no part
            uniform = uniform_attention(chunk)
            even.append((row_distance(uniform, distances), row_entropy(uniform)))
        done += count
    assert chunk is not None
    layout, queries = chunk.layout, torch.arange(done, device=fused.device)

    def mean(values: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        distance, entropy = (torch.cat(parts, dim=-1) for parts in zip(*values, strict=True))
        patches = queries[layout.prefix :]
        return mean_over_queries(distance, patches, layout), mean_over_queries(entropy, queries, layout)

    distance, entropy = mean(rows)
    uniform = [each[0].item() for each in mean(even)] if even else [distances.mean().item(), math.log2(done)]
    return HeadStatistics(
        distance=distance,
        entropy=entropy,
        even_distance=uniform[0],
        even_entropy=uniform[1],
        fused=replace(chunk, weights=fused, queries=queries, scores=None),
    )
