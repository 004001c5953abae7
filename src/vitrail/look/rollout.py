"""Attention through all layers at once: attention rollout (Abnar and Zuidema, arXiv 2005.00928).

Shapes: B images, h heads, T tokens, of which the last N are patches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import require
from vitrail.look.capture import AttentionMap

__all__ = ["Fusion", "fuse_heads", "rollout"]

Fusion = Literal["mean", "max", "min"]


def fuse_heads(found: AttentionMap, fusion: Fusion = "mean") -> AttentionMap:
    """The same map with one head: the heads' mean, largest or smallest weight."""
    if fusion == "mean":
        return replace(found, weights=found.weights.mean(dim=1, keepdim=True))
    require(fusion in ("max", "min"), f"fusion {fusion!r} is unknown; use mean, max or min")
    reduce = torch.amax if fusion == "max" else torch.amin
    return replace(found, weights=reduce(found.weights, dim=1, keepdim=True))


def rollout(
    maps: Mapping[int, AttentionMap], *, fusion: Fusion = "mean", residual: float = 0.5, discard: float = 0.0
) -> Tensor:
    """(B, T, T): the share of each input token in each output token, if attention were all that moves them.

    In every layer the heads are fused, the lowest `discard` of each row's patch weights dropped, the identity mixed
    in with weight `residual`, for what goes past attention, and rows scaled to sum to 1. Layers multiply in order.
    """
    require(0 <= residual < 1, f"residual {residual} is outside 0 ≤ share < 1; use 0.5 as the paper does")
    require(0 <= discard < 1, f"discard {discard} is outside 0 ≤ share < 1; use 0 to keep everything")
    layers = [maps[layer] for layer in sorted(maps)]
    require(len(layers) > 0, "rollout of 0 layers; run the model inside the capture")
    tokens = layers[0].weights.shape[-1]
    for found in layers:
        require(
            found.weights.shape[-1] == tokens,
            f"layer {found.layer} has {found.weights.shape[-1]} tokens and layer {layers[0].layer} {tokens}; "
            "rollout needs one grid throughout: capture the layers of one stage",
        )
        require(
            found.queries.shape[0] == tokens and bool((found.queries.diff() == 1).all()),
            f"layer {found.layer} has the rows of {found.queries.shape[0]} of {tokens} tokens; rollout needs all: "
            "capture with queries='all'",
        )
    rolled = None
    for found in layers:
        fused = fuse_heads(found, fusion).weights[:, 0]
        if discard:
            fused = _without_lowest(fused, discard, found.layout.prefix)
        mixed = (1 - residual) * F.normalize(fused, p=1, dim=-1)
        mixed.diagonal(dim1=1, dim2=2).add_(residual)
        mixed = F.normalize(mixed, p=1, dim=-1)  # a padding token's row was zero
        rolled = mixed if rolled is None else mixed @ rolled
    assert rolled is not None
    return rolled


def _without_lowest(fused: Tensor, discard: float, prefix: int) -> Tensor:
    patches = fused[..., prefix:]
    count = int(discard * patches.shape[-1])
    lowest = patches.topk(count, largest=False).indices + prefix
    return fused.scatter(-1, lowest, 0.0)
