"""Attention rollout, which multiplies attention through all layers (Abnar and Zuidema, arXiv 2005.00928).

Shapes: B images, h heads, T tokens, of which the last N are patches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from vitrail.errors import require
from vitrail.look.attention_map import AttentionMap

__all__ = ["Fusion", "fuse_heads", "rollout"]

Fusion = Literal["mean", "max", "min"]


def fuse_heads(attention: AttentionMap, fusion: Fusion = "mean") -> AttentionMap:
    """Return the map with its heads fused into one: their mean, largest or smallest weight.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import capture, fuse_heads
    >>> model = load("default").model()
    >>> with capture(model) as maps:
    ...     _ = model(torch.zeros(1, 3, 32, 32))
    >>> fuse_heads(maps[0], "max").weights.shape
    torch.Size([1, 1, 65, 65])
    """
    if attention.weights.shape[1] == 1 and fusion in ("mean", "max", "min"):  # no copy of what is fused already
        return replace(attention, scores=None)
    if fusion == "mean":
        return replace(attention, weights=attention.weights.mean(dim=1, keepdim=True), scores=None)
    require(fusion in ("max", "min"), f"fusion {fusion!r} is unknown; use mean, max or min")
    reduce = torch.amax if fusion == "max" else torch.amin
    return replace(attention, weights=reduce(attention.weights, dim=1, keepdim=True), scores=None)


def rollout(
    maps: Mapping[int, AttentionMap],
    *,
    fusion: Fusion = "mean",
    residual: float = 0.5,
    discard: float = 0.0,
    queries: Sequence[int] | None = None,
) -> Tensor:
    """Return (B, T, T): the share of each input token in each output token, if only attention mixed tokens.

    In every layer the heads are fused, the lowest share `discard` of each row's patch weights is dropped, the identity
    is mixed in with weight `residual` for the residual connection, and rows are scaled to sum to 1. The results are
    multiplied in order of the layers. With `queries`, only the rows of these output tokens are computed: (B, Q, T).

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import capture, rollout
    >>> model = load("default").model()
    >>> with capture(model) as maps:
    ...     _ = model(torch.zeros(1, 3, 32, 32))
    >>> rollout(maps).shape
    torch.Size([1, 65, 65])
    """
    require(0 <= residual < 1, f"residual {residual} is not at least 0 and below 1; use 0.5 as the paper does")
    require(0 <= discard < 1, f"discard {discard} is not at least 0 and below 1; use 0 to keep everything")
    layers = [maps[layer] for layer in sorted(maps)]
    require(len(layers) > 0, "rollout needs one or more layers, and maps is empty; run the model inside the capture")
    tokens = layers[0].weights.shape[-1]
    for attention in layers:
        require(
            attention.weights.shape[-1] == tokens,
            f"layer {attention.layer} has {attention.weights.shape[-1]} tokens and layer {layers[0].layer} {tokens}; "
            "rollout needs the same grid in every layer: capture the layers of one stage",
        )
        require(
            attention.queries.shape[0] == tokens and bool((attention.queries.diff() == 1).all()),
            f"layer {attention.layer} has rows for {attention.queries.shape[0]} of {tokens} tokens; rollout needs all: "
            "capture with queries='all'",
        )
    chosen = range(tokens) if queries is None else queries
    rolled = torch.eye(tokens).to(layers[0].weights)[None, list(chosen)]
    for attention in reversed(layers):
        fused = fuse_heads(attention, fusion).weights[:, 0]
        if discard:
            fused = _without_lowest(fused, discard, attention.layout.prefix)
        total = fused.sum(dim=-1)
        own = torch.where(
            total > 0, torch.full_like(total, residual), 1.0
        )  # a padding token attends to nothing and stays itself
        mixed = (1 - own) / total.clamp_min(torch.finfo(total.dtype).tiny)
        rolled = (rolled * mixed[:, None]) @ fused + rolled * own[:, None]
    return rolled


def _without_lowest(fused: Tensor, discard: float, prefix: int) -> Tensor:
    patches = fused[..., prefix:]
    count = int(discard * patches.shape[-1])
    lowest = patches.topk(count, largest=False).indices + prefix
    return fused.scatter(-1, lowest, 0.0)
