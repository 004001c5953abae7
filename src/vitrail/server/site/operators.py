"""Operators that torch's tracing exporter lacks, or writes for one size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["OPSET", "operators"]

OPSET = 18


@contextmanager
def operators() -> Iterator[None]:
    """Teach the exporter these operators, inside the `with` block."""
    added = {"aten::mT": _transposed, "aten::exp2": _exp2, "aten::nanmedian": _median, "aten::ones_like": _ones_like}
    for name, symbolic in added.items():
        torch.onnx.register_custom_op_symbolic(name, symbolic, OPSET)
    try:
        yield
    finally:
        for name in added:
            torch.onnx.unregister_custom_op_symbolic(name, OPSET)


def _transposed(graph: Any, x: Any) -> Any:
    order = list(range(x.type().dim()))
    order[-2:] = order[:-3:-1]
    return graph.op("Transpose", x, perm_i=order)


def _exp2(graph: Any, x: Any) -> Any:
    return graph.op("Pow", graph.op("Constant", value_t=torch.tensor(2.0)), x)


def _median(graph: Any, x: Any, dim: Any, keepdim: Any) -> Any:
    """The lower median of a row; the graphs have no padding, so no value is missing."""
    one, two = (graph.op("Constant", value_t=torch.tensor([number])) for number in (1, 2))
    length = graph.op("Gather", graph.op("Shape", x), one, axis_i=0)
    count = graph.op("Div", graph.op("Add", length, one), two)
    lowest, places = graph.op("TopK", x, count, axis_i=1, largest_i=0, outputs=2)
    last = graph.op("Constant", value_t=torch.tensor([-1]))
    return (graph.op("Gather", lowest, last, axis_i=1), graph.op("Gather", places, last, axis_i=1))


def _ones_like(graph: Any, x: Any, *_: Any) -> Any:
    """Truth for every value; by its shape, the exporter would make it a constant of the traced size."""
    return graph.op("Not", graph.op("Less", x, x))
