"""The cost of the mobile network."""

from __future__ import annotations

from vitrail.config import MobileConfig, MobileStage
from vitrail.geometry import Size, halved
from vitrail.parts import Mlp
from vitrail.plan import ops
from vitrail.plan.model.attention import Encoder
from vitrail.plan.model.block import block
from vitrail.plan.model.head import classify
from vitrail.plan.model.layout import Sizes
from vitrail.plan.tape import Tape, Tensor, module

__all__ = ["mobile_vit"]


def mobile_vit(t: Tape, c: MobileConfig, batch: int, image: Tensor) -> Tensor:
    size = _last_map(c)
    x = ops.mean(t, _last(t, c, batch, image, size), batch * c.last_width)
    return classify(t, x, c.last_width, c.classes)


def _last(t: Tape, c: MobileConfig, batch: int, image: Tensor, size: Size) -> Tensor:
    return conv_norm(t, "last", _maps(t, c, batch, image)[-1], c.stages[-1].width, c.last_width, batch * size.area)


def _last_map(c: MobileConfig) -> Size:
    size = halved(c.image)
    for stage in c.stages:
        size = halved(size) if stage.stride == 2 else size
    return size


def _maps(t: Tape, c: MobileConfig, batch: int, image: Tensor) -> list[Tensor]:
    size, width = halved(c.image), c.stem_width
    x, maps = conv_norm(t, "stem", image, c.channels, width, batch * size.area, 9), []
    for i, spec in enumerate(c.stages):
        size = halved(size) if spec.stride == 2 else size
        x = _mobile_stage(t, c, batch, spec, f"stages.{i}", x, width, size)
        width = spec.width
        maps.append(x)
    return maps


@module
def _mobile_stage(
    t: Tape, c: MobileConfig, batch: int, spec: MobileStage, path: str, x: Tensor, before: int, size: Size
) -> Tensor:
    for i in range(spec.depth):
        width, stride = (spec.width, 1) if i else (before, spec.stride)
        x = inverted_residual(t, f"{path}.residuals.{i}", x, width, spec.width, c.expansion, stride, batch * size.area)
    if not spec.transformer_depth:
        return x
    return map_transformer(t, c, batch, spec, f"{path}.transformer", x, size)


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
    """A convolution of `kernel` pixels with `before` input channels per group, batch norm and SiLU."""
    x = ops.Conv(t, f"{path}.conv", x, kernel * before * after, after, places, False)
    x = ops.BatchNorm(t, f"{path}.norm", x, after)
    return ops.activate(t, path, x) if activation else x


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
def map_transformer(
    t: Tape, c: MobileConfig, batch: int, spec: MobileStage, path: str, x: Tensor, size: Size
) -> Tensor:
    width, places = spec.transformer_width, batch * size.area
    grid = Size(size.height // c.patch.height, size.width // c.patch.width)
    if 1 in (*c.patch, *grid):
        t.approximate(
            "a mobile map with patches one pixel wide, or one row of patches: some counted copies are not made"
        )
    encoder = Encoder(grid=grid, mlp=Mlp(width=c.mlp_ratio * width, activation="silu"))  # type: ignore[arg-type]
    cuts = batch * c.patch.area
    n = Sizes(batch=cuts, patches=grid.area, tokens=grid.area, width=width, num_heads=c.num_heads)

    def one(tokens: Tensor, i: int) -> Tensor:
        return block(t, encoder, n, tokens, f"{path}.blocks.{i}", 0.0, None, False)

    def into(x: Tensor) -> Tensor:
        return ops.Conv(t, f"{path}.into", x, spec.width * width, width, places, False)

    start = [_unfold(t, into(conv_norm(t, f"{path}.local", x, spec.width, spec.width, places, 9)))]
    depth = spec.transformer_depth
    tokens = t.repeat(f"{path}.blocks", one, start.pop(), [[(i,) for i in range(depth)]])
    folded = _unfold(t, ops.LayerNorm(t, f"{path}.norm", tokens, width))
    branch = conv_norm(t, f"{path}.back", folded, width, spec.width, places)
    del folded
    return conv_norm(t, f"{path}.fuse", ops.cat(t, x, branch), 2 * spec.width, spec.width, places, 9)


def _unfold(t: Tape, x: Tensor) -> Tensor:
    """Reorder pixels into patches, or back: a copy, and a copy of the gradient."""
    return ops.copy(t, ops.copied_back(t, x))
