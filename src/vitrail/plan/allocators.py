"""What a device's software takes beside the tensors, by maker: modelled, not measured, with what each rests on."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from vitrail.plan.cards import GIB, MIB, Card, Vendor

__all__ = ["ALLOCATORS", "VERDICTS", "Allocator", "Allowance", "VerdictName", "allocator_of"]

VerdictName = Literal["optimistic", "likely", "safe"]
VERDICTS: tuple[VerdictName, ...] = ("optimistic", "likely", "safe")


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """The memory that a verdict adds to the live bytes."""

    context_bytes: int
    """The driver's and the runtime's own."""
    workspaces: int
    """Workspaces of the library of matrix products: one for every handle and stream that is used."""
    open_heaps: int
    """Heaps (CUDA: segments) of every size class that are reserved but not full."""
    fragmentation: Fraction
    """The share of the live bytes that rounding, padding and gaps add."""


@dataclass(frozen=True, kw_only=True)
class Allocator:
    """How a maker's memory is given to tensors.

    >>> from vitrail.plan.cards import card
    >>> allocator_of(card("m2-ultra-192")).heap_bytes // 2**20
    1064
    """

    name: str
    rounding_bytes: int
    heap_bytes: int
    """One heap of every size class that smaller tensors are packed in; 0 if there are none."""
    workspace_bytes: int
    allowances: dict[VerdictName, Allowance]
    known: str
    """What is known, and where it was read."""
    assumed: str
    """What is not known, and is assumed."""


def _allowances(
    context_bytes: tuple[int, int, int], lost: tuple[Fraction, Fraction, Fraction]
) -> dict[VerdictName, Allowance]:
    counts = ((1, 0), (1, 1), (2, 2))
    return {
        name: Allowance(context_bytes=context, workspaces=workspaces, open_heaps=heaps, fragmentation=share)
        for name, context, (workspaces, heaps), share in zip(VERDICTS, context_bytes, counts, lost, strict=True)
    }


_CONTEXT = (3 * GIB // 10, GIB // 2, 7 * GIB // 10)
_LOST = (Fraction(0), Fraction(3, 100), Fraction(10, 100))

_CUDA = Allocator(
    name="PyTorch's caching allocator of CUDA",
    rounding_bytes=512,
    heap_bytes=(2 + 20) * MIB,  # blocks up to 1 MiB, and up to 10 MiB
    workspace_bytes=8_519_680,  # :4096:2:16:8
    allowances=_allowances(_CONTEXT, _LOST),
    known="rounding to 512 bytes, segments of 2 and 20 MiB (PyTorch's CUDACachingAllocator.cpp); cuBLAS takes "
    "8,519,680 bytes for every handle and stream, on Hopper 32 MiB (pytorch/pytorch#89027)",
    assumed="context of 0.3, 0.5 or 0.7 GiB, by driver and version; 0, 3 or 10 % lost to gaps",
)

ALLOCATORS: dict[Vendor, Allocator] = {
    "NVIDIA": _CUDA,
    "unknown": _CUDA,
    "AMD": Allocator(
        name="PyTorch's caching allocator of CUDA, translated to HIP",
        rounding_bytes=_CUDA.rounding_bytes,
        heap_bytes=_CUDA.heap_bytes,
        workspace_bytes=76 * MIB,
        allowances=_CUDA.allowances,
        known="PyTorch for HIP reuses torch.cuda and its allocator (PyTorch's notes on HIP semantics); hipBLASLt's "
        "workspace is 76 MiB by default (pytorch/pytorch#139300)",
        assumed="the context, and what is lost to gaps, as on CUDA",
    ),
    "Apple": Allocator(
        name="PyTorch's heap allocator of MPS",
        rounding_bytes=16 * 2**10,  # a page
        heap_bytes=(8 + 32 + 1024) * MIB,  # buffers up to 1 MiB, below 10 MiB, and below 512 MiB
        workspace_bytes=0,
        allowances=_allowances((0, GIB // 4, GIB // 2), _LOST),
        known="buffers are packed in heaps of 8 MiB, 32 MiB and 1 GiB, larger ones are rounded to 2 MiB (PyTorch's "
        "MPSAllocator.h); allocations fail beyond 1.7 times the recommended working set (its environment variables), "
        "where macOS has long been swapping",
        assumed="0, 0.25 or 0.5 GiB for Metal and cached graphs; 0, 3 or 10 % lost to gaps",
    ),
    "Google": Allocator(
        name="XLA's buffer assignment",
        rounding_bytes=512,
        heap_bytes=0,  # buffers are placed when a program is compiled
        workspace_bytes=0,
        allowances=_allowances((530 * MIB, 530 * MIB, 1280 * MIB), (Fraction(0), Fraction(5, 100), Fraction(12, 100))),
        known="the runtime keeps 530 MiB of a TPU v2's 8 GiB (sokrypton/ColabFold#62) and 1.25 GiB of a v4's 32 GiB "
        "(erfanzar/EasyDeL#166); arrays are padded to tiles of 8×128, of which programs reported 95 to 100 % and "
        "arguments 89 % as used (the same, and pytorch/xla#1735)",
        assumed="the same on v5 and v6; eager PyTorch's tensors, though XLA fuses operations and reuses buffers",
    ),
}


def allocator_of(target: Card) -> Allocator:
    """Return the allocator of a device; CUDA's where the maker is not known."""
    return ALLOCATORS[target.vendor]
