"""The cost of pyramids of token grids."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise

from vitrail.config import NormPlace, PyramidConfig
from vitrail.parts import (
    GridPooling,
    Hierarchical,
    Mlp,
    NoPosition,
    PatchMerging,
    QueryPooling,
    TiledTable,
    WindowedAttention,
)
from vitrail.plan import ops
from vitrail.plan.graph import Tensor, module
from vitrail.plan.model.attention import Encoder
from vitrail.plan.model.block import block, note_copies
from vitrail.plan.model.head import classify
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.patches import patch_embed
from vitrail.plan.model.pool import pool
from vitrail.plan.model.positions import position
from vitrail.plan.model.prefix import prefix
from vitrail.plan.model.query_pool import pooling_block, tiled_tables
from vitrail.plan.model.windowed_attention import CutGrid
from vitrail.plan.repetition import Run
from vitrail.plan.tape import Tape

__all__ = ["grid_pool", "patch_merge", "pyramid_embed", "pyramid_vit"]


@module
def patch_merge(t: Tape, path: str, x: Tensor, before: int, after: int, place: NormPlace = "before") -> Tensor:
    """Concatenate 2×2 tokens, which copies them; the gradient is copied back into the grid's order."""
    x = ops.reorder(t, x)
    if place == "after":
        x = ops.linear(t, f"{path}.reduce", x, 4 * before, after, bias=False)
        return ops.LayerNorm(t, f"{path}.norm", x, after)
    normed = ops.LayerNorm(t, f"{path}.norm", x, 4 * before)
    return ops.linear(t, f"{path}.reduce", normed, 4 * before, after, bias=False)


@module
def grid_pool(t: Tape, path: str, x: Tensor, before: Sizes, after: Sizes) -> Tensor:
    """Pool the patches, project the prefix, and join them."""
    count = before.tokens - before.patches
    first, patches = (before.batch * tokens * before.width for tokens in (count, before.patches))
    leading, patch_tokens = ops.split(t, x, first, patches)
    places = after.batch * after.patches
    pooled = ops.Conv(t, f"{path}.conv", patch_tokens, 9 * after.width, after.width, places)
    if not count:
        return pooled
    if before.batch > 1:  # the prefix of a single image is already contiguous
        leading = ops.copy(t, leading)
    return ops.cat(t, ops.Linear(t, f"{path}.prefix", leading, before.width, after.width), pooled)


@module
def pyramid_embed(
    t: Tape, spec: Hierarchical, image: Tensor, patches: int, batch: int, channels: int, width: int
) -> Tensor:
    """`patches` patches on the last level; every level before has four times as many."""
    widths = (*spec.widths, width)
    places = batch * patches * 4 ** len(spec.widths)
    levels = [patch_embed(t, "embedding.finest", image, channels * spec.finest.area, widths[0], places)]
    for i, (before, after) in enumerate(pairwise(widths)):
        levels.append(patch_merge(t, f"embedding.merges.{i}", levels[-1], before, after))
    return levels[-1]


def pyramid_vit(t: Tape, c: PyramidConfig, batch: int, image: Tensor) -> Tensor:
    x = _vector(t, c, batch, image)
    return classify(t, x, c.stages[-1].width, c.classes, distillation=c.prefix.distillation)


def _vector(t: Tape, c: PyramidConfig, batch: int, image: Tensor) -> Tensor:
    n = _sizes(c, batch, len(c.stages) - 1)
    x = pool(t, c, n, _features(t, c, n, batch, image))
    return ops.LayerNorm(t, "norm", x, n.width) if c.final_norm == "pooled" else x


def _features(t: Tape, c: PyramidConfig, n: Sizes, batch: int, image: Tensor) -> Tensor:
    if c.final_norm != "tokens":
        return _levels(t, c, batch, image)[-1]
    return ops.LayerNorm(t, "norm", _levels(t, c, batch, image)[-1], n.width)


def _sizes(c: PyramidConfig, batch: int, level: int) -> Sizes:
    spec, patches = c.stages[level], c.grids[level].area
    tokens = c.prefix.count + patches
    return Sizes(batch=batch, patches=patches, tokens=tokens, width=spec.width, num_heads=spec.num_heads)


