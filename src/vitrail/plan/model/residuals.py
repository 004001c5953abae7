"""The cost of residual blocks of convolutions."""

from __future__ import annotations

from vitrail.plan import ops
from vitrail.plan.graph import Tensor, module
from vitrail.plan.tape import Tape

__all__ = ["basic_residual", "conv_norm", "inverted_residual"]


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
def basic_residual(
    t: Tape, path: str, x: Tensor, before: int, after: int, expansion: int, stride: int, places: int
) -> Tensor:
    inner = expansion * after
    branch = conv_norm(t, f"{path}.first", x, before, inner, places, 9)
    branch = conv_norm(t, f"{path}.second", branch, inner, after, places, 9, False)
    if before == after and stride == 1:
        return ops.activate(t, path, ops.add(t, branch, x))
    # the shortcut has no name, so that it is freed after the sum, as in the module
    total = ops.add(t, branch, conv_norm(t, f"{path}.shortcut", x, before, after, places, 1, False))
    return ops.activate(t, path, total)
