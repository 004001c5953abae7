"""The cost of a masked autoencoder."""

from __future__ import annotations

from dataclasses import replace

from vitrail.config import ViTConfig
from vitrail.parts import Mlp, SinCos2d
from vitrail.plan import ops
from vitrail.plan.graph import Tensor, module
from vitrail.plan.loss_ops import gather, squared, subtract, total
from vitrail.plan.model.attention import Encoder
from vitrail.plan.model.block import block
from vitrail.plan.model.front import embed
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.norm import norm
from vitrail.plan.model.positions import position
from vitrail.plan.model.vit import encode
from vitrail.plan.tape import Tape
from vitrail.pretraining import MaskedAutoencoder

__all__ = ["reconstruction"]


@module
def reconstruction(t: Tape, c: ViTConfig, spec: MaskedAutoencoder, n: Sizes, image: Tensor) -> Tensor:
    """Images → the error of reconstructed patches."""
    cells, seen = n.batch * n.patches, spec.visible(n.patches)
    few = replace(n, patches=seen, tokens=c.prefix.count + seen)
    with t.model("encoder"):
        tokens = embed(t, c, n, image)
    order = _sorted(t, t.new(cells, 4), cells)
    x = _encoded(t, c, few, _kept(t, c, n, few, tokens, order))
    places = _sorted(t, order, cells)
    with t.model("decoder"):
        predicted = _decoded(t, c, spec, n, few, _normed(t, c, x), places)
    squares = [squared(t, "loss", subtract(t, predicted, _patches(t, image, cells)))]
    error = ops.mean(t, squares.pop(), cells)
    return ops.fresh(t, total(t, ops.multiply(t, "loss", error, t.new(cells, 1)), 1))


def _sorted(t: Tape, x: Tensor, cells: int) -> Tensor:
    """argsort: the sorted values are made too."""
    values = t.new(cells, x.size)
    order = t.new(cells, 8)
    del values
    return order


def _kept(t: Tape, c: ViTConfig, n: Sizes, few: Sizes, tokens: Tensor, order: Tensor) -> Tensor:
    """The prefix, and the visible patches."""
    row = n.batch * n.width
    prefix = ops.narrow(t, tokens, c.prefix.count * row)
    return ops.cat(t, prefix, gather(t, "encoder", ops.narrow(t, tokens, n.patches * row), order, few.patches * row))


def _encoded(t: Tape, c: ViTConfig, n: Sizes, x: Tensor) -> Tensor:
    start = [x]
    del x
    with t.model("encoder"):
        if c.embedding_norm:
            start = [norm(t, c.norm, "embedding_norm", start.pop(), c.width)]
        return encode(t, c, n, start.pop(), None)


def _normed(t: Tape, c: ViTConfig, x: Tensor) -> Tensor:
    scope, t.scope = t.scope, "encoder."
    normed = norm(t, c.norm, "norm", x, c.width)
    t.scope = scope
    return normed


@module
def _decoded(
    t: Tape, c: ViTConfig, spec: MaskedAutoencoder, n: Sizes, few: Sizes, tokens: Tensor, places: Tensor
) -> Tensor:
    """Visible tokens and a learned one for each masked patch, in the grid's order → pixels."""
    width, count = spec.decoder_width, c.prefix.count
    n = replace(n, width=width, num_heads=spec.decoder_heads)
    row = n.batch * width
    encoder = Encoder(grid=c.grid, mlp=Mlp(width=4 * width), position=SinCos2d(), prefix=c.prefix)

    def one(x: Tensor, i: int) -> Tensor:
        return block(t, encoder, n, x, f"blocks.{i}", 0.0, None, False)

    x = ops.Linear(t, "into", tokens, c.width, width)
    prefix, visible = ops.split(t, x, count * row, few.patches * row)
    masked = ops.expand(t, t.parameter("", width, "masked"), (n.patches - few.patches) * row, new_axis=True)
    patches = ops.cat(t, visible, t.cast(masked, x.size))
    patches = gather(t, "", patches, places, n.patches * row)
    joined = [ops.cat(t, prefix, patches)]
    start = [position(t, encoder, n, joined.pop())]
    x = t.repeat("blocks", one, start.pop(), [[(i,) for i in range(spec.decoder_depth)]])
    last = ops.narrow(t, ops.LayerNorm(t, "norm", x, width), n.patches * row)
    if count and n.batch > 1 and not t.amp:  # rows without the prefix are not contiguous
        last = ops.copy(t, last)
    return ops.Linear(t, "pixels", last, width, c.channels * c.patch.area)


def _patches(t: Tape, image: Tensor, cells: int) -> Tensor:
    """Pixels by patch, less their mean, divided by their deviation."""
    pixels, variance, mean = t.new(image.count, image.size), t.new(cells, image.size), t.new(cells, image.size)
    centred = [t.new(image.count, image.size)]
    more = [t.new(cells, image.size)]
    deviation = t.new(cells, image.size)
    more.clear()
    scaled = t.new(image.count, image.size)
    centred.clear()
    del deviation, pixels, variance, mean
    return scaled
