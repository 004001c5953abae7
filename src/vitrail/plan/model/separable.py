"""The cost of MobileViT v2's transformer."""

from __future__ import annotations

from vitrail.config import MobileConfig, MobileStage
from vitrail.geometry import Size
from vitrail.parts import Mlp
from vitrail.plan import ops
from vitrail.plan.attention_ops import softmax
from vitrail.plan.graph import Tensor, module
from vitrail.plan.loss_ops import total
from vitrail.plan.model.mlp import mlp
from vitrail.plan.model.residuals import conv_norm
from vitrail.plan.tape import Tape

__all__ = ["separable_transformer"]


@module
def image_norm(t: Tape, path: str, x: Tensor, width: int, batch: int) -> Tensor:
    x = ops.layer_norm(t, path, x, x.count // batch, affine=False)
    x = ops.multiply(t, path, x, t.parameter(path, width), spread=True)
    return ops.add(t, x, t.parameter(path, width, "bias"), spread=True)


@module
def separable_attention(t: Tape, path: str, x: Tensor, width: int, places: int) -> Tensor:
    """`places`: rows of tokens that share a context, of the whole batch."""
    count = x.count // width
    joined = ops.Linear(t, f"{path}.qkv", x, width, 1 + 2 * width)
    scores, keys, values = ops.split(t, joined, count, count * width, count * width)
    del joined
    weighted = [ops.multiply(t, path, keys, softmax(t, path, scores), spread=True)]
    context = total(t, weighted.pop(), places * width)
    mixed = [ops.multiply(t, path, ops.saving_output(t, path, values), context, spread=True)]
    return ops.Linear(t, f"{path}.out", mixed.pop(), width, width)


@module
def separable_block(t: Tape, spec: Mlp, path: str, x: Tensor, width: int, places: int, batch: int) -> Tensor:
    def attend(x: Tensor) -> Tensor:
        x = image_norm(t, f"{path}.norm1", x, width, batch)
        return separable_attention(t, f"{path}.attention", x, width, places)

    def feed_forward(x: Tensor) -> Tensor:
        return mlp(t, spec, width, image_norm(t, f"{path}.norm2", x, width, batch), f"{path}.mlp")

    x = ops.add(t, x, attend(x))
    return ops.add(t, x, feed_forward(x))


@module
def separable_transformer(
    t: Tape, c: MobileConfig, batch: int, spec: MobileStage, path: str, x: Tensor, size: Size
) -> Tensor:
    width, pixels, places = spec.transformer_width, batch * size.area, batch * c.patch.area
    inner = Mlp(width=c.mlp_ratio * width, activation="silu")

    def one(tokens: Tensor, i: int) -> Tensor:
        return separable_block(t, inner, f"{path}.blocks.{i}", tokens, width, places, batch)

    def into(x: Tensor) -> Tensor:
        return ops.Conv(t, f"{path}.into", x, spec.width * width, width, pixels, False)

    start = [ops.reorder(t, into(conv_norm(t, f"{path}.local", x, 1, spec.width, pixels, 9)))]
    depth = spec.transformer_depth
    tokens = t.repeat(f"{path}.blocks", one, start.pop(), [[(i,) for i in range(depth)]])
    folded = ops.reorder(t, image_norm(t, f"{path}.norm", tokens, width, batch))
    return conv_norm(t, f"{path}.back", folded, width, spec.width, pixels, 1, False)
