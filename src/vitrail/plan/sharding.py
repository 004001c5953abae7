"""One device of a step that is spread over several by PyTorch's DDP (zero1: with ZeroRedundancyOptimizer) or FSDP2
(`fully_shard` on every block and on the whole), storage by storage.

It is the steady step of rank 0, whose shards are the largest, in the order in which Python allocates and releases:
streams of a card overlap communication with computation, and may keep a buffer a little longer than is planned here.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

from vitrail.config import Config
from vitrail.plan.graph import Leaf, Tensor
from vitrail.plan.meter import Meter
from vitrail.plan.repetition import Run, flat
from vitrail.plan.step import Step, run_step
from vitrail.plan.tape import Tape
from vitrail.plan.tensor_parallel import TensorTape, check_splits
from vitrail.plan.workload import Workload

__all__ = ["EXACT", "micro_batches", "optimizer_part", "shard_sizes"]

EXACT = ("ddp", "zero1", "fsdp", "tensor")
"""Kinds of sharding that are followed tensor by tensor; of the others, the bytes are estimated."""
BLOCK = re.compile(r"(?:.*\.)?(?:blocks|vit\.layers)\.\d+(?=\.|$)")
"""The path of a block, which FSDP shards, gathers and reduces at a time; other tensors belong to the root."""

MicroBatch = Literal["only", "first", "between", "last"]
"""Which forward and backward before an update: gradients are reduced after the last."""


def micro_batches(
    config: Config,
    workload: Workload,
    *,
    meter: Callable[[], Meter] = Meter,
    adapt: Callable[[type[Tape]], Callable[..., Tape]] = lambda tape: tape,
) -> Iterator[Step]:
    """Yield each kind of forward and backward of a sharded step that has its own memory, the last one last.

    Each has a meter of its own, and runs on a kind of tape that `adapt` may derive from the usual one.
    """
    assert workload.shard is not None
    if workload.shard.kind == "tensor":
        check_splits(config, workload)
        tape = partial(adapt(TensorTape), ways=workload.shard.devices)
        yield run_step(config, workload, kind=tape, meter=meter())
        return
    if workload.shard.kind != "fsdp" and not workload.train:
        yield run_step(config, workload, kind=adapt(Tape), meter=meter())
        return
    survey = run_step(config, workload, kind=adapt(_AllKinds), meter=meter()).tape
    kinds: list[MicroBatch] = ["first", "between", "last"] if workload.accumulate > 1 else ["only"]
    if workload.accumulate == 2:
        kinds.remove("between")
    tape = adapt(FsdpTape if workload.shard.kind == "fsdp" else DdpTape)
    for kind in kinds:
        spread = partial(tape, workload=workload, survey=survey, micro_batch=kind)
        yield run_step(config, workload, kind=spread, meter=meter())


def shard_sizes(tape: Tape, devices: int, *, trained: bool = False) -> dict[str, int]:
    """Return the elements of a device's shards by module: first sides are cut, and rounded up."""
    sizes: dict[str, int] = defaultdict(int)
    for leaf in tape.leaves:
        if leaf.trained or not trained:
            sizes[leaf.path] += _shard(leaf, devices)
    return sizes


def optimizer_part(tape: Tape, devices: int) -> list[int]:
    """Return the sizes of the tensors whose state PyTorch's ZeroRedundancyOptimizer keeps on rank 0: the largest tensor
    that is left goes to the rank that has least."""
    trained = (leaf for leaf in tape.leaves if leaf.trained)
    counts = sorted((count for leaf in trained for count in [leaf.count] * tape.times(leaf.path)), reverse=True)
    loads, own = [(0, rank) for rank in range(devices)], []
    for count in counts:
        load, rank = heapq.heappop(loads)
        heapq.heappush(loads, (load + count, rank))
        own += [count] if rank == 0 else []
    return own


