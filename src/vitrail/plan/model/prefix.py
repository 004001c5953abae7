"""The cost of the prefix: CLS, distillation and register tokens."""

from __future__ import annotations

from vitrail.parts import Prefix
from vitrail.plan import ops
from vitrail.plan.graph import Tensor, module
from vitrail.plan.model.layout import Sizes
from vitrail.plan.tape import Tape

__all__ = ["prefix"]


@module
def prefix(t: Tape, spec: Prefix, n: Sizes, tokens: Tensor) -> Tensor:
    if spec.count == 0:
        return tokens
    kept = [("cls", spec.cls), ("distillation", spec.distillation), ("registers", spec.registers)]
    before = [
        ops.expand(t, t.parameter("prefix", count * n.width, name, rows=1), n.batch * count * n.width)
        for name, count in kept
        if count
    ]
    return ops.cat(t, *before, tokens)
