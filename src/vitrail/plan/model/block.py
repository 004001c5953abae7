"""The cost of a residual block."""

from __future__ import annotations

from vitrail.config import PyramidConfig, ViTConfig
from vitrail.plan import ops
from vitrail.plan.graph import Tensor, module
from vitrail.plan.model.attention import Encoder, attention
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.mlp import mlp
from vitrail.plan.model.norm import norm
from vitrail.plan.model.rotary import Rotation
from vitrail.plan.tape import Tape

__all__ = ["block", "drop_path", "note_copies"]


def note_copies(t: Tape, c: ViTConfig | PyramidConfig) -> None:
    """Say that the plan is an estimate if the first block projects tokens in the order of a convolution's output."""
    if c.block_norm == "after" and not c.embedding_norm and c.prefix.count == 0:
        t.approximate(
            "norms after the branches, and patches without a prefix: copies in the first block are not verified"
        )


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
    before = c.block_norm == "before"

    def attend(x: Tensor) -> Tensor:
        x = norm(t, c.norm, f"{path}.norm1", x, n.width) if before else x
        x = attention(t, c, n, x, f"{path}.attention", shared, shifted)
        return x if before else norm(t, c.norm, f"{path}.norm1", x, n.width)

    def feed_forward(x: Tensor) -> Tensor:
        x = norm(t, c.norm, f"{path}.norm2", x, n.width) if before else x
        x = mlp(t, c.mlp, n.width, x, f"{path}.mlp", c.dropout, c.norm)
        return x if before else norm(t, c.norm, f"{path}.norm2", x, n.width)

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
