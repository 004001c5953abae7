"""The cost of the head: vector → logits."""

from __future__ import annotations

from vitrail.plan import ops
from vitrail.plan.graph import Tensor
from vitrail.plan.tape import Tape

__all__ = ["classify"]


def classify(t: Tape, x: Tensor, width: int, classes: int, *, distillation: bool = False, bias: bool = True) -> Tensor:
    def head(x: Tensor, path: str) -> Tensor:
        return ops.Linear(t, path, x, width, classes, bias)

    if not classes:
        return x
    if not distillation:
        return head(x, "head")
    cls, token = ops.unbind(t, x, 2)
    return ops.fresh(t, ops.add(t, head(cls, "head"), head(token, "distillation_head")))
