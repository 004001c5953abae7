"""GPUs as data, with sources, and the memory that a GPU needs beyond the planned tensors: modelled, not measured.

A plan counts live tensors. On a card the CUDA context, cuBLAS, the attention kernel's workspace and PyTorch's caching
allocator need more. The amount varies with driver and version, so there are three verdicts:

    optimistic  no fragmentation; the smallest context observed
    likely      typical values
    safe        room for fragmentation and a second cuBLAS handle; the largest context observed
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError
from vitrail.parts import FullAttention
from vitrail.plan.workload import AttentionKernel, Memory, Workload
from vitrail.rules import NonNegativeFloat, PositiveFloat, PositiveInt
from vitrail.value import Value

__all__ = [
    "ALLOWANCES",
    "CARDS",
    "CUBLAS_WORKSPACE_BYTES",
    "GIB",
    "MIB",
    "Allowance",
    "Bound",
    "Card",
    "Verdict",
    "card",
    "flash_scratch_bytes",
    "kernel_on",
    "needed_bytes",
    "roofline",
    "verdicts",
]

GIB = 2**30
MIB = 2**20

CUBLAS_WORKSPACE_BYTES = 8_519_680
"""Per handle and stream."""


# ── cards ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Card(Value):
    """A GPU: the bytes visible to a process, which are fewer than advertised, and its dense peak rates."""

    key: str
    name: str
    visible_bytes: PositiveInt
    tflops: dict[Literal["fp32", "bf16", "fp16"], PositiveFloat]
    """Dense rates, for 16-bit formats with tensor cores and fp32 accumulation; unsupported formats are missing."""
    gigabytes_per_second: NonNegativeFloat = 0.0
    flash: bool = True
    """Whether PyTorch's flash attention runs on it (Ampere and later)."""
    source: str = "given by the user"
    note: str = ""


def _card(
    key: str,
    name: str,
    gib: float,
    bf16: float | None,
    fp16: float,
    fp32: float,
    gigabytes_per_second: NonNegativeFloat,
    *,
    sheet: str = "data sheet",
    flash: bool = True,
    note: str = "",
) -> Card:
    rates = {"fp32": fp32, "bf16": bf16, "fp16": fp16}
    return Card(
        key=key,
        name=name,
        visible_bytes=int(gib * GIB),
        tflops={kind: value for kind, value in rates.items() if value is not None},  # type: ignore[misc]
        gigabytes_per_second=gigabytes_per_second,
        flash=flash,
        source=f"vitrail's own table, after NVIDIA's {sheet} for {name}; not checked against it again",
        note=note,
    )


CARDS = (
    _card("t4", "Tesla T4", 14.6, None, 65, 8.1, 320, flash=False),
    _card("v100-16", "Tesla V100 16 GB", 15.77, None, 125, 15.7, 900, flash=False),
    _card("v100-32", "Tesla V100 32 GB", 31.75, None, 125, 15.7, 900, flash=False),
    _card("a10", "A10", 21.99, 125, 125, 31.2, 600),
    _card("a100-40", "A100 40 GB", 39.4, 312, 312, 19.5, 1555),
    _card("a100-80", "A100 80 GB", 79.15, 312, 312, 19.5, 2039),
    _card("l4", "L4", 22.03, 121, 121, 30.3, 300),
    _card("l40s", "L40S", 44.4, 362, 362, 91.6, 864),
    _card("h100-sxm", "H100 SXM", 79.1, 989, 989, 67, 3350),
    _card("h200", "H200", 139.7, 989, 989, 67, 4800),
    _card("b200", "B200", 178.35, 2250, 2250, 75, 7672),
    _card("rtx-3060", "GeForce RTX 3060", 11.7, 25, 25, 12.7, 360, sheet="GA10x white paper"),
    _card("rtx-3090", "GeForce RTX 3090", 23.6, 71, 71, 35.6, 936, sheet="GA10x white paper"),
    _card("rtx-4090", "GeForce RTX 4090", 23.52, 165, 165, 82.6, 1008, sheet="Ada white paper"),
    _card("rtx-5090", "GeForce RTX 5090", 31.37, 209, 209, 105, 1792, sheet="RTX Blackwell white paper"),
    _card("rtx-6000-ada", "RTX 6000 Ada", 47.37, 364, 364, 91.1, 960),
    _card(
        "jetson-agx-orin-64",
        "Jetson AGX Orin 64 GB",
        61,
        42,
        42,
        5.3,
        204.8,
        note="memory is shared with the CPU; visible bytes and tensor rates are approximate",
    ),
)

_UNITS = {"": 1, "b": 1, "gib": GIB, "mib": MIB, "gb": 10**9, "mb": 10**6, "g": GIB, "m": MIB}


def card(text: str) -> Card:
    """Find a card by name, or make one from an amount of memory.

    >>> card("RTX 4090").key, card("24GiB").visible_bytes
    ('rtx-4090', 25769803776)
    """
    custom = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if custom and custom[2] in _UNITS and (custom[2] or "." not in custom[1]):
        size = int(Fraction(custom[1]) * _UNITS[custom[2]])
        if size < MIB:
            raise VitrailError(f"gpu {text!r} is {size} bytes, less than 1 MiB; write 24GiB or 25769803776")
        return Card(key=text.strip(), name=f"a card of {size / GIB:.2f} GiB", visible_bytes=size, tflops={})
    wanted = _bare(text)
    for each in CARDS:
        if wanted in (_bare(each.key), _bare(each.name)):
            return each
    starts = [each.key for each in CARDS if wanted and _bare(each.key).startswith(wanted)]
    if len(starts) == 1:
        return card(starts[0])
    nearest = starts or _nearest(wanted)
    raise VitrailError(f"gpu {text!r} is not a known card; try {', '.join(nearest)}, or give its memory, like 24GiB")


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _nearest(wanted: str) -> list[str]:
    from difflib import get_close_matches  # only on the way to an error

    close = get_close_matches(wanted, [_bare(each.key) for each in CARDS], n=3, cutoff=0.4)
    return [each.key for bare in close for each in CARDS if _bare(each.key) == bare] or [each.key for each in CARDS]


