"""The cost of merging patches into the tokens of a language model."""

from __future__ import annotations

from vitrail.config import ViTConfig
from vitrail.parts import LinearMerger, MlpMerger
from vitrail.plan import ops
from vitrail.plan.graph import Tensor, module
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.mlp import activation
from vitrail.plan.model.norm import norm
from vitrail.plan.tape import Tape

__all__ = ["merger"]


def merger(t: Tape, c: ViTConfig, n: Sizes, x: Tensor) -> Tensor:
    match c.merger:
        case MlpMerger() as spec:
            return _mlp(t, c, spec, n, x)
        case LinearMerger() as spec:
            return _linear(t, c, spec, n, x)
    raise AssertionError(c.merger)


@module
def _mlp(t: Tape, c: ViTConfig, spec: MlpMerger, n: Sizes, x: Tensor) -> Tensor:
    joined = n.width * spec.merge**2
    if spec.norm != "none" and not spec.norm_merged:
        x = norm(t, spec.norm, "merger.norm", x, n.width)
    x = _patches(t, c, n, x)
    if spec.merge > 1 and c.grid.width > spec.merge:  # a single column of tokens is in their order already
        x = ops.reorder(t, x)
    elif c.prefix.count and n.batch > 1:  # the patches of a single image are already contiguous
        x = ops.copy(t, x)
    if spec.norm != "none" and spec.norm_merged:
        x = norm(t, spec.norm, "merger.norm", x, joined)
    hidden = activation(t, "merger", spec.activation, ops.Linear(t, "merger.fc1", x, joined, spec.mlp_width, spec.bias))
    return ops.Linear(t, "merger.fc2", hidden, spec.mlp_width, spec.width, spec.bias)


@module
def _linear(t: Tape, c: ViTConfig, spec: LinearMerger, n: Sizes, x: Tensor) -> Tensor:
    x = ops.mean(t, _patches(t, c, n, x), n.batch * n.patches // spec.merge**2 * n.width)
    if spec.norm != "none":
        x = norm(t, spec.norm, "merger.norm", x, n.width)
    return ops.Linear(t, "merger.out", x, n.width, spec.width, spec.bias)


def _patches(t: Tape, c: ViTConfig, n: Sizes, x: Tensor) -> Tensor:
    return ops.narrow(t, x, n.batch * n.patches * n.width) if c.prefix.count else x
