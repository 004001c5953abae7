"""Steps spread over 2, 4 or 8 devices, drawn at random: DDP, ZeRO-1, FSDP2 with its options, tensor parallelism and
offload; some train only a part."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from cases import draw
from tunings import draw_tuning

from vitrail.config import Config
from vitrail.errors import VitrailError
from vitrail.plan import Shard, Workload, memory

__all__ = ["draw_sharded"]


def draw_sharded(count: int, seed: int) -> list[tuple[Config, Workload]]:
    """Steps of `draw`'s configs, whose widths for the most part do not divide by the devices."""
    random, cases = Random(seed), []
    for config, workload in draw(3 * count, seed + 2):
        if len(cases) == count:
            break
        shard = _shard(random, workload)
        spread = replace(workload, shard=shard, offload=workload.train and random.random() < 0.2)
        if workload.train and random.random() < 0.25:
            spread = replace(spread, tuning=draw_tuning(random, config))
        try:
            memory(config, spread)
        except VitrailError:
            continue
        cases.append((config, spread))
    return cases


def _shard(random: Random, workload: Workload) -> Shard | None:
    devices = random.choice([2, 4, 8])
    kind = random.random()
    if kind < 0.05:
        return None
    if kind < 0.25:
        return Shard("tensor", random.choice([2, 3, 4]))  # as many as have a share of the heads
    if kind < 0.35:
        return Shard("zero1", devices)
    if kind < 0.55:
        return Shard("ddp", devices, gradient_as_bucket_view=random.random() < 0.5)
    mixed = not workload.precision.startswith("amp") and random.random() < 0.6
    return Shard(
        "fsdp",
        devices,
        reshard_after_forward=random.random() < 0.7,
        param_dtype=random.choice(["bf16", "bf16", "fp32", None]) if mixed else None,
        reduce_dtype=random.choice(["fp32", "bf16", None]) if mixed else None,
    )
