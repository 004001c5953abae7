"""The cost of a norm."""

from __future__ import annotations

from vitrail.config import NormKind
from vitrail.plan import ops
from vitrail.plan.graph import Tensor
from vitrail.plan.tape import Tape

__all__ = ["norm"]


def norm(t: Tape, kind: NormKind, path: str, x: Tensor, width: int) -> Tensor:
    return (ops.LayerNorm if kind == "layer" else ops.RMSNorm)(t, path, x, width)
