"""The cost of pyramids of token grids."""

from __future__ import annotations

from itertools import pairwise

from vitrail.config import PyramidConfig
from vitrail.parts import Hierarchical, Mlp, RelativeBias, WindowedAttention
from vitrail.plan import ops
from vitrail.plan.model.attention import Encoder
from vitrail.plan.model.block import block
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.patches import patch_embed
from vitrail.plan.tape import Run, Tape, Tensor, module

__all__ = ["patch_merge", "pyramid_embed", "pyramid_vit"]


@module
def patch_merge(t: Tape, path: str, x: Tensor, before: int, after: int) -> Tensor:
    """Concatenate 2×2 tokens, which copies them; the gradient is copied back into the grid's order."""
    x = ops.copy(t, ops.copied_back(t, x))
    normed = ops.LayerNorm(t, f"{path}.norm", x, 4 * before)
    return ops.linear(t, f"{path}.reduce", normed, 4 * before, after, bias=False)


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
    width = c.stages[-1].width
    x = ops.mean(t, _features(t, c, batch, image), batch * width)
    return ops.Linear(t, "head", x, width, c.classes) if c.classes else x


def _features(t: Tape, c: PyramidConfig, batch: int, image: Tensor) -> Tensor:
    return ops.LayerNorm(t, "norm", _levels(t, c, batch, image)[-1], c.stages[-1].width)


def _levels(t: Tape, c: PyramidConfig, batch: int, image: Tensor) -> list[Tensor]:
    width, levels = c.stages[0].width, []
    tokens = patch_embed(t, "embedding", image, c.channels * c.patch.area, width, batch * c.grids[0].area)
    x = ops.LayerNorm(t, "embedding_norm", tokens, width)
    for level in range(len(c.stages)):
        x = _stage(t, c, batch, level, x)
        levels.append(x)
    return levels


@module
def _stage(t: Tape, c: PyramidConfig, batch: int, level: int, x: Tensor) -> Tensor:
    spec, grid, path = c.stages[level], c.grids[level], f"stages.{level}"
    earlier = sum(stage.depth for stage in c.stages[:level])
    encoder = Encoder(
        grid=grid,
        mlp=Mlp(width=c.mlp_ratio * spec.width),
        attention=WindowedAttention(window=c.window, window_padding=c.window_padding),
        position=RelativeBias(prefix=False),
        dropout=c.dropout,
        attention_dropout=c.attention_dropout,
    )
    n = Sizes(batch=batch, patches=grid.area, tokens=grid.area, width=spec.width, num_heads=spec.num_heads)

    def one(x: Tensor, i: int) -> Tensor:
        return block(t, encoder, n, x, f"{path}.blocks.{i}", c.drop_path * (earlier + i), None, i % 2 == 1)

    if level:
        x = patch_merge(t, f"{path}.merge", x, c.stages[level - 1].width, spec.width)
    start = [x]
    del x
    return t.repeat(f"{path}.blocks", one, start.pop(), _pairs(spec.depth, alone=bool(c.drop_path) and not earlier))


def _pairs(depth: int, *, alone: bool) -> list[Run]:
    """Group blocks in pairs, since every other one shifts; with `alone`, the first, which drops no path, is single."""
    first = 1 if alone else 0
    groups = [tuple(range(i, min(i + 2, depth))) for i in range(first, depth, 2)]
    whole = [group for group in groups if len(group) == 2]
    rest = [group for group in groups if len(group) == 1]
    return [[(0,)] if alone else [], whole, rest]
