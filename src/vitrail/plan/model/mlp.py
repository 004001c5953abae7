"""The cost of a block's MLP."""

from __future__ import annotations

from vitrail.config import NormKind
from vitrail.parts import MlpKind, SwiGLU
from vitrail.plan import ops
from vitrail.plan.graph import Tensor, module
from vitrail.plan.model.norm import norm
from vitrail.plan.tape import Tape
from vitrail.plan.tensor_parallel import column_linear, row_linear, ways_of

__all__ = ["mlp"]


@module
def mlp(
    t: Tape, spec: MlpKind, width: int, x: Tensor, path: str, rate: float = 0.0, kind: NormKind = "layer"
) -> Tensor:
    hidden = spec.width
    if isinstance(spec, SwiGLU):
        inner = x.count // width * hidden // ways_of(t, f"{path}.fc1")
        gate, value = ops.split(t, column_linear(t, f"{path}.fc1", x, width, 2 * hidden, spec.bias), inner, inner)
        x = ops.dropout(t, path, ops.multiply(t, path, ops.activate(t, path, gate), value), rate)
    else:
        inner = activation(t, path, spec.activation, column_linear(t, f"{path}.fc1", x, width, hidden, spec.bias))
        x = ops.dropout(t, path, inner, rate)
        del inner
    if spec.norm:
        x = norm(t, kind, f"{path}.norm", x, hidden)
    return ops.dropout(t, path, row_linear(t, f"{path}.fc2", x, hidden, width, spec.bias), rate)


def activation(t: Tape, path: str, name: str, x: Tensor) -> Tensor:
    if name in ("relu", "tanh"):
        return ops.saving_output(t, path, x)
    if name != "quick_gelu":
        return ops.activate(t, path, x)
    return ops.multiply(t, path, x, ops.saving_output(t, path, ops.fresh(t, x)))
