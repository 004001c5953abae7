"""What a step takes on a card beyond the planned tensors, and a bound on its time: modelled, not measured.

A plan counts live tensors. On a card the driver's context, cuBLAS, the attention kernel's workspace and the allocator
(`vitrail.plan.allocators`) need more. The amount varies with driver and version, so there are three verdicts:

    optimistic  no fragmentation; the smallest context observed
    likely      typical values
    safe        room for fragmentation and a second cuBLAS handle; the largest context observed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitrail.config import Config, ViTConfig
from vitrail.parts import FullAttention
from vitrail.plan.allocators import VERDICTS, VerdictName, allocator_of
from vitrail.plan.cards import Card, Rate
from vitrail.plan.workload import AttentionKernel, Memory, Precision, Workload
from vitrail.traced import highest

__all__ = [
    "Bound",
    "Verdict",
    "flash_scratch_bytes",
    "kernel_on",
    "needed_bytes",
    "roofline",
    "verdicts",
]


def kernel_on(target: Card, workload: Workload) -> AttentionKernel:
    """Return the kernel that would run: on old cards and in fp32, PyTorch uses "efficient" instead of "flash"."""
    if workload.attention == "flash" and (not target.flash or workload.arithmetic == "fp32"):
        return "efficient"
    return workload.attention


# ── bytes on the card ───────────────────────────────────────────────────────────────────────────────────────────


def flash_scratch_bytes(config: Config, workload: Workload) -> int:
    """Return the workspace of flash attention's backward: dq accumulated in fp32, and a row sum."""
    flash = workload.train and workload.attention == "flash" and workload.arithmetic != "fp32"
    if not (flash and isinstance(config, ViTConfig) and isinstance(config.attention, FullAttention)):
        return 0
    if config.position.acts_on == "scores" or not config.attention.fused or config.head_width > 256:
        return 0  # flash supports neither a bias on the scores nor wider heads
    patches = config.steps * config.grid.area if workload.adaptive_tokens is None else workload.adaptive_tokens
    tokens = _ceil(config.prefix.count + patches, 128)
    return 4 * workload.batch * config.num_heads * tokens * (_ceil(config.head_width, 32) + 1)


def _ceil(value: int, step: int) -> int:
    return -(-value // step) * step


def needed_bytes(memory: Memory, target: Card, verdict: VerdictName = "likely", scratch_bytes: int = 0) -> int:
    """Return the bytes that a process would take on a card, by one verdict."""
    peaks, allocator = dict(memory.phase_peaks), allocator_of(target)
    allowance = allocator.allowances[verdict]
    if "backward" in peaks:
        peaks["backward"] += scratch_bytes
    live, _ = highest([(peak, {}) for peak in peaks.values()])
    lost = live * allowance.fragmentation.numerator // allowance.fragmentation.denominator
    fixed = allowance.context_bytes + allowance.open_heaps * allocator.heap_bytes
    workspace_bytes = target.workspace_bytes or allocator.workspace_bytes
    return _ceil(live + lost, allocator.rounding_bytes) + fixed + allowance.workspaces * workspace_bytes


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a step fits a card."""

    name: VerdictName
    needed_bytes: int
    free_bytes: int
    """Free bytes of the card; negative if some are missing."""

    @property
    def fits(self) -> bool:
        return self.free_bytes >= 0


def verdicts(memory: Memory, target: Card, scratch_bytes: int = 0) -> tuple[Verdict, ...]:
    """Return the optimistic, likely and safe verdicts: modelled, not measured."""
    sizes = [needed_bytes(memory, target, verdict, scratch_bytes) for verdict in VERDICTS]
    return tuple(
        Verdict(name=verdict, needed_bytes=size, free_bytes=target.visible_bytes - size)
        for verdict, size in zip(VERDICTS, sizes, strict=True)
    )


# ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────


IMAGENET_IMAGES = 1_281_167
"""Training images of ImageNet-1k."""
RATES: dict[Precision, Rate] = {"fp32": "fp32", "amp-bf16": "bf16", "bf16": "bf16", "amp-fp16": "fp16"}


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound of a step's time on a card, not a prediction."""

    seconds: float
    compute_seconds: float
    memory_seconds: float
    limited_by: Literal["compute", "memory"]
    seconds_per_image: float
    seconds_per_epoch: float
    """For the training images of ImageNet-1k, on this one card."""
    note: str = ""


def roofline(target: Card, workload: Workload, *, flops: int, traffic_bytes: int, images: int = 1) -> Bound | None:
    """Return a lower bound of a step's time: FLOPs at the peak rate or bytes at full bandwidth, whichever is larger.

    `flops` and `traffic_bytes` are those of all its `images`. None for a card whose rate is not known: one given only
    by its memory, or without a published rate.
    """
    wanted: Rate = RATES[workload.arithmetic]
    rate = target.tflops.get(wanted) or target.tflops.get("fp32")
    if rate is None:
        return None
    note = "" if wanted in target.tflops else f"no {wanted} rate is known for {target.name}: counted at its fp32 rate"
    compute, moved = flops / (rate * 1e12), traffic_bytes / (target.gigabytes_per_second * 1e9)
    seconds = max(compute, moved)
    return Bound(
        seconds=seconds,
        compute_seconds=compute,
        memory_seconds=moved,
        limited_by="compute" if compute >= moved else "memory",
        seconds_per_image=seconds / images,
        seconds_per_epoch=seconds / images * IMAGENET_IMAGES,
        note=note,
    )
