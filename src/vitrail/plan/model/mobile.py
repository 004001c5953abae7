"""The cost of the mobile network."""

from __future__ import annotations

from vitrail.config import MobileConfig, MobileStage
from vitrail.geometry import Size, halved
from vitrail.parts import Mlp, SeparableAttention
from vitrail.plan import ops
from vitrail.plan.graph import Tensor, module
from vitrail.plan.model.attention import Encoder
from vitrail.plan.model.block import block
from vitrail.plan.model.head import classify
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.residuals import basic_residual, conv_norm, inverted_residual
from vitrail.plan.model.separable import separable_transformer
from vitrail.plan.tape import Tape

__all__ = ["mobile_vit"]


def mobile_vit(t: Tape, c: MobileConfig, batch: int, image: Tensor) -> Tensor:
    x = ops.mean(t, _last(t, c, batch, image), batch * c.vector_width)
    return classify(t, x, c.vector_width, c.classes)


def _last(t: Tape, c: MobileConfig, batch: int, image: Tensor) -> Tensor:
    if not c.last_width:
        return _maps(t, c, batch, image)[-1]
    size = _halved_if(c.stem_stride, c.image)
    for stage in c.stages:
        size = _halved_if(stage.stride, size)
    return conv_norm(t, "last", _maps(t, c, batch, image)[-1], c.stages[-1].width, c.last_width, batch * size.area)


def _halved_if(stride: int, size: Size) -> Size:
    return halved(size) if stride == 2 else size


def _maps(t: Tape, c: MobileConfig, batch: int, image: Tensor) -> list[Tensor]:
    size, width = _halved_if(c.stem_stride, c.image), c.stem_width
    x, maps = conv_norm(t, "stem", image, c.channels, width, batch * size.area, 9), []
    for i, spec in enumerate(c.stages):
        size = _halved_if(spec.stride, size)
        x = _mobile_stage(t, c, batch, spec, f"stages.{i}", x, width, size)
        width = spec.width
        maps.append(x)
    return maps


@module
def _mobile_stage(
    t: Tape, c: MobileConfig, batch: int, spec: MobileStage, path: str, x: Tensor, before: int, size: Size
) -> Tensor:
    residual = inverted_residual if c.residual == "inverted" else basic_residual
    for i in range(spec.depth):
        width, stride = (spec.width, 1) if i else (before, spec.stride)
        x = residual(t, f"{path}.residuals.{i}", x, width, spec.width, c.expansion, stride, batch * size.area)
    if not spec.transformer_depth:
        return x
    transformer = separable_transformer if isinstance(c.attention, SeparableAttention) else map_transformer
    return transformer(t, c, batch, spec, f"{path}.transformer", x, size)


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
    assert not isinstance(c.attention, SeparableAttention)
    inner = Mlp(width=c.mlp_ratio * width, activation="silu")  # type: ignore[arg-type]
    encoder = Encoder(grid=grid, attention=c.attention, mlp=inner)
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
    return ops.reorder(t, x)
