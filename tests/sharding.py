"""A model spread over a fake process group: one rank of it, on fake tensors, with PyTorch's own DDP and FSDP2.

What a CPU build of PyTorch lacks is stood in for: streams and events of a card, which order operations and own no
tensor; DDP's timers; and the result of its all-reduce, which the fake group's has not.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import MagicMock, patch

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
import torch.distributed.fsdp as fsdp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from vitrail.plan.workload import Shard, Workload
from vitrail.tracking.step import BLOCKS, build_optimizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of torch.jit, by torch's own modules
    from torch.distributed.optim import ZeroRedundancyOptimizer

__all__ = ["optimizer_of", "process_group", "spread"]

DTYPES = {None: None, "fp32": torch.float32, "bf16": torch.bfloat16}


@contextmanager
def process_group(shard: Shard | None) -> Iterator[DeviceMesh | None]:
    """A fake group, of which this process is rank 0: the one with the largest shards."""
    if shard is None:
        yield None
        return
    with ExitStack() as stack:
        for module in [each for name, each in sys.modules.items() if name.startswith("torch.distributed")]:
            if "_get_device_handle" in vars(module):
                stack.enter_context(patch.object(module, "_get_device_handle", lambda kind="cuda": _Card()))
        stack.enter_context(patch.object(ShardingPropagator, *_untracked()))
        # which is the tensor itself, but another one on fake tensors
        stack.enter_context(patch.object(functional_collectives, "wait_tensor", lambda tensor: tensor))
        stack.enter_context(patch.object(torch.cuda, "get_device_capability", lambda *_: (8, 0)))
        stack.enter_context(patch.object(torch.accelerator, "current_stream", _Card.Stream))
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=shard.devices)
        try:
            yield init_device_mesh("cuda", (shard.devices,))
        finally:
            dist.destroy_process_group()


def _untracked() -> tuple[str, Any]:
    """DTensor's propagation of shapes, without modes: it makes whole tensors that are fake in every run."""
    name = "_propagate_tensor_meta_non_cached"
    propagate = getattr(ShardingPropagator, name)

    def untracked(*args: Any) -> Any:
        with _disable_current_modes():
            return propagate(*args)

    return name, untracked


def spread(model: nn.Module, workload: Workload, mesh: DeviceMesh | None) -> tuple[nn.Module, Callable[[bool], Any]]:
    """Return the module that runs, and the context of a micro-batch, which is told whether it is the last."""
    shard = workload.shard
    if shard is None or mesh is None:
        return model, nullcontext
    if shard.kind == "fsdp":
        _fully_shard(model, shard, mesh, offload=workload.offload)
        return model, lambda last: model.set_requires_gradient_sync(last) or nullcontext()  # type: ignore[operator]
    if shard.kind == "tensor":
        _parallelize(model, shard, mesh)
        return model, nullcontext
    assert shard.kind in ("ddp", "zero1")
    return _replicate(model, shard) if workload.train else (model, nullcontext)


def _fully_shard(model: nn.Module, shard: Shard, mesh: DeviceMesh, *, offload: bool) -> None:
    settings: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": fsdp.MixedPrecisionPolicy(
            param_dtype=DTYPES[shard.param_dtype], reduce_dtype=DTYPES[shard.reduce_dtype]
        ),
    }
    if not shard.reshard_after_forward:
        settings["reshard_after_forward"] = False
    if offload:
        settings["offload_policy"] = fsdp.CPUOffloadPolicy(pin_memory=False)
    for name, part in list(model.named_modules()):
        if re.search(BLOCKS, name):
            fsdp.fully_shard(part, **settings)
    fsdp.fully_shard(model, **settings)


def _parallelize(model: nn.Module, shard: Shard, mesh: DeviceMesh) -> None:
    """Split every block by heads and hidden units; the rows of qkv are meant to be ordered by heads first."""
    for block in model.blocks:  # type: ignore[union-attr]
        block.attention.num_heads //= shard.devices
        plan = {
            "attention.qkv": ColwiseParallel(),
            "attention.out": RowwiseParallel(),
            "mlp.fc1": ColwiseParallel(),
            "mlp.fc2": RowwiseParallel(),
        }
        parallelize_module(block, mesh, plan, src_data_rank=None)


def optimizer_of(model: nn.Module, workload: Workload) -> Any:
    """An optimizer on the host; or one of two groups, since an update of many tensors takes no plain ones among those
    that are split; or None for the usual one."""
    kind = workload.shard.kind if workload.shard else None
    if not workload.train:
        return None
    if workload.offload and kind != "fsdp":
        return HostOptimizer(workload, model)
    trained = [each for each in model.parameters() if each.requires_grad]
    if kind == "zero1":
        usual = build_optimizer(workload, trained)
        options = {
            name: value for name, value in usual.defaults.items() if name in ("foreach", "fused", "lr", "momentum")
        }
        return ZeroRedundancyOptimizer(trained, type(usual), **options)
    if kind != "tensor":
        return None
    groups = [[each for each in trained if isinstance(each, DTensor) is split] for split in (True, False)]
    return build_optimizer(workload, [{"params": group} for group in groups if group])


def _replicate(model: nn.Module, shard: Shard) -> tuple[nn.Module, Callable[[bool], Any]]:
    """DDP without its rebuilding of buckets, which reads a tensor's values: it changes their order, not their bytes."""
    shared = DistributedDataParallel(
        model, gradient_as_bucket_view=shard.gradient_as_bucket_view, init_sync=False, forward_sync_buffers=False
    )

    def reduce(_, bucket):  # DDP checks annotations, and takes none
        dist.all_reduce(bucket.buffer().div_(shard.devices))
        done: Any = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    shared.register_comm_hook(None, reduce)
    shared.logger = MagicMock()
    shared.reducer = _Reducer(shared.reducer)  # type: ignore[assignment]
    return shared, lambda last: nullcontext() if last else shared.no_sync()


class _Reducer:
    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


class _Card:
    """What FSDP asks of `torch.cuda`."""

    class Event:
        def record(self, *_: Any) -> None: ...

    class Stream:
        def __init__(self, priority: int = 0) -> None: ...
        def wait_event(self, event: Any) -> None: ...
        def wait_stream(self, stream: Any) -> None: ...
        def is_capturing(self) -> bool:
            return False

        def record_event(self) -> Any:
            return _Card.Event()

    def current_stream(self) -> Stream:
        return _Card.Stream()

    def stream(self, stream: Any) -> Any:
        return nullcontext()

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def is_available(self) -> bool:
        return True


class HostOptimizer:
    """An optimizer on the CPU, with weights of its own: gradients are copied there, and new weights copied back."""

    def __init__(self, workload: Workload, model: nn.Module) -> None:
        self._weights: list[tuple[Tensor, Tensor]] = [
            (each, nn.Parameter(_local(each.detach()).cpu())) for each in model.parameters() if each.requires_grad
        ]
        self._inner = build_optimizer(workload, [host for _, host in self._weights])
        self.state: dict[Tensor, Any] = {}

    def zero_grad(self) -> None:
        for weights, _ in self._weights:
            weights.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for weights, host in self._weights:
            assert weights.grad is not None
            host.grad = _local(weights.grad).cpu()
        self._inner.step()
        for weights, host in self._weights:
            _local(weights).copy_(host)


def _local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank has."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor
