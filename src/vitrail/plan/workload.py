"""What a model is asked to do: the other half, beside the config, of every question about memory and time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from vitrail.errors import VitrailError, shown
from vitrail.rules import PositiveInt
from vitrail.value import Value, one_of

__all__ = ["AttentionKernel", "Library", "Memory", "Optimizer", "Precision", "Shard", "Workload"]

Precision = Literal["fp32", "amp-bf16", "amp-fp16", "bf16"]
Optimizer = Literal["sgd", "momentum", "adamw", "adamw-fused", "adafactor", "adamw-8bit"]
AttentionKernel = Literal["eager", "flash", "efficient"]
Library = Literal["vitrail", "timm", "huggingface"]
ShardKind = Literal["ddp", "zero1", "zero2", "fsdp"]


@dataclass(frozen=True)
class Shard(Value):
    """State spread over `devices`: ddp (none), zero1 (optimizer), zero2 (+ gradients), fsdp (+ weights, FSDP2)."""

    kind: ShardKind
    devices: PositiveInt

    @classmethod
    def of(cls, value: Shard | str) -> Shard:
        """Read `fsdp:8` or a Shard."""
        if isinstance(value, Shard):
            return value
        found = re.fullmatch(r"([^:]*):(\d{1,9})", value) if isinstance(value, str) else None
        if found is None:
            raise VitrailError(f"shard {shown(value)} is not KIND:DEVICES; write fsdp:8, zero2:4 or ddp:2")
        return cls(one_of("shard", found[1], get_args(ShardKind)), int(found[2]))

    def __str__(self) -> str:
        return f"{self.kind}:{self.devices}"


@dataclass(frozen=True, kw_only=True)
class Workload(Value):
    """One step: a batch through the model, forward only or with backward and an optimizer."""

    batch: PositiveInt = 1
    """Images per device and forward pass: with `accumulate`, the effective batch is their product."""
    train: bool = False
    precision: Precision = "fp32"
    optimizer: Optimizer = "adamw"
    attention: AttentionKernel = "flash"
    checkpointing: bool = False
    accumulate: PositiveInt = 1
    shard: Shard | None = None
    library: Library = "vitrail"
    """Whose implementation of the config is planned."""
    adaptive_tokens: PositiveInt | None = None
    """Patch tokens per image, for adaptive patches, where the config alone cannot say."""

    @property
    def parameter_bytes(self) -> int:
        """Bytes of one parameter: autocast keeps them in float32."""
        return 2 if self.precision == "bf16" else 4


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of live tensors on one device, at the step's highest point and at each phase's."""

    peak_bytes: int
    bytes: dict[str, int]
    """By component at the peak: weights, gradients, optimizer, activations, attention_maps, weight_casts, input,
    temporary. They add up to `peak_bytes`."""
    phase_peaks: dict[str, int]
    """By phase: forward, backward, optimizer (inference has forward only)."""
    exact: bool = True
    """Proven equal to a tracker of real allocations; otherwise an estimate, and `note` says of what quality."""
    note: str = ""