def _encoder(c: PyramidConfig, level: int) -> Encoder:
    return Encoder(
        grid=c.grids[level],
        mlp=Mlp(width=c.mlp_ratio * c.stages[level].width),
        attention=c.attention_at(level),
        position=NoPosition() if isinstance(c.position, TiledTable) else c.position,
        prefix=c.prefix,
        qkv_bias=c.qkv_bias,
        cosine_attention=c.cosine_attention,
        block_norm=c.block_norm,
        dropout=c.dropout,
        attention_dropout=c.attention_dropout,
    )


def _levels(t: Tape, c: PyramidConfig, batch: int, image: Tensor) -> list[Tensor]:
    note_copies(t, c)
    x, levels = _embed(t, c, batch, image), []
    if c.embedding_norm:
        x = ops.LayerNorm(t, "embedding_norm", x, c.stages[0].width)
    for level in range(len(c.stages)):
        x = _stage(t, c, batch, level, x)
        levels.append(x)
    return levels


def _embed(t: Tape, c: PyramidConfig, batch: int, image: Tensor) -> Tensor:
    n, values = _sizes(c, batch, 0), c.channels * c.patch.area
    x = patch_embed(t, "embedding", image, values, n.width, batch * n.patches, c.embedding.bias)
    x = prefix(t, c.prefix, n, x)
    windows = c.attention_at(0)
    if isinstance(c.position, TiledTable) and isinstance(windows, WindowedAttention):
        return tiled_tables(t, c.position, windows.window, n, x)
    return position(t, _encoder(c, 0), n, x) if c.position.acts_on == "tokens" else x


@module
def _stage(t: Tape, c: PyramidConfig, batch: int, level: int, x: Tensor) -> Tensor:
    depth, path = c.stages[level].depth, f"stages.{level}"
    earlier = sum(stage.depth for stage in c.stages[:level])
    encoder, n = _encoder(c, level), _sizes(c, batch, level)

    pools = level > 0 and isinstance(c.merging, QueryPooling)

    def one(x: Tensor, i: int) -> Tensor:
        if pools and i == 0:
            before, attention = _sizes(c, batch, level - 1), c.block_attentions[level][0]
            inner, biased = Mlp(width=c.mlp_ratio * n.width), c.qkv_bias == "all"
            given = (c.grids[level - 1], attention, inner, biased, c.dropout, c.drop_path * earlier)
            return pooling_block(t, f"{path}.blocks.0", x, before, n, *given)
        own = replace(encoder, attention=c.block_attentions[level][i])
        return block(t, own, n, x, f"{path}.blocks.{i}", c.drop_path * (earlier + i), None, i % 2 == 1)

    if level:
        before = _sizes(c, batch, level - 1)
        match c.merging:
            case PatchMerging(norm=place):
                x = patch_merge(t, f"{path}.merge", x, before.width, n.width, place)
            case GridPooling():
                x = grid_pool(t, f"{path}.merge", x, before, n)
            case QueryPooling():  # its first block
                pass
    start = [x]
    del x
    if isinstance(c.merging, QueryPooling):
        runs = _alike(c, level)
    else:
        runs = _runs(depth, alone=bool(c.drop_path) and not earlier, paired=_shifts(encoder))
    return t.repeat(f"{path}.blocks", one, start.pop(), runs)


def _alike(c: PyramidConfig, level: int) -> list[Run]:
    """Group blocks of equal attention; the first is single, since it pools, or drops no path."""
    kinds = c.block_attentions[level]
    later = groupby(range(1, len(kinds)), key=lambda index: kinds[index])
    return [[(0,)], *([(index,) for index in run] for _, run in later)]


def _shifts(c: Encoder) -> bool:
    """Return whether every other block shifts its windows."""
    spec = c.attention
    return isinstance(spec, WindowedAttention) and CutGrid(c.grid, spec.window, shifted=spec.shift).shifted


def _runs(depth: int, *, alone: bool, paired: bool) -> list[Run]:
    """Group blocks of equal cost, in pairs if every other one shifts; with `alone`, the first, which drops no path, is
    single."""
    first, period = int(alone), 1 + paired
    whole = depth - (depth - first) % period
    groups = [tuple(range(i, i + period)) for i in range(first, whole, period)]
    return [[(0,)] if alone else [], groups, [(i,) for i in range(whole, depth)]]