def kernel_on(target: Card, workload: Workload) -> AttentionKernel:
    """Return the kernel that would run: on old cards and in fp32, PyTorch uses "efficient" instead of "flash"."""
    if workload.attention == "flash" and (not target.flash or workload.precision == "fp32"):
        return "efficient"
    return workload.attention


# ── bytes on the card ───────────────────────────────────────────────────────────────────────────────────────────

VerdictName = Literal["optimistic", "likely", "safe"]


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """The memory that a verdict adds to the live bytes."""

    name: VerdictName
    context_bytes: int
    cublas_handles: int
    open_segments: int
    """Allocator segments that are reserved but not full: this many of 2 MiB for small blocks and of 20 MiB for medium
    ones."""
    fragmentation: Fraction
    """The share of the live bytes lost by rounding to 512 bytes, or to 2 MiB above 10 MiB, and by gaps."""


ALLOWANCES = (
    Allowance(
        name="optimistic", context_bytes=3 * GIB // 10, cublas_handles=1, open_segments=0, fragmentation=Fraction(0)
    ),
    Allowance(name="likely", context_bytes=GIB // 2, cublas_handles=1, open_segments=1, fragmentation=Fraction(3, 100)),
    Allowance(
        name="safe", context_bytes=7 * GIB // 10, cublas_handles=2, open_segments=2, fragmentation=Fraction(10, 100)
    ),
)


def flash_scratch_bytes(config: Config, workload: Workload) -> int:
    """Return the workspace of flash attention's backward: dq accumulated in fp32, and a row sum."""
    flash = workload.train and workload.attention == "flash" and workload.precision != "fp32"
    if not (flash and isinstance(config, ViTConfig) and isinstance(config.attention, FullAttention)):
        return 0
    if config.position.acts_on == "scores" or not config.attention.fused or config.head_width > 256:
        return 0  # flash supports neither a bias on the scores nor wider heads
    patches = config.grid.area if workload.adaptive_tokens is None else workload.adaptive_tokens
    tokens = _ceil(config.prefix.count + patches, 128)
    return 4 * workload.batch * config.num_heads * tokens * (_ceil(config.head_width, 32) + 1)


def _ceil(value: int, step: int) -> int:
    return -(-value // step) * step


def needed_bytes(memory: Memory, allowance: Allowance, scratch_bytes: int = 0) -> int:
    """Return the bytes that a process would take on a card, by one allowance."""
    peaks = dict(memory.phase_peaks)
    if "backward" in peaks:
        peaks["backward"] += scratch_bytes
    live = max(memory.peak_bytes, *peaks.values())
    live = _ceil(live + int(live * allowance.fragmentation), 512)
    fixed = allowance.context_bytes + allowance.cublas_handles * CUBLAS_WORKSPACE_BYTES
    return live + fixed + allowance.open_segments * (2 + 20) * MIB


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a step fits a card, by one allowance."""

    name: VerdictName
    needed_bytes: int
    free_bytes: int
    """Free bytes of the card; negative if some are missing."""

    @property
    def fits(self) -> bool:
        return self.free_bytes >= 0


def verdicts(memory: Memory, target: Card, scratch_bytes: int = 0) -> tuple[Verdict, ...]:
    """Return the optimistic, likely and safe verdicts: modelled, not measured."""
    sizes = [needed_bytes(memory, allowance, scratch_bytes) for allowance in ALLOWANCES]
    return tuple(
        Verdict(name=allowance.name, needed_bytes=size, free_bytes=target.visible_bytes - size)
        for allowance, size in zip(ALLOWANCES, sizes, strict=True)
    )


# ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound of a step's time on a card, not a prediction."""

    seconds: float
    compute_seconds: float
    memory_seconds: float
    limited_by: Literal["compute", "memory"]
    note: str = ""


def roofline(target: Card, workload: Workload, *, flops: int, traffic_bytes: int) -> Bound | None:
    """Return a lower bound of a step's time: FLOPs at the peak rate or bytes at full bandwidth, whichever is larger.

    None for a card that was given only by its memory.
    """
    wanted = {"fp32": "fp32", "amp-bf16": "bf16", "bf16": "bf16", "amp-fp16": "fp16"}[workload.precision]
    if not target.tflops:
        return None
    rate = target.tflops.get(wanted, target.tflops["fp32"])  # type: ignore[call-overload]
    note = "" if wanted in target.tflops else f"{target.name} has no {wanted} tensor cores: counted at its fp32 rate"
    compute, moved = flops / (rate * 1e12), traffic_bytes / (target.gigabytes_per_second * 1e9)
    return Bound(
        seconds=max(compute, moved),
        compute_seconds=compute,
        memory_seconds=moved,
        limited_by="compute" if compute >= moved else "memory",
        note=note,
    )
