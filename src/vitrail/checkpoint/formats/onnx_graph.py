"""Read the nodes and stored tensors of an ONNX graph, for weights that exist in no other form.

An ONNX file is a protobuf message, whose wire format is short: fields with a number, each a varint, four or eight
bytes, or a length and bytes. Reading the few fields that matter here needs no onnx package.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import VitrailError, require

__all__ = ["Graph", "Node", "read_graph"]

MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_TENSOR = 1, 5
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OPERATION = 1, 2, 3, 4
TENSOR_SHAPE, TENSOR_TYPE, TENSOR_NAME, TENSOR_BYTES = 1, 2, 8, 9
FLOAT32 = 1
Fields = dict[int, list[int | memoryview]]


class Node(NamedTuple):
    operation: str
    name: str
    inputs: list[str]
    outputs: list[str]


class Graph(NamedTuple):
    nodes: list[Node]
    tensors: dict[str, Tensor]
    """The stored float32 tensors by name."""


def read_graph(path: Path) -> Graph:
    """Read a graph whose tensors are stored in the file itself."""
    try:
        model = _fields(memoryview(path.read_bytes()))
        graph = _fields(_bytes(model[MODEL_GRAPH][0]))
        tensors = dict(filter(None, (_tensor(each) for each in graph.get(GRAPH_TENSOR, []))))
        return Graph([_node(each) for each in graph.get(GRAPH_NODE, [])], tensors)
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise VitrailError(f"{path} is not an ONNX model ({error!r}); fetch it again") from None


def _node(message: int | memoryview) -> Node:
    fields = _fields(_bytes(message))
    words = {number: [str(_bytes(value), "utf-8") for value in fields.get(number, [])] for number in range(1, 5)}
    return Node("".join(words[NODE_OPERATION]), "".join(words[NODE_NAME]), words[NODE_INPUT], words[NODE_OUTPUT])


def _tensor(message: int | memoryview) -> tuple[str, Tensor] | None:
    fields = _fields(_bytes(message))
    if fields[TENSOR_TYPE] != [FLOAT32] or TENSOR_BYTES not in fields:
        return None  # shapes and indices of the graph
    name, raw = str(_bytes(fields[TENSOR_NAME][0]), "utf-8"), _bytes(fields[TENSOR_BYTES][0])
    shape = [side for value in fields.get(TENSOR_SHAPE, []) for side in _numbers(value)]
    require(len(raw) == 4 * math.prod(shape), f"{name} has shape {shape} and {len(raw)} bytes; fetch the file again")
    return name, torch.from_numpy(np.frombuffer(raw, "<f4").reshape(shape).copy())


def _fields(data: memoryview) -> Fields:
    """Return the values of a message by field number: varints as numbers, the rest as bytes."""
    fields: Fields = {}
    for number, value in _each_field(data):
        fields.setdefault(number, []).append(value)
    return fields


def _each_field(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, place = _varint(data, place)
        if size is None or place + size > len(data):
            raise IndexError("a field that ends outside its message")
        yield key >> 3, data[place : place + size]
        place += size


def _numbers(value: int | memoryview) -> Iterator[int]:
    """Yield one number, or several that are packed."""
    if isinstance(value, int):
        yield value
        return
    place = 0
    while place < len(value):
        number, place = _varint(value, place)
        yield number


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """Read a number of seven bits per byte, the lowest first; return it and the place behind it."""
    number = shift = 0
    while True:
        byte = data[place]
        number |= (byte & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if byte < 0x80:
            return number, place


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise IndexError("a number where bytes are due")
    return value
