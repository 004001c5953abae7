"""One process or many: the same loop under torchrun, with DDP or FSDP2.

Launch with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: elastic restarts fail without it more often than not. States of
FSDP runs are torch.distributed.checkpoint's, which execute code when read: only ever read one's own runs.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from vitrail.errors import VitrailError
from vitrail.nn.block import Block
from vitrail.rules import NonNegativeInt, PositiveInt
from vitrail.value import Value

__all__ = ["ALONE", "World", "find_device", "read_shards", "save_shards", "world_of"]


@dataclass(frozen=True, kw_only=True)
class World(Value):
    """The processes of a run, and the rank of this one."""

    rank: NonNegativeInt = 0
    size: PositiveInt = 1
    shard: Literal["ddp", "fsdp"] = "ddp"
    restarts: NonNegativeInt = 0
    """Number of times that torchrun has restarted the processes."""
    device: str = "cpu"
    """This process's device: with several cards, the one of its local rank."""

    def share(self, objective: nn.Module) -> nn.Module:
        """Wrap the module for distributed training; FSDP changes the module itself."""
        if self.size == 1:
            return objective
        if self.shard == "ddp":
            return nn.parallel.DistributedDataParallel(objective)
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        for block in [module for module in objective.modules() if isinstance(module, Block)]:
            fully_shard(block)
        fully_shard(objective)
        register_fsdp_forward_method(objective, "logits")
        return objective

    @contextmanager
    def micro(self, shared: nn.Module, *, last: bool) -> Iterator[None]:
        """Context of a micro-batch's backward: gradients are synchronised once per update, after the last."""
        if self.size > 1 and self.shard == "fsdp":
            shared.set_requires_gradient_sync(last)  # type: ignore[operator]
        if isinstance(shared, nn.parallel.DistributedDataParallel) and not last:
            with shared.no_sync():
                yield
        else:
            yield

    def reshard(self, objective: nn.Module) -> None:
        """Free weights that FSDP left gathered after a forward pass without a backward."""
        if self.size > 1 and self.shard == "fsdp":
            objective.reshard()  # type: ignore[operator]

    def mean(self, *values: Tensor) -> tuple[float, ...]:
        """Average values over the processes."""
        together = torch.stack([value.detach().double() for value in values])
        if self.size > 1:
            dist.all_reduce(together)
            together /= self.size
        return tuple(together.tolist())

    def sum(self, *values: int) -> tuple[int, ...]:
        together = torch.tensor(values, device=self.device)
        if self.size > 1:
            dist.all_reduce(together)
        return tuple(together.tolist())

    def whole(self, norm: Tensor) -> Tensor:
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def first(self, signal: int | None) -> int | None:
        """Return the signal that any process got, so that all stop after the same step."""
        if self.size == 1:
            return signal
        asked = torch.tensor(signal or 0, device=self.device)
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        return int(asked) or None

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


ALONE = World()


def find_device(name: str | None) -> str:
    """Return the given device, after checking it; by default cuda if available, otherwise cpu."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # each backend raises its own type
        reason = str(error).splitlines()[0].split(". ")[0]
        raise VitrailError(f"device {name!r} cannot be used here ({reason}); use cpu, or leave --device out") from None
    return name


@contextmanager
def world_of(shard: Literal["ddp", "fsdp"], device: str = "cpu") -> Iterator[World]:
    """Return the world that torchrun's environment describes, or a single process."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield World(device=device)
        return
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield World(
            rank=dist.get_rank(),
            size=dist.get_world_size(),
            shard=shard,
            restarts=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            device=device,
        )
    finally:
        dist.destroy_process_group()


# ── states of sharded runs ──────────────────────────────────────────────────────────────────────────────────────


def save_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    """Write this process's shards into a folder that rank 0 made."""
    from torch.distributed import checkpoint

    dist.barrier()
    checkpoint.save(tensors, checkpoint_id=folder)
    dist.barrier()


def read_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    """Read into these tensors, whatever the number of processes that saved them."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.api import CheckpointException

    alone = not dist.is_initialized()
    try:
        with warnings.catch_warnings():
            if alone:  # torch warns that it reads in one process, as intended
                warnings.simplefilter("ignore", UserWarning)
            checkpoint.load(tensors, checkpoint_id=folder, no_dist=alone)
    except CheckpointException as error:  # a BaseException
        raise VitrailError(
            f"{folder} cannot be read ({str(error).splitlines()[0]}); resume from another state"
        ) from None