def _shard(leaf: Leaf, devices: int) -> int:
    return -(-leaf.rows // devices) * (leaf.count // leaf.rows)


class _AllKinds(Tape):
    """A tape that runs the first two and the last two groups of a run by themselves: what is gathered or reduced in one
    block is released in the next, so that only those between change the live bytes alike."""

    def repeat(self, name: str, block: Callable[[Tensor, int], Tensor], x: Tensor, runs: list[Run]) -> Tensor:
        cut: list[Run] = []
        for groups in flat(runs):
            ends = 2 if len(groups) > 4 else len(groups)
            middle = groups[ends : len(groups) - ends]
            cut += [[group] for group in groups[:ends]]
            cut += [middle, *([group] for group in groups[-ends:])] if middle else []
        given = [x]  # handed on, so that the first block releases it
        del x
        return super().repeat(name, block, given.pop(), cut)


class DdpTape(_AllKinds):
    """Distributed data parallel (ddp, zero1): every gradient is copied into a bucket as soon as it is there."""

    def __init__(self, *args: Any, workload: Workload, survey: Tape, micro_batch: MicroBatch, **settings: Any) -> None:
        settings["has_grads"] = micro_batch in ("between", "last")
        super().__init__(*args, **settings)
        assert workload.shard is not None
        self._as_views = workload.shard.gradient_as_bucket_view
        self._reduces = micro_batch in ("only", "last")
        self.held = self._buckets(survey)

    def _buckets(self, survey: Tape) -> list[Tensor]:
        """Allocate what the gradients are copied into, and the gradients of earlier micro-batches."""
        count = survey.total(survey.params(trained=True))
        held = [self.new(count, self.size, "gradients" if self._as_views else "reduced_gradients")]
        if self.has_grads:
            held.append(self.new(survey.total(survey.grad_bytes), 1, "gradients"))
        return held

    def _accumulate(self, leaf: Leaf, grad: Tensor) -> None:
        before = self.grad_bytes[leaf.path]
        super()._accumulate(leaf, grad)
        if not leaf.uses and self._as_views and self._reduces:
            leaf.grad = None
            earlier = self.held[-1].storage
            if self.has_grads and earlier is not None:
                self.meter.shrink(earlier, self.grad_bytes[leaf.path] - before)


class _Unit:
    """What FSDP gathers and reduces at a time, and the tensors that are alive for it."""

    __slots__ = ("gathering", "gradients", "leaves", "name", "reduced", "shard", "weights")

    def __init__(self, name: str) -> None:
        self.name, self.shard = name, 0
        """Elements of this device's shard."""
        self.leaves: dict[int, Leaf] = {}
        self.gradients: list[Tensor] = []
        """What micro-batches that are not reduced leave: whole gradients, on every device."""
        self.gathering: Tensor | None = None
        self.weights: Tensor | None = None
        self.reduced = False


class _Units(dict[str, _Unit]):
    """Units by name, made when they are asked for."""

    def __missing__(self, name: str) -> _Unit:
        self[name] = _Unit(name)
        return self[name]


class FsdpTape(_AllKinds):
    """Fully sharded data parallel: a block's weights are gathered before it runs, and its gradients reduced after."""

    def __init__(self, *args: Any, workload: Workload, survey: Tape, micro_batch: MicroBatch, **settings: Any) -> None:
        shard = workload.shard
        assert shard is not None
        sizes = {"fp32": 4, "bf16": 2, None: workload.parameter_bytes}
        settings["size"] = sizes[shard.param_dtype]
        super().__init__(*args, **settings)
        self._stored, self._devices, self._offload = workload.parameter_bytes, shard.devices, workload.offload
        self._reduced = self.size if shard.reduce_dtype is None else sizes[shard.reduce_dtype]
        self._reshards, self._micro_batch = shard.reshard_after_forward, micro_batch
        self._upcasts = self._reduced != self.size
        """Gradients that wait for later micro-batches are kept in the type in which they are reduced."""
        self.has_grads = micro_batch in ("between", "last") and not self._upcasts
        self._units = _Units()
        self._order: list[_Unit] = []
        """Units in the order in which they ended forward; backward gathers the one before ahead of time."""
        self._last_gathered: Tensor | None = None
        self._last_reduced: Tensor | None = None
        self.shards: list[Tensor] = []
        """The gradients' shards."""
        for leaf in survey.leaves:
            self._units[_unit_name(leaf.path)].shard += _shard(leaf, shard.devices)
        self._root = self._units[""]
        if micro_batch in ("between", "last"):
            self._hold(survey)
        if not self.train:
            self._stay_gathered(survey)

    def _hold(self, survey: Tape) -> None:
        """Allocate the whole gradients of earlier micro-batches; those of blocks that are not run are one tensor."""
        whole = {path: size // self._stored * self.size for path, size in survey.grad_bytes.items()}
        rows, size = (survey.params(trained=True), self._reduced) if self._upcasts else (whole, 1)
        for path, count in rows.items():
            self._units[_unit_name(path)].gradients.append(self.new(count, size, "gradients"))
        self.shards.append(self.new(survey.total(rows) - sum(rows.values()), size, "gradients"))

    def _stay_gathered(self, survey: Tape) -> None:
        """Allocate the weights that an inference finds gathered: the root's, and all if none are released."""
        sizes = shard_sizes(survey, self._devices)
        kept = {path: size for path, size in sizes.items() if not (self._reshards and _unit_name(path))}
        weights = self.new(survey.total(kept) * self._devices, self.size, "gathered_weights")
        for path in kept:
            self._units[_unit_name(path)].weights = weights

    # ── forward ─────────────────────────────────────────────────────────────────────────────────────────────────

    def whole(self, model: Callable[[Tape, Tensor], Tensor], images: Tensor) -> Tensor:
        if self.train:
            self._nodes.append(self._end)
        used = self.cast(images, self.size, "input") if self.size != self._stored else images
        self._unshard(self._root, forward=True)
        out = model(self, used)
        self._end_forward(self._root, out)
        self._last_gathered = None
        return out

    def parameter(self, path: str, count: int, name: str = "weight", *, rows: int | None = None) -> Tensor:
        tensor = super().parameter(path, count, name, rows=rows)
        leaf = self._leaves[path, name]
        self._units[_unit_name(path)].leaves[id(leaf)] = leaf
        return tensor

    def buffer(self, path: str, count: int, size: int, name: str = "table") -> Tensor:
        if self.size != self._stored:
            self.approximate("fsdp: buffers are planned in the type of gathered weights, and PyTorch keeps their own")
        return super().buffer(path, count, size, name)

    def repeat(self, name: str, block: Callable[[Tensor, int], Tensor], x: Tensor, runs: list[Run]) -> Tensor:
        def around(x: Tensor, number: int) -> Tensor:
            if self._running_back:  # recomputed, with weights that are there
                return block(x, number)
            unit = self._units[f"{name}.{number}"]
            assert unit.shard, f"{name}.{number} is run, and was not surveyed"
            self._unshard(unit, forward=True)
            if self.train and x.node is not None:
                self._nodes.append(lambda: self._reduce_scatter(unit))
            given = [x]
            del x
            out = block(given.pop(), number)
            self._end_forward(unit, out)
            return out

        given = [x]
        del x
        return super().repeat(name, around, given.pop(), runs)

    def _all_gather(self, unit: _Unit) -> Tensor:
        self.at(unit.name)
        copies = self.size != self._stored or self._offload
        copied = self.new(unit.shard, self.size, "gathered_weights") if copies else None
        gathered = self.new(unit.shard * self._devices, self.size, "gathered_weights")
        del copied
        return gathered

    def _unshard(self, unit: _Unit, *, forward: bool) -> None:
        if unit.weights is not None:
            return
        gathered = unit.gathering or self._all_gather(unit)
        unit.gathering = None
        self.at(unit.name)
        unit.weights = self.new(unit.shard * self._devices, self.size, "gathered_weights")
        if forward:  # a buffer is kept until the next unit has its weights
            self._last_gathered = gathered

    def _end_forward(self, unit: _Unit, out: Tensor) -> None:
        if self._reshards and unit is not self._root:
            unit.weights = None
        self._order.append(unit)
        if out.node is not None:
            place = len(self._order) - 1
            self._nodes.append(lambda: self._begin_backward(unit, place))

    # ── backward ────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin_backward(self, unit: _Unit, place: int) -> None:
        self._unshard(unit, forward=False)
        before = self._order[place - 1] if place else unit
        if before.weights is None and before.gathering is None:
            before.gathering = self._all_gather(before)

    def _reduce_scatter(self, unit: _Unit) -> None:
        self.at(unit.name)
        unit.reduced = True
        leaves = [leaf for leaf in unit.leaves.values() if leaf.trained]
        if self._upcasts:
            for leaf in leaves:
                self._add_upcast(unit, leaf)
        unit.weights = None
        if self._micro_batch in ("first", "between"):
            return
        self._last_reduced = None
        count = sum(_shard(leaf, self._devices) for leaf in leaves)
        if not count:
            return
        self._last_reduced = self.new(count * self._devices, self._reduced, "reduced_gradients")
        unit.gradients.clear()
        for leaf in leaves:
            leaf.grad = None
        shard = self.new(count, self._reduced, "gradients")
        if self._reduced != self._stored:
            shard = self.new(count, self._stored, "gradients")
        if not self._offload:
            self.shards.append(shard)

    def _add_upcast(self, unit: _Unit, leaf: Leaf) -> None:
        """Between micro-batches, gradients are kept in the type in which they are reduced."""
        if self._micro_batch == "first":
            unit.gradients.append(self.new(leaf.count, self._reduced, "gradients"))
        if self._micro_batch != "only":
            leaf.grad = None

    def _end(self) -> None:
        """Reduce what has no input that needs a gradient, the root first, and release the buffers."""
        for unit in self._root, *self._order:
            if not unit.reduced:
                self._reduce_scatter(unit)
        for unit in self._order:
            unit.gathering = None
        self._last_reduced = None


def _unit_name(path: str) -> str:
    found = BLOCK.match(path)
    return found[0] if found else ""
