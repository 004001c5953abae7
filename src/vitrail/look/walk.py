"""Record every intermediate tensor of one image on its way through a ViT, from pixels to logits.

    walk = walk_through(model, image, block=0)
    walk.block.step(token=12, head=1).products.sum()  # q·k of one pair, to be divided by √d

Everything comes from ordinary forward passes of the model.

Shapes: C channels, H×W pixels, P×Q patch, N patches, T tokens, D width, h heads, d = D/h, m mlp_width, L blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.charts.notebook import Brief
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.look.record import Recording, record
from vitrail.look.weights import attention_rows, bias_of
from vitrail.nn.attention import Attention, FullMix, Mix, within
from vitrail.nn.intermediates import layer_index
from vitrail.nn.layout import Layout
from vitrail.nn.patches import PatchEmbed, cut_patches
from vitrail.nn.query_bias import Bias
from vitrail.nn.remainder import fit_pixels
from vitrail.nn.rotary import Rotation
from vitrail.nn.vit import ViT
from vitrail.nn.windowed_attention import Padding

__all__ = ["BlockWalk", "Rows", "Step", "Walk", "walk_through"]

SAME = 1e-5
"""Weights this near are equal but for rounding."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Rows(Brief):
    """The rows of attention of Q queries, in every head."""

    scores: Tensor
    """(h, Q, T): q·k / √d, plus the relative bias if there is one."""
    bias: Tensor | None
    """(h, Q, T): the relative bias in the scores."""
    weights: Tensor
    """(h, Q, T)"""
    is_softmax: Tensor
    """(h, Q): whether the weights are the softmax of these scores over all tokens that the query attends to."""
    mixed: Tensor
    """(h, Q, d): the weighted sums of values, including padding that takes part."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Step(Brief):
    """One token's row of attention in one head, and one of its query-key pairs in detail."""

    q: Tensor
    """(d,): the query, after any rotation."""
    k: Tensor
    """(d,): the key of the pair, after any rotation."""
    products: Tensor
    """(d,): elementwise q · k, whose sum is the dot product."""
    scores: Tensor
    """(T,): q·k / √d, plus the relative bias if there is one."""
    bias: float
    """The relative bias in the pair's score."""
    weights: Tensor
    """(T,): the row of attention weights."""
    is_softmax: bool
    """Whether the weights are the softmax of these scores over all tokens that the query attends to."""
    mixed: Tensor
    """(d,): the weighted sum of values, including padding that takes part."""


