"""Devices as data, with sources: the memory that a program sees, dense peak rates and memory bandwidth.

What a maker's software takes of that memory beside the tensors is in `vitrail.plan.allocators`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from vitrail.charts.numbers import bytes_text
from vitrail.errors import VitrailError
from vitrail.rules import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from vitrail.value import Value

__all__ = ["CARDS", "GIB", "MIB", "Card", "Rate", "Vendor", "card"]

GIB = 2**30
MIB = 2**20

Rate = Literal["fp32", "bf16", "fp16"]
Vendor = Literal["NVIDIA", "AMD", "Apple", "Google", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Card(Value):
    """A device: the bytes visible to a process, which are fewer than advertised, and its dense peak rates."""

    key: str
    name: str
    visible_bytes: PositiveInt
    tflops: dict[Rate, PositiveFloat]
    """Dense rates, for 16-bit formats with tensor cores and fp32 accumulation; what is not known is missing."""
    gigabytes_per_second: NonNegativeFloat = 0.0
    flash: bool = True
    """Whether PyTorch's flash attention runs on it (Ampere and later; AMD's CDNA 2 and later)."""
    workspace_bytes: NonNegativeInt = 0
    """A workspace of matrix products, if it is not its maker's usual one."""
    vendor: Vendor = "unknown"
    source: str = "given by the user"
    note: str = ""


def _card(
    vendor: Vendor,
    key: str,
    name: str,
    gib: float,
    bf16: float | None,
    fp16: float | None,
    fp32: float | None,
    gigabytes_per_second: float,
    source: str,
    *,
    flash: bool = True,
    note: str = "",
    workspace_bytes: int = 0,
) -> Card:
    rates: dict[Rate, float | None] = {"fp32": fp32, "bf16": bf16, "fp16": fp16}
    return Card(
        key=key,
        name=name,
        visible_bytes=int(gib * GIB),
        tflops={kind: value for kind, value in rates.items() if value is not None},
        gigabytes_per_second=gigabytes_per_second,
        flash=flash,
        workspace_bytes=workspace_bytes,
        vendor=vendor,
        source=source,
        note=note,
    )


def _nvidia(
    key: str, name: str, gib: float, *rates: float | None, sheet: str = "data sheet", flash: bool = True, **more: Any
) -> Card:
    """Rates: bf16, fp16, fp32 in TFLOP/s, and GB/s."""
    source = f"vitrail's own table, after NVIDIA's {sheet} for {name}; not checked against it again"
    return _card("NVIDIA", key, name, gib, *rates, source, flash=flash, **more)  # type: ignore[arg-type]


def _amd(
    key: str, name: str, gib: float, half: float, fp32: float, gigabytes_per_second: float, note: str = ""
) -> Card:
    source = f"AMD's data sheet for {name}; unchecked: not looked up in the source"
    note += "visible bytes are the advertised ones; the allocator is CUDA's, and its context is assumed as on CUDA"
    return _card("AMD", key, name, gib, half, half, fp32, gigabytes_per_second, source, note=note)


def _apple(key: str, name: str, memory_gib: int, fp32: float | None, gigabytes_per_second: float) -> Card:
    """A GPU may use about three quarters of the unified memory."""
    rate = "; no rate is published" if fp32 is None else ""
    return _card(
        "Apple",
        key,
        f"{name} {memory_gib} GB",
        memory_gib * 3 / 4,
        None,
        None,
        fp32,
        gigabytes_per_second,
        f"Apple's press release for {name}; unchecked: not looked up in the source",
        flash=False,
        note="three quarters of the unified memory; the allocator of MPS packs tensors in heaps of up to 1 GiB, which "
        f"are counted; what Metal itself takes is assumed{rate}",
    )


def _tpu(version: str, gb: int, bf16: float, gigabytes_per_second: float) -> Card:
    return _card(
        "Google",
        f"tpu-{version}",
        f"TPU {version}",
        gb * 10**9 / GIB,
        bf16,
        None,
        None,
        gigabytes_per_second,
        f"Google Cloud's documentation of TPU {version}, which was read",
        flash=False,
        note="what the runtime reserves and tiles of 8×128 add is counted, as reported for other TPUs; XLA fuses "
        "operations and reuses buffers, and the plan assumes eager PyTorch's tensors, so it is an estimate",
    )


CARDS = (
    _nvidia("t4", "Tesla T4", 14.6, None, 65, 8.1, 320, flash=False),
    _nvidia("v100-16", "Tesla V100 16 GB", 15.77, None, 125, 15.7, 900, flash=False),
    _nvidia("v100-32", "Tesla V100 32 GB", 31.75, None, 125, 15.7, 900, flash=False),
    _nvidia("a10", "A10", 21.99, 125, 125, 31.2, 600),
    _nvidia("a100-40", "A100 40 GB", 39.4, 312, 312, 19.5, 1555),
    _nvidia("a100-80", "A100 80 GB", 79.15, 312, 312, 19.5, 2039),
    _nvidia("l4", "L4", 22.03, 121, 121, 30.3, 300),
    _nvidia("l40s", "L40S", 44.4, 362, 362, 91.6, 864),
    _nvidia("h100-sxm", "H100 SXM", 79.1, 989, 989, 67, 3350, workspace_bytes=32 * MIB),
    _nvidia("h200", "H200", 139.7, 989, 989, 67, 4800, workspace_bytes=32 * MIB),
    _nvidia("b200", "B200", 178.35, 2250, 2250, 75, 7672),
    _nvidia("rtx-3060", "GeForce RTX 3060", 11.7, 25, 25, 12.7, 360, sheet="GA10x white paper"),
    _nvidia("rtx-3090", "GeForce RTX 3090", 23.6, 71, 71, 35.6, 936, sheet="GA10x white paper"),
    _nvidia("rtx-4090", "GeForce RTX 4090", 23.52, 165, 165, 82.6, 1008, sheet="Ada white paper"),
    _nvidia("rtx-5090", "GeForce RTX 5090", 31.37, 209, 209, 105, 1792, sheet="RTX Blackwell white paper"),
    _nvidia("rtx-6000-ada", "RTX 6000 Ada", 47.37, 364, 364, 91.1, 960),
    _nvidia(
        "jetson-agx-orin-64",
        "Jetson AGX Orin 64 GB",
        61,
        *(42, 42, 5.3, 204.8),
        note="memory is shared with the CPU; visible bytes and tensor rates are approximate",
    ),
    _amd("mi210", "Instinct MI210", 64, 181, 22.6, 1638),
    _amd("mi250x", "Instinct MI250X", 64, 191.5, 23.9, 1638, "one of its two dies, each of which is a device; "),
    _amd("mi300x", "Instinct MI300X", 192, 1307.4, 163.4, 5300),
    _amd("mi325x", "Instinct MI325X", 256, 1307.4, 163.4, 6000),
    _amd("rx-7900-xtx", "Radeon RX 7900 XTX", 24, 122.8, 61.4, 960),
    _apple("m1-max-64", "M1 Max", 64, 10.4, 400),
    _apple("m2-ultra-192", "M2 Ultra", 192, 27.2, 800),
    _apple("m4-max-128", "M4 Max", 128, None, 546),
    _tpu("v5e", 16, 197, 819),
    _tpu("v5p", 95, 459, 2765),
    _tpu("v6e", 32, 918, 1640),
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
        return Card(key=text.strip(), name=f"a card of {bytes_text(size)}", visible_bytes=size, tflops={})
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
