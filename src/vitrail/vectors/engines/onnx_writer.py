"""Write an ONNX graph node by node: small constants in graph.onnx, weights in weights.bin, which processes map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

__all__ = ["GRAPH", "WEIGHTS", "OnnxWriter"]

GRAPH, WEIGHTS = "graph.onnx", "weights.bin"
OPSET, IR_VERSION = 20, 10
"""The first opset with Gelu, and the format's version that came with it."""
PAGE = 4096
"""Weights begin at whole pages, so that processes can map and share them."""


class OnnxWriter:
    """Nodes and constants, in the order that they are written; a value is known by its name."""

    def __init__(self, weights: BinaryIO) -> None:
        from onnx import TensorProto, helper

        self.weights, self.helper, self.proto = weights, helper, TensorProto
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; return the output's name."""
        return self.split(kind, *inputs, outputs=1, **attributes)[0]

    def split(self, kind: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Add a node with several outputs; return their names."""
        names = [f"{kind}{len(self.nodes)}.{index}" for index in range(outputs)]
        self.nodes.append(self.helper.make_node(kind, inputs, names, **attributes))
        return names

    def to_float(self, x: str) -> str:
        return self.op("Cast", x, to=self.proto.FLOAT)

    def sizes(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def constant(self, value: NDArray[Any] | np.generic) -> str:
        """Keep a small value in the graph and a large one in the weights' file."""
        array = np.asarray(value, order="C")
        kind = self.helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = self.proto(name=f"constant{len(self.constants)}", dims=array.shape, data_type=kind)
        if array.nbytes < PAGE:
            tensor.raw_data = array.tobytes()
        else:
            self.weights.write(bytes(-self.weights.tell() % PAGE))
            place = {"location": WEIGHTS, "offset": self.weights.tell(), "length": array.nbytes}
            tensor.data_location = self.proto.EXTERNAL
            for key, each in place.items():
                tensor.external_data.add(key=key, value=str(each))
            self.weights.write(array.data)
        self.constants.append(tensor)
        return tensor.name

    def save(self, path: Path, *, image: Sequence[int], vector: str, width: int) -> None:
        """Write a graph from `image`, uint8 (batch, *image), to `vector`, float32 (batch, width)."""
        helper, proto = self.helper, self.proto
        self.nodes.append(helper.make_node("Identity", [vector], ["vector"]))
        graph = helper.make_graph(
            self.nodes,
            "vitrail",
            [helper.make_tensor_value_info("image", proto.UINT8, ["batch", *image])],
            [helper.make_tensor_value_info("vector", proto.FLOAT, ["batch", width])],
            self.constants,
        )
        opset = [helper.make_opsetid("", OPSET)]
        path.write_bytes(helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION).SerializeToString())
