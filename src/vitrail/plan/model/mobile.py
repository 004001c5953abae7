"""The models of several widths on a tape: the pyramid of windowed stages, and the mobile network.

Letters: B images, N tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.config import MobileConfig, MobileStage, PyramidConfig
from vitrail.geometry import Size
from vitrail.parts import Mlp, RelativeBias, WindowedAttention
from vitrail.plan import ops
from vitrail.plan.attention_ops import copy
from vitrail.plan.model.attention import Encoder, Numbers, block
from vitrail.plan.model.patches import batch_norm, halved, patch_merge
from vitrail.plan.tape import Run, Tape, Tensor, module
from vitrail.plan.workload import Workload

__all__ = ["Sizes", "mobile", "pyramid", "sizes"]


@dataclass(frozen=True)
class Sizes:
    """What a step asks of any model: the sizes of its input."""

    batch: int
    channels: int
    pixels: int


def sizes(c: PyramidConfig | MobileConfig, workload: Workload) -> Sizes:
    return Sizes(workload.batch, c.channels, c.image.area)


def _numbers(batch: int, grid: Size, width: int, num_heads: int, mlp_width: int) -> Numbers:
    return Numbers(
        batch=batch,
        channels=0,
        patch=0,
        pixels=0,
        grid=grid.area,
        cells=grid.area,
        tokens=grid.area,
        offsets=0,
        width=width,
        depth=0,
        num_heads=num_heads,
        mlp_width=mlp_width,
        classes=0,
    )


@module
def _norm(t: Tape, path: str, x: Tensor, width: int) -> Tensor:
    return ops.layer_norm(t, path, x, width)


@module
def _head(t: Tape, x: Tensor, width: int, classes: int) -> Tensor:
    return ops.linear(t, "head", x, width, classes)


# ── pyramid ─────────────────────────────────────────────────────────────────────────────────────────────────────


def pyramid(t: Tape, c: PyramidConfig, n: Sizes, image: Tensor) -> Tensor:
    width = c.stages[-1].width
    x = ops.mean(t, _features(t, c, n, image), n.batch * width)
    return _head(t, x, width, c.classes) if c.classes else x


def _features(t: Tape, c: PyramidConfig, n: Sizes, image: Tensor) -> Tensor:
    return _norm(t, "norm", _levels(t, c, n, image)[-1], c.stages[-1].width)


def _levels(t: Tape, c: PyramidConfig, n: Sizes, image: Tensor) -> list[Tensor]:
    width, levels = c.stages[0].width, []
    tokens = _patch_embed(t, c, n, image)
    x = _norm(t, "embedding_norm", tokens, width)
    for level in range(len(c.stages)):
        x = _stage(t, c, n, level, x)
        levels.append(x)
    return levels


@module
def _patch_embed(t: Tape, c: PyramidConfig, n: Sizes, image: Tensor) -> Tensor:
    width = c.stages[0].width
    return ops.conv(t, "embedding", image, width * n.channels * c.patch.area, width, n.batch * c.grids[0].area)


@module
def _stage(t: Tape, c: PyramidConfig, n: Sizes, level: int, x: Tensor) -> Tensor:
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
    numbers = _numbers(n.batch, grid, spec.width, spec.num_heads, encoder.mlp.width)

    def one(x: Tensor, i: int) -> Tensor:
        return block(t, encoder, numbers, x, f"{path}.blocks.{i}", c.drop_path * (earlier + i), None, i % 2 == 1)

    if level:
        x = patch_merge(t, f"{path}.merge", x, c.stages[level - 1].width, spec.width)
    start = [x]
    del x
    return t.repeat(f"{path}.blocks", one, start.pop(), _pairs(spec.depth, apart=bool(c.drop_path) and not earlier))


def _pairs(depth: int, *, apart: bool) -> list[Run]:
    """Blocks two by two, since every other one shifts; the first stands apart if it alone drops no path."""
    first = 1 if apart else 0
    groups = [tuple(range(i, min(i + 2, depth))) for i in range(first, depth, 2)]
    whole = [group for group in groups if len(group) == 2]
    rest = [group for group in groups if len(group) == 1]
    return [[(0,)] if apart else [], whole, rest]


# ── mobile ──────────────────────────────────────────────────────────────────────────────────────────────────────


def mobile(t: Tape, c: MobileConfig, n: Sizes, image: Tensor) -> Tensor:
    size = _last_map(c)
    x = ops.mean(t, _last(t, c, n, image, size), n.batch * c.last_width)
    return _head(t, x, c.last_width, c.classes) if c.classes else x


def _last(t: Tape, c: MobileConfig, n: Sizes, image: Tensor, size: Size) -> Tensor:
    return conv_norm(t, "last", _maps(t, c, n, image)[-1], c.stages[-1].width, c.last_width, n.batch * size.area)


def _last_map(c: MobileConfig) -> Size:
    size = halved(c.image)
    for stage in c.stages:
        size = halved(size) if stage.stride == 2 else size
    return size


def _maps(t: Tape, c: MobileConfig, n: Sizes, image: Tensor) -> list[Tensor]:
    size, width = halved(c.image), c.stem_width
    x, maps = conv_norm(t, "stem", image, n.channels, width, n.batch * size.area, 9), []
    for i, spec in enumerate(c.stages):
        size = halved(size) if spec.stride == 2 else size
        x = _mobile_stage(t, c, n, spec, f"stages.{i}", x, width, size)
        width = spec.width
        maps.append(x)
    return maps


@module
def _mobile_stage(
    t: Tape, c: MobileConfig, n: Sizes, spec: MobileStage, path: str, x: Tensor, before: int, size: Size
) -> Tensor:
    for i in range(spec.depth):
        width, stride = (spec.width, 1) if i else (before, spec.stride)
        x = inverted_residual(
            t, f"{path}.residuals.{i}", x, width, spec.width, c.expansion, stride, n.batch * size.area
        )
    if not spec.transformer_depth:
        return x
    return map_transformer(t, c, n, spec, f"{path}.transformer", x, size)


@module
def conv_norm(
    t: Tape,
    path: str,
    x: Tensor,
    before: int,
    after: int,
    places: int,
    kernel: int = 1,
    activation: bool = True,
) -> Tensor:
    """`before` input channels per group; a kernel of so many pixels."""
    x = batch_norm(t, f"{path}.norm", _conv(t, f"{path}.conv", x, kernel * before * after, after, places), after)
    return ops.activate(t, path, x) if activation else x


@module
def _conv(t: Tape, path: str, x: Tensor, weights: int, width: int, places: int) -> Tensor:
    return ops.conv(t, path, x, weights, width, places, bias=False)


@module
def inverted_residual(
    t: Tape, path: str, x: Tensor, before: int, after: int, expansion: int, stride: int, places: int
) -> Tensor:
    inner = expansion * before
    wide = x.count // before
    branch = conv_norm(
        t,
        f"{path}.project",
        conv_norm(t, f"{path}.depthwise", conv_norm(t, f"{path}.expand", x, before, inner, wide), 1, inner, places, 9),
        inner,
        after,
        places,
        1,
        False,
    )
    return ops.add(t, x, branch) if before == after and stride == 1 else branch


@module
def map_transformer(t: Tape, c: MobileConfig, n: Sizes, spec: MobileStage, path: str, x: Tensor, size: Size) -> Tensor:
    width, places = spec.transformer_width, n.batch * size.area
    grid = Size(size.height // c.patch.height, size.width // c.patch.width)
    if 1 in (*c.patch, *grid):
        t.approximate("a mobile map cut into patches one pixel wide, or into one row: copies not made are counted")
    hidden = c.mlp_ratio * width
    encoder = Encoder(grid=grid, mlp=Mlp(width=hidden, activation="silu"))  # type: ignore[arg-type]
    numbers = _numbers(n.batch * c.patch.area, grid, width, c.num_heads, hidden)

    def one(tokens: Tensor, i: int) -> Tensor:
        return block(t, encoder, numbers, tokens, f"{path}.blocks.{i}", 0.0, None, False)

    start = [
        _unfold(t, _into(t, path, conv_norm(t, f"{path}.local", x, spec.width, spec.width, places, 9), spec, places))
    ]
    depth = spec.transformer_depth
    tokens = t.repeat(f"{path}.blocks", one, start.pop(), [[(i,) for i in range(depth)]])
    folded = _unfold(t, _norm(t, f"{path}.norm", tokens, width))
    branch = conv_norm(t, f"{path}.back", folded, width, spec.width, places)
    del folded
    return conv_norm(t, f"{path}.fuse", ops.cat(t, x, branch), 2 * spec.width, spec.width, places, 9)


@module
def _into(t: Tape, path: str, x: Tensor, spec: MobileStage, places: int) -> Tensor:
    width = spec.transformer_width
    return ops.conv(t, f"{path}.into", x, spec.width * width, width, places, bias=False)


def _unfold(t: Tape, x: Tensor) -> Tensor:
    """Pixels into the order of patches, or back: a copy, and a copy of the gradient."""
    return copy(t, ops.copied_back(t, x))
