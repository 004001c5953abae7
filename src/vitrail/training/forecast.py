"""Forecast a run's memory with the planner, before anything is built."""

from __future__ import annotations

from pathlib import Path

from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError
from vitrail.parts import Adaptive
from vitrail.plan.cards import Card
from vitrail.plan.changes import changes
from vitrail.plan.memory import memory
from vitrail.plan.workload import Memory, Shard, Workload
from vitrail.training.recipe import Recipe

__all__ = ["check_memory", "forecast", "free_bytes", "workload_of"]


def workload_of(config: Config, recipe: Recipe, *, world: int = 1, shard: str = "ddp") -> Workload:
    adaptive = isinstance(config, ViTConfig) and isinstance(config.embedding, Adaptive)
    return Workload(
        batch=max(1, recipe.batch // (recipe.accumulate * world)),
        train=True,
        precision=recipe.precision,
        optimizer="adamw-fused",  # muon keeps one moment per matrix instead of two: slightly less
        checkpointing=recipe.checkpointing,
        accumulate=recipe.accumulate,
        shard=Shard("fsdp" if shard == "fsdp" else "ddp", world) if world > 1 else None,
        adaptive_tokens=config.grid.area if adaptive else None,
        tuning=recipe.tuning,
    )


def forecast(config: Config, workload: Workload) -> Memory | None:
    """Return the memory of a step; None if the planner does not support the config."""
    try:
        return memory(config, workload)
    except VitrailError:
        return None


def free_bytes(device: str = "cpu") -> int | None:
    """Return the free bytes of the machine, the container or the card; None if unknown."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[0]
    if device != "cpu":
        return None
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit.isdigit():
            found.append(int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return min(found, default=None)


def check_memory(config: Config, workload: Workload, planned: Memory, free: int) -> None:
    """Raise VitrailError if a step does not fit, with what to change first."""
    if planned.peak_bytes <= free:
        return
    machine = Card(key="this machine", name="this machine", visible_bytes=free, tflops={})
    advice = [f"{change.what} ({change.price})" for change in changes(config, workload, machine)]
    needed, available = planned.peak_bytes / 2**30, free / 2**30
    first = ", then ".join(advice[:3]) or "the model"
    raise VitrailError(f"a step needs {needed:.1f} GiB and {available:.1f} GiB are free; change first: {first}")
