"""Compute chosen rows of the attention matrix from q and k, for any mix, fused or not.

Shapes: B images, h heads, T tokens of which p are the prefix and N patches, Q queries, d values per head, m patches
of a window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.nn.attention import FullMix, Mix
from vitrail.nn.layout import Layout
from vitrail.nn.linear_attention import LinearMix, feature_map
from vitrail.nn.query_bias import Bias, QueryBias
from vitrail.nn.sparse_attention import SparseMix
from vitrail.nn.windowed_attention import CutGrid, Padding, WindowedMix

__all__ = ["attention_chunks", "attention_rows", "bias_of"]

CHUNK_ELEMENTS = 1 << 22
"""Weights computed at a time, which keeps temporary memory near 16 MiB."""

Scores = Callable[[Tensor], tuple[Tensor | None, Tensor | None, Tensor | None]]
"""Queries (Q,) → their bias and a mask of the keys they attend to, each broadcastable to (B, h, Q, T) or None, and the
bias of the padding in their windows, (…, h or 1, Q, m), −∞ for slots without padding; None if padding takes no part."""


Chunk = tuple[slice, Tensor, Tensor | None]
"""Some of the queries, their weights (B, h, Q, T), and the scores before the softmax where every key takes part."""


def attention_rows(
    mix: Mix,
    q: Tensor,
    k: Tensor,
    bias: Bias | None,
    layout: Layout,
    queries: Tensor,
    *,
    padding: Padding | None = None,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Tensor:
    """Return (B, h, Q, T), in float32 or wider: the weights of every token for each of the `queries` (Q,).

    A row sums to 1 over the keys that it attends to and is zero elsewhere; the row of a padding token is zero. If
    windows are padded with zeros that take part, `padding` is the result of `Attention.padding`, and the weight of the
    padding is 1 minus the sum of the row.
    """
    batch, heads, tokens, _ = q.shape
    precise = torch.promote_types(q.dtype, torch.float32)
    rows = torch.empty(batch, heads, len(queries), tokens, dtype=precise, device=q.device)
    for part, weights, _ in attention_chunks(
        mix, q, k, bias, layout, queries, padding=padding, chunk_elements=chunk_elements
    ):
        rows[:, :, part] = weights
    return rows


def attention_chunks(
    mix: Mix,
    q: Tensor,
    k: Tensor,
    bias: Bias | None,
    layout: Layout,
    queries: Tensor,
    *,
    padding: Padding | None = None,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Iterator[Chunk]:
    """Yield `attention_rows` a few queries at a time, for what needs no whole map in memory.

    The next chunk may take the memory of this one: copy what is to be kept.
    """
    batch, heads, tokens, _ = q.shape
    precise = torch.promote_types(q.dtype, torch.float32)
    step = max(1, chunk_elements // (batch * heads * tokens))
    with torch.autocast(q.device.type, enabled=False):  # autocast would compute the scores in half precision
        q, k = q[:, :, queries].to(precise), k.to(precise)
        if isinstance(bias, QueryBias):
            bias = bias.each(lambda part: part.to(precise))
        elif bias is not None:
            bias = bias.to(precise)
        empty = None if padding is None else padding[0].to(precise)
        linear = isinstance(mix, LinearMix)
        one_chunk = _kernel(k, layout) if linear else _softmax(k, _scores(mix, bias, layout), empty)
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            weights, scores = one_chunk(q[:, :, part], queries[part])
            if layout.mask is not None:
                weights.mul_(layout.mask[:, None, queries[part], None])
            yield part, weights, scores


OneChunk = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]


def _kernel(k: Tensor, layout: Layout) -> OneChunk:
    keys = feature_map(k)
    if layout.mask is not None:
        keys = keys * layout.mask[:, None, :, None]

    def chunk(q: Tensor, queries: Tensor) -> tuple[Tensor, None]:
        return F.normalize(feature_map(q) @ keys.mT, p=1, dim=-1), None

    return chunk


def _softmax(k: Tensor, scores_of: Scores, empty: Tensor | None) -> OneChunk:
    memory: dict[str, Tensor] = {}
    # fresh memory for every chunk would cost a third of the time; neither autograd nor a tracer follows what is reused
    reuses = not k.requires_grad and not torch.jit.is_tracing()

    def reused(name: str, like: torch.Size) -> Tensor | None:
        if not reuses:
            return None
        if name not in memory or memory[name].numel() < like.numel():
            memory[name] = k.new_empty(like.numel())
        return memory[name][: like.numel()].view(like)

    def chunk(q: Tensor, queries: Tensor) -> tuple[Tensor, Tensor | None]:
        bias, allowed, of_padding = scores_of(queries)
        q = q * (1 / math.sqrt(q.shape[-1]))
        shape = torch.Size((*q.shape[:3], k.shape[2]))
        scores = torch.matmul(q, k.mT, out=reused("scores", shape))
        if bias is not None:
            scores += bias
        if allowed is None:
            return torch.softmax(scores, dim=-1, out=reused("weights", shape)), scores
        if empty is not None and of_padding is not None:
            scores = scores.masked_fill_(~allowed, -math.inf)
            return torch.cat([scores, q @ empty.mT + of_padding], dim=-1).softmax(dim=-1)[..., : k.shape[2]], None
        # a padding token attends to nothing: its row becomes zeros, not NaN
        weights = torch.softmax(scores.masked_fill_(~allowed, -math.inf), dim=-1, out=reused("weights", shape))
        return weights.nan_to_num_(0.0), None

    return chunk


def bias_of(bias: Bias, queries: Tensor, slots: Tensor | None = None) -> Tensor:
    """Return the bias of some queries, (…, h, Q, keys); `slots` (Q,) are their rows in a bias that windows share."""
    if isinstance(bias, QueryBias):
        return bias.each(lambda part: part[:, :, queries]).whole()
    return bias[:, queries if slots is None else slots]


def _scores(mix: Mix, bias: Bias | None, layout: Layout) -> Scores:
    """Return the bias and masks of a mix."""
    keys = None if layout.mask is None else layout.mask[:, None, None, :]
    if isinstance(mix, FullMix):
        return lambda queries: (None if bias is None else bias_of(bias, queries), keys, None)
    if isinstance(mix, SparseMix):
        return _criss_cross(layout, keys)
    if isinstance(mix, WindowedMix):
        return _windowed(mix.windows(layout), bias, layout, keys)
    raise VitrailError(f"attention of kind {type(mix).__name__} is not supported; use full, windowed, sparse or linear")


def _criss_cross(layout: Layout, keys: Tensor | None) -> Scores:
    def scores_of(queries: Tensor) -> tuple[None, Tensor, None]:
        place = torch.arange(layout.prefix + layout.grid.area, device=queries.device) - layout.prefix  # (T,)
        query = (queries - layout.prefix)[:, None]
        same_row = query // layout.grid.width == place // layout.grid.width
        same_column = query % layout.grid.width == place % layout.grid.width
        allowed = same_row | same_column | (query < 0) | (place < 0)
        return None, allowed if keys is None else allowed & keys, None

    return scores_of


def _windowed(windows: CutGrid, bias: Bias | None, layout: Layout, keys: Tensor | None) -> Scores:
    like = bias.rows if isinstance(bias, QueryBias) else bias
    device = layout.mask.device if layout.mask is not None else like.device if like is not None else None
    numbers = torch.arange(1, layout.grid.area + 1, device=device)
    members = windows.split(numbers[None, None, :, None])[0, :, 0, :, 0]  # (W, m): patch + 1, or 0 for padding
    window, slot = (place[members.flatten().argsort()[-layout.grid.area :]] for place in _places(members))  # (N,) each
    may_attend = windows.allowed(layout.patch_mask, members.device)  # (B or 1, W, 1, m, m)

    def padding_of(queries: Tensor, patch: Tensor) -> Tensor:
        """Return (…, h or 1, Q, m): the bias of the padding in each query's window."""
        is_padding = (members == 0)[window[patch]] & (queries >= layout.prefix)[:, None]
        if may_attend is not None:
            is_padding &= may_attend[0, window[patch], 0, slot[patch]]
        zeros = torch.zeros(1, *is_padding.shape, device=is_padding.device)
        added = zeros if bias is None else bias_of(bias, patch, slot[patch])
        return added.masked_fill(~is_padding, -math.inf)

    def scores_of(queries: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        patch = (queries - layout.prefix).clamp_min(0)
        of_padding = padding_of(queries, patch) if windows.zeros else None
        same = window[patch][:, None] == window
        allowed = same[None, None]  # (1, 1, Q, N)
        if may_attend is not None:
            allowed = allowed & may_attend[:, window[patch], 0, slot[patch]][..., slot].unsqueeze(1)
        # prefix tokens attend to every token but padding, and patches attend to the prefix
        everything = torch.ones(1, dtype=torch.bool, device=queries.device) if keys is None else keys
        allowed = torch.where(
            (queries < layout.prefix)[:, None], everything, F.pad(allowed, (layout.prefix, 0), value=True)
        )
        if bias is None:
            return None, allowed, of_padding
        added = F.pad(bias_of(bias, patch, slot[patch])[..., slot], (layout.prefix, 0))  # (…, h, Q, T)
        return added.masked_fill((queries < layout.prefix)[:, None], 0.0), allowed, of_padding

    return scores_of


def _places(members: Tensor) -> tuple[Tensor, Tensor]:
    """Return the window and the slot of every entry of (W, m), flattened."""
    index = torch.arange(members.numel(), device=members.device)
    return index // members.shape[1], index % members.shape[1]
