"""The cost of a pre-norm residual block."""

from __future__ import annotations

from vitrail.config import ViTConfig
from vitrail.plan import ops
from vitrail.plan.model.attention import Encoder, attention
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.mlp import mlp
from vitrail.plan.model.norm import norm
from vitrail.plan.model.rotary import Rotation
from vitrail.plan.tape import Tape, Tensor, module

__all__ = ["block", "drop_path"]


@module
def block(
    t: Tape,
    c: ViTConfig | Encoder,
    n: Sizes,
    x: Tensor,
    path: str,
    rate: float,
    shared: Rotation | Tensor | None,
    shifted: bool,
) -> Tensor:
    def attend(x: Tensor) -> Tensor:
        return attention(t, c, n, norm(t, c.norm, f"{path}.norm1", x, n.width), f"{path}.attention", shared, shifted)

    def feed_forward(x: Tensor) -> Tensor:
        return mlp(t, c.mlp, n.width, norm(t, c.norm, f"{path}.norm2", x, n.width), f"{path}.mlp", c.dropout, c.norm)

    x = _add(t, c, n, x, attend(x), path, "scale1", rate)
    return _add(t, c, n, x, feed_forward(x), path, "scale2", rate)


def _add(
    t: Tape, c: ViTConfig | Encoder, n: Sizes, x: Tensor, branch: Tensor, path: str, scale: str, rate: float
) -> Tensor:
    if c.layer_scale is not None:
        branch = ops.multiply(t, path, branch, t.parameter(path, n.width, scale), spread=True)
    return ops.add(t, x, drop_path(t, path, n, branch, rate) if t.train else branch)


def drop_path(t: Tape, path: str, n: Sizes, branch: Tensor, rate: float) -> Tensor:
    if rate == 0:
        return branch
    drawn = t.new(n.batch, branch.size)  # before it is scaled
    kept = ops.multiply(t, path, branch, t.new(n.batch, branch.size), spread=True)
    del drawn
    return kept
