"""What a tape runs on: tensors without data, and the nodes and leaves of autograd's graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any

from vitrail.plan.meter import Storage

__all__ = [
    "AGAIN",
    "NOWHERE",
    "EnoughError",
    "Frame",
    "Leaf",
    "Node",
    "Sizes",
    "Tensor",
    "module",
    "view",
]


def module(function: Callable) -> Callable:
    """Decorate a function to keep its arguments alive until it returns, as calling an nn.Module does."""

    @wraps(function)
    def call(*args):
        return function(*args)

    return call


class Tensor:
    """`count` elements of a storage (None for a parameter, which is counted separately), and their autograd node."""

    __slots__ = ("count", "node", "size", "slot", "storage")
    count: int
    node: Any
    size: int
    slot: int
    storage: Storage | None


def view(storage: Storage | None, count: int, size: int, node: Any = None, slot: int = 0) -> Tensor:
    """Return a tensor of a storage that exists. (A constructor would take longer.)"""
    made = Tensor()
    made.storage, made.count, made.size, made.node, made.slot = storage, count, size, node, slot
    return made


Sizes = list[tuple[int, int] | None]
"""Count and size of each input's gradient, None where none is needed."""


class Node:
    """An operation in autograd's graph: its edges, what it saved, its backward function or the gradients that this
    would allocate, and its model's path."""

    __slots__ = ("backward", "edges", "frame", "grads", "saved", "scope")
    edges: list[tuple[Any, int]]
    saved: Any
    backward: Callable | Sizes
    frame: Frame | None
    scope: str
    grads: Tensor | dict[int, Tensor] | None
    """The gradient of its result, or of each result by its slot."""


AGAIN = object()
"""The node of what checkpointing recomputes: its gradient flows through the node of the first run."""
NOWHERE = (None, 0)
"""The edge of a tensor that needs no gradient."""


class Leaf:
    """A parameter in autograd's graph: it keeps the sum of the gradients of all its uses."""

    __slots__ = ("count", "grad", "path", "rows", "trained", "uses", "waiting")

    path: str
    trained: bool
    count: int
    rows: int
    uses: int
    grad: Tensor | None
    waiting: Tensor | None


class Frame:
    """A checkpointed call: how to rerun it, what the rerun saved, and what selective checkpointing keeps."""

    __slots__ = ("again", "expected", "kept", "recomputed")

    def __init__(self, again: Callable[[], Tensor], kept: deque[Storage | None] | None) -> None:
        self.again, self.expected, self.kept = again, 0, kept
        self.recomputed: list | None = None


class EnoughError(Exception):
    """Raised when everything that backward needs is recomputed, where PyTorch stops too."""
