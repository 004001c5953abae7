"""Run a model on tensors that have a size but no data, to find out what it allocates, saves and frees, and when.

`vitrail.plan.model` mirrors every module of `vitrail.nn`, with the operations of `vitrail.plan.ops`. Python's reference
counts free the storages, as they do in PyTorch, so lifetimes need no rules of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from vitrail.checkpointing import Checkpointing
from vitrail.plan.graph import AGAIN, NOWHERE, EnoughError, Frame, Leaf, Node, Sizes, Tensor, view
from vitrail.plan.meter import Meter
from vitrail.plan.repetition import Repetition
from vitrail.tuning import Tuned

__all__ = ["Tape"]


class Tape(Repetition):
    """The settings and counters of a run, and autograd's graph."""

    __slots__ = (  # more attributes than Python keeps quick without
        *("amp", "fp16", "kernel", "explicit", "has_grads", "size", "compute", "ways", "paths", "flops", "once"),
        *("backward_flops", "saved_bytes", "grad_bytes", "buffer_bytes", "notes", "_component", "_running_back"),
        *("_buffers", "_leaves", "_teaching", "_unpacked"),
    )

    def __init__(
        self,
        meter: Meter,
        *,
        train: bool = False,
        amp: bool = False,
        fp16: bool = False,
        size: int = 4,
        kernel: str = "flash",
        explicit: bool = False,
        checkpointing: Checkpointing | None = None,
        has_grads: bool = False,
        tuned: Tuned | None = None,
        naming: Callable[[str, str], str] | None = None,
    ) -> None:
        super().__init__(meter, train=train, checkpointing=checkpointing, tuned=tuned, naming=naming)
        self.amp, self.fp16, self.kernel, self.explicit, self.has_grads = amp, fp16, kernel, explicit, has_grads
        self.size = size
        """Bytes per element of a parameter."""
        self.compute = 2 if amp else size
        """Bytes per element in matrix products."""
        self.ways = 1
        """Devices that share the heads and the hidden units of each block (tensor parallelism)."""
        self.paths: dict[str, None] = {}
        """Modules, in order of first use."""
        self.flops: dict[str, int] = defaultdict(int)
        self.backward_flops: dict[str, int] = defaultdict(int)
        self.once: set[str] = set()
        """Modules whose FLOPs are the same for any number of images; all others' are in proportion to it."""
        self.saved_bytes: dict[str, int] = defaultdict(int)
        self.grad_bytes: dict[str, int] = defaultdict(int)
        self.buffer_bytes: dict[str, int] = defaultdict(int)
        self.notes: list[str] = []
        self._component = "activations"
        self._running_back = False
        self._buffers: set[tuple[str, str]] = set()
        self._leaves: dict[tuple[str, str], Leaf] = {}
        self._teaching = False
        self._unpacked: list | None = None

    # ── parameters ──────────────────────────────────────────────────────────────────────────────────────────────

    def parameter(self, path: str, count: int, name: str = "weight", *, rows: int | None = None) -> Tensor:
        """Return a learned tensor of the module at `path`; `rows` is its first side, if it has others."""
        if self.scope:
            path = self._at(path)
        leaf = self._leaves.get((path, name))
        if leaf is None:
            trained = self.train and (self.tuned is None or self.tuned.trains(self._own(path, name), name))
            leaf = self._leaves[path, name] = Leaf()
            leaf.path, leaf.trained, leaf.count, leaf.rows = path, trained, count, count if rows is None else rows
            leaf.grad, leaf.waiting, leaf.uses = None, None, 0
            self.paths[path] = None
        return view(None, count, self.size, leaf if leaf.trained else None)

    def weight(self, path: str, count: int, name: str = "weight", *, rows: int | None = None) -> Tensor:
        """Return a learned tensor for a matrix product: under autocast a copy, cached until autocast ends.

        PyTorch caches copies of trained weights only; a frozen one is copied again for every use.
        """
        if not self.amp:
            return self.parameter(path, count, name, rows=rows)
        key = (self._at(path) if self.scope else path, name)
        if (cached := self._casts.get(key)) is not None:
            return cached
        parameter = self.parameter(path, count, name, rows=rows)
        cast = self.cast(parameter, self.compute, "weight_casts")
        if parameter.node is not None or not (self.train or self._teaching):
            self._casts[key] = cast
        return cast

    def buffer(self, path: str, count: int, size: int, name: str = "table") -> Tensor:
        """Return a fixed tensor that the model owns."""
        path = self._at(path)
        if (path, name) not in self._buffers:  # otherwise it is used again
            self._buffers.add((path, name))
            self.buffer_bytes[path] += count * size
        return view(None, count, size)

    @contextmanager
    def model(self, name: str, *, teaches: bool = False) -> Iterator[None]:
        """Run one of several models; one that teaches has no gradients, no dropout and no cached casts."""
        outer = self.scope, self.train, self._teaching
        self.scope += f"{name}."
        self.train, self._teaching = self.train and not teaches, self._teaching or teaches
        yield
        self.scope, self.train, self._teaching = outer

    def at(self, path: str) -> None:
        """Say which module the next allocations are for, to a tape that names them."""

    def _at(self, path: str) -> str:
        return (self.scope + path).rstrip(".") if self.scope else path

    def adapter_rank(self, path: str) -> int:
        """Return the rank of the adapter of the linear layer at `path`; 0 if it has none."""
        if self.tuned is None or self.tuned.lora is None or not self.tuned.adapts(self._own(path)):
            return 0
        return self.tuned.lora.rank

    # ── operations ──────────────────────────────────────────────────────────────────────────────────────────────

    def new(self, count: int, size: int, component: str | None = None) -> Tensor:
        made = Tensor()
        made.storage = self.meter.storage(component or self._component, count * size)
        made.count, made.size, made.node, made.slot = count, size, None, 0
        return made

    def product(self, count: int, size: int, component: str | None = None) -> Tensor:
        """Return a result of a matrix product or of attention, which selective checkpointing keeps."""
        frame = self._frame
        if frame is None or frame.kept is None:
            return self.new(count, size, component)
        if frame.recomputed is not None:
            return view(frame.kept.popleft(), count, size)
        made = self.new(count, size, component)
        frame.kept.append(made.storage)
        return made

    def save(self, path: str, inputs: tuple[Tensor | None, ...], *tensors: Tensor | None) -> Any:
        """Keep tensors for backward, if an input of the operation needs a gradient; None are left out.

        Inputs are saved before the result is made, outputs after, as in PyTorch.
        """
        if not self.train:
            return None
        for tensor in inputs:
            if tensor is not None and tensor.node is not None:
                break
        else:
            return None
        storages = [tensor.storage for tensor in tensors if tensor is not None]
        if not storages:
            return None
        frame = self._frame
        if frame is None:
            if self.scope:
                path = self._at(path)
            for storage in storages:
                if storage is not None and not storage.saved:
                    storage.saved = True
                    self.saved_bytes[path] += storage.size
            return storages
        if frame.recomputed is None:
            frame.expected += 1
            return frame.expected - 1
        frame.recomputed.append(storages)
        if len(frame.recomputed) == frame.expected:
            raise EnoughError
        return None

    def record(self, out: Tensor, inputs: tuple[Tensor | None, ...], saved: Any, backward: Callable | Sizes) -> Tensor:
        """Record how `out` was computed. `backward` takes its gradient and returns one per input, or says which it
        would allocate; it must not refer to a tensor, which would then live too long."""
        if not self.train:
            return out
        frame = self._frame
        if frame is not None and frame.recomputed is not None:
            for tensor in inputs:
                if tensor is not None and tensor.node is not None:
                    out.node = AGAIN
                    break
            return out
        edges, needed = [], False
        for tensor in inputs:
            if tensor is None or (target := tensor.node) is None:
                edges.append(NOWHERE)
                continue
            edges.append((target, tensor.slot))
            needed = True
            if type(target) is Leaf:
                target.uses += 1
        if needed:
            node = out.node = Node()
            node.edges, node.saved, node.backward, node.scope, node.grads = edges, saved, backward, self.scope, None
            node.frame = None if saved is None else frame
            self._nodes.append(node)
        return out

    def cast(self, x: Tensor, size: int, component: str | None = None) -> Tensor:
        """Convert to another element size."""
        if x.size == size:
            return x
        return self.record(self.new(x.count, size, component), (x,), None, [(x.count, x.size)])

    def tally(self, path: str, flops: int) -> None:
        """Count floating-point operations of the module at `path`."""
        if self.scope:
            path = self._at(path)
        self.paths[path] = None
        if self._frame is not None and self._frame.kept is not None and self._running_back:
            return  # a kept product is not computed again
        (self.backward_flops if self._running_back else self.flops)[path] += flops

    def count_once(self, path: str) -> None:
        """Note that the module at `path` does the same for any number of images."""
        self.once.add(self._at(path))

    @property
    def leaves(self) -> list[Leaf]:
        return list(self._leaves.values())

    def params(self, *, trained: bool = False) -> dict[str, int]:
        """Return the parameters of each module, or those that are trained."""
        rows: dict[str, int] = defaultdict(int)
        for leaf in self._leaves.values():
            if leaf.trained or not trained:
                rows[leaf.path] += leaf.count
        return rows

    def whole(self, model: Callable[[Tape, Tensor], Tensor], images: Tensor) -> Tensor:
        """Run the whole model."""
        return model(self, images)

    def per_image(self, flops: dict[str, int], images: int) -> dict[str, int]:
        """Return the FLOPs of a step of one image, from those of `images`."""
        return {path: each if path in self.once else each // images for path, each in flops.items()}

    def approximate(self, why: str) -> None:
        """Note that the bytes of this run are an estimate."""
        if why not in self.notes:
            self.notes.append(why)

    # ── backward ────────────────────────────────────────────────────────────────────────────────────────────────

    def backward(self, loss: Tensor) -> None:
        """Run backward: gradients are allocated, and saved tensors are freed."""
        self._component, self._running_back = "temporary", True
        root = self.new(1, loss.size)  # autograd's caller keeps it alive to the end
        loss.node.grads = root
        nodes, run = self._nodes, self._run
        while nodes:
            node = nodes.pop()
            if not isinstance(node, Node):
                node()
            elif node.grads is not None:
                run(node)

    def _run(self, node: Node) -> None:
        self.scope = node.scope
        if node.frame is not None:
            if node.frame.recomputed is None:
                self._recompute(node.frame)
            assert node.frame.recomputed is not None
            self._unpacked = node.frame.recomputed[node.saved]
            node.frame.recomputed[node.saved] = None
        back = node.backward
        outputs = [*back(node.grads)] if callable(back) else [each and self.new(*each) for each in back]
        self._unpacked = node.saved = node.grads = node.frame = None
        shared = len(outputs) == 2 and outputs[0] is outputs[1]
        for place, (target, slot) in enumerate(node.edges):
            grad, outputs[place] = outputs[place], None
            if target is None or grad is None:
                continue
            if type(target) is Leaf:
                if shared:  # a leaf keeps its own copy
                    grad = self.new(grad.count, grad.size)
                self._accumulate(target, grad)
            elif target.grads is None:
                target.grads = {slot: grad} if slot else grad
            else:
                self._add(target, slot, grad)
            del grad

    def _add(self, target: Node, slot: int, grad: Tensor) -> None:
        """Give a node another gradient: of another of its results, or one to be summed."""
        if type(target.grads) is Tensor:
            if not slot:
                target.grads = self._sum(target.grads, grad)
                return
            target.grads = {0: target.grads}
        assert isinstance(target.grads, dict)
        present = target.grads.pop(slot, None)
        target.grads[slot] = grad if present is None else self._sum(present, grad)

    def forget_recomputed(self) -> None:
        """Inside a backward function, release what checkpointing recomputed; what was saved stays."""
        self._unpacked = None

    def _accumulate(self, leaf: Leaf, grad: Tensor) -> None:
        """Give a parameter its gradient, when all of its uses have theirs."""
        leaf.uses -= 1
        if leaf.waiting is not None:
            grad, leaf.waiting = self._sum(leaf.waiting, grad), None
        if leaf.uses:
            leaf.waiting = grad
            return
        storage = grad.storage
        assert leaf.grad is None
        assert storage is not None
        if not storage.saved:  # two gradients may be views of one storage
            storage.saved = True
            self.grad_bytes[leaf.path] += storage.size
        if not self.has_grads:  # otherwise it is added to the existing gradient
            leaf.grad = grad
            self.meter.move(storage, "gradients")

    def _sum(self, first: Tensor, second: Tensor) -> Tensor:
        return self.new(first.count, first.size)

    def _recompute(self, frame: Frame) -> None:
        outer, self._casts = self._casts, {}
        component, self._component = self._component, "activations"
        self._frame, frame.recomputed = frame, []
        with suppress(EnoughError):
            frame.again()
        self._frame, self._component, self._casts = None, component, outer