@dataclass(frozen=True, kw_only=True, repr=False)
class BlockWalk(Brief):
    """The intermediate tensors of one block."""

    entering: Tensor
    """(T, D)"""
    normed: Tensor
    """(T, D): the input of attention."""
    q: Tensor
    """(h, T, d), like k: after norms and rotation."""
    k: Tensor
    v: Tensor
    added: Tensor
    """(T, D): what attention adds, including LayerScale."""
    between: Tensor
    """(T, D)"""
    normed_again: Tensor
    """(T, D): the input of the MLP."""
    hidden: Tensor
    """(T, m): the hidden layer of the MLP, after its activation."""
    fed: Tensor
    """(T, D): what the MLP adds, including LayerScale."""
    leaving: Tensor
    """(T, D)"""
    mix: Mix
    bias: Bias | None
    padding: Padding | None
    """Key and value of the zero tokens that pad windows, if padding takes part in attention."""
    layout: Layout

    def rows(self, queries: Tensor) -> Rows:
        """Return the rows of some tokens, given by their indices (Q,)."""
        q, k = self.q[None], self.k[None]
        weights = attention_rows(self.mix, q, k, self.bias, self.layout, queries, padding=self.padding)[0]
        scores = (self.q[:, queries] @ self.k.mT) / math.sqrt(self.q.shape[-1])
        # the bias of a window covers the window, not the whole sequence
        bias = None
        if self.bias is not None and isinstance(self.mix, FullMix):
            bias = bias_of(self.bias, queries).expand_as(scores[None])[0]
            scores = scores + bias
        mixed = weights @ self.v
        if self.padding is not None:  # its weight is 1 minus the sum of the row
            mixed = mixed + (1 - weights.sum(dim=-1, keepdim=True)) * self.padding[1][0, :, :1]
        softmax = scores.masked_fill(weights == 0, -math.inf).softmax(dim=-1)
        return Rows(
            scores=scores,
            bias=bias,
            weights=weights,
            is_softmax=((softmax - weights).abs() <= SAME).all(dim=-1),
            mixed=mixed,
        )

    def step(self, token: int, head: int, key: int | None = None) -> Step:
        """Return one token's row in one head; `key` defaults to the token that it attends to most."""
        rows = self.rows(torch.tensor([token]))
        weights = rows.weights[head, 0]
        key = int(weights.argmax()) if key is None else key
        q, k = self.q[head, token], self.k[head, key]
        return Step(
            q=q,
            k=k,
            products=q * k,
            scores=rows.scores[head, 0],
            bias=0.0 if rows.bias is None else rows.bias[head, 0, key].item(),
            weights=weights,
            is_softmax=bool(rows.is_softmax[head, 0]),
            mixed=rows.mixed[head, 0],
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Walk(Brief):
    """The tensors of every stage, without the batch dimension."""

    pixels: Tensor
    """(C, H, W), normalised and fitted to whole patches."""
    patches: Tensor
    """(N, C, P, Q)"""
    projection: Tensor
    """(D, C, P, Q): the weights."""
    projection_bias: Tensor
    """(D,): zeros if there is no bias."""
    projected: Tensor
    """(N, D)"""
    prefixed: Tensor
    """(T, D)"""
    positions: Tensor
    """(T, D): added to the tokens; zeros if positions act inside attention."""
    tokens: Tensor
    """(L + 1, T, D): the input of the first block, and the output of each block."""
    block: BlockWalk
    pooled: Tensor
    """(D,): the input of the head; for a distilled model, its CLS token."""
    head: Tensor | None
    """(classes, D): the head's weights."""
    head_bias: Tensor | None
    logits: Tensor
    """(classes,)"""
    lens: Tensor
    """(L + 1, classes): the logits of the norm, pool and head applied to each entry of `tokens` (a logit lens)."""
    layout: Layout


@torch.no_grad()
def walk_through(model: nn.Module, image: Tensor, *, block: int = 0, recording: Recording | None = None) -> Walk:
    """Record one image (1, C, H, W) on its way through the model, with the details of one block.

    A `recording` of the model on this image saves the forward pass: only the block runs again.
    """
    if not isinstance(model, ViT) or not isinstance(model.embedding, PatchEmbed):
        raise VitrailError(
            f"{type(model).__name__} with {type(getattr(model, 'embedding', model)).__name__} has no single patch "
            "projection, which a walk needs; use a ViT with plain patches"
        )
    require(
        model.config.block_norm == "before",
        "a walk follows tokens that are normalised before attention, and this model's are after; use another model",
    )
    at = layer_index(block, len(model.blocks))
    chosen: Any = model.blocks[at]
    attention: Attention = chosen.attention
    recording = recording or record(model, image)
    inside = [chosen.norm1, attention, chosen.norm2, chosen.mlp.fc2]
    with _recording([model.embedding, model.prefix]) as front:
        embedded, layout = model.embed(image)
    entering = embedded if model.embedding_norm is None else model.embedding_norm(embedded)
    stages, shared = [entering, *(tokens for tokens, _ in recording.blocks)], within(model.position, layout, entering)
    with _recording(inside) as recorded:
        chosen(stages[at], layout, shared)
    pixels = fit_pixels(image, model.config.fit(Size(*image.shape[2:])))
    patch, weight = model.embedding.patch, model.embedding.weight.detach()
    q, k, v, bias = _mix_inputs(attention, recorded[attention][0][0], layout, shared)
    between = recorded[chosen.norm2][0][0]
    pooled = model.pooled(*recording.features)
    return Walk(
        pixels=pixels[0],
        patches=cut_patches(pixels, patch, model.embedding.stride)[0].unflatten(1, weight.shape[1:]),
        projection=weight,
        projection_bias=weight.new_zeros(len(weight))
        if model.embedding.bias is None
        else model.embedding.bias.detach(),
        projected=front[model.embedding][1][0][0],
        prefixed=front[model.prefix][1][0][0],
        positions=(embedded - front[model.prefix][1][0])[0],
        tokens=torch.cat(stages),
        block=BlockWalk(
            entering=stages[at][0],
            normed=recorded[chosen.norm1][1][0],
            q=q[0],
            k=k[0],
            v=v[0],
            added=(between - stages[at])[0],
            between=between[0],
            normed_again=recorded[chosen.norm2][1][0],
            hidden=recorded[chosen.mlp.fc2][0][0][0],
            fed=(stages[at + 1] - between)[0],
            leaving=stages[at + 1][0],
            mix=attention.mix,
            bias=bias,
            padding=attention.padding(layout),
            layout=layout,
        ),
        pooled=pooled[0] if pooled.ndim == 2 else pooled[0, 0],
        head=None if model.head is None else model.head.weight.detach(),
        head_bias=None if model.head is None or model.head.bias is None else model.head.bias.detach(),
        logits=recording.output[0],
        lens=torch.cat([model.classify(model.pooled(model.normed(stage, layout), layout)) for stage in stages]),
        layout=layout,
    )


Recorded = dict[nn.Module, tuple[tuple[Any, ...], Any]]


@contextmanager
def _recording(modules: list[nn.Module]) -> Iterator[Recorded]:
    """Record the arguments and output of each module while the `with` block runs the model."""
    recorded: Recorded = {}

    def keep(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        recorded[module] = (arguments, output)

    hooks = [module.register_forward_hook(keep) for module in modules]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def _mix_inputs(attention: Attention, x: Tensor, layout: Layout, shared: Rotation | Tensor | None):
    """Return q, k, v and bias as the mix gets them."""
    q, k, v = attention.heads(x)
    q, k, bias = attention.placed(q, k, layout, shared)
    return q, k, v, bias
