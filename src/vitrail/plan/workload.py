"""What a model is asked to do: the other half, beside the config, of every question about memory and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from vitrail.errors import VitrailError, require
from vitrail.rules import positive

__all__ = ["AttentionKernel", "Library", "Memory", "Optimizer", "Precision", "Shard", "Workload"]

Precision = Literal["fp32", "amp-bf16", "amp-fp16", "bf16"]
Optimizer = Literal["sgd", "momentum", "adamw", "adamw-fused", "adafactor", "adamw-8bit"]
AttentionKernel = Literal["eager", "flash", "efficient"]
Library = Literal["vitrail", "timm", "huggingface"]


@dataclass(frozen=True)
class Shard:
    """State spread over `devices`: ddp (none), zero1 (optimizer), zero2 (+ gradients), fsdp (+ weights, FSDP2)."""

    kind: Literal["ddp", "zero1", "zero2", "fsdp"]
    devices: int

    def __post_init__(self) -> None:
        kinds = ("ddp", "zero1", "zero2", "fsdp")
        require(self.kind in kinds, f"shard {self.kind!r} is unknown; use one of {', '.join(kinds)}, like fsdp:8")
        positive("devices", self.devices)

    @classmethod
    def of(cls, text: str) -> Shard:
        """Read `fsdp:8`."""
        kind, colon, devices = text.partition(":")
        if not colon or not devices.isdigit():
            raise VitrailError(f"shard {text!r} is not KIND:DEVICES; write fsdp:8, zero2:4 or ddp:2")
        return cls(kind, int(devices))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One step: a batch through the model, forward only or with backward and an optimizer."""

    batch: int = 1
    """Images per device and forward pass: with `accumulate`, the effective batch is their product."""
    train: bool = False
    precision: Precision = "fp32"
    optimizer: Optimizer = "adamw"
    attention: AttentionKernel = "flash"
    checkpointing: bool = False
    accumulate: int = 1
    shard: Shard | None = None
    library: Library = "vitrail"
    """Whose implementation of the config is planned."""
    adaptive_tokens: int | None = None
    """Patch tokens per image, for adaptive patches, where the config alone cannot say."""

    def __post_init__(self) -> None:
        positive("batch", self.batch)
        positive("accumulate", self.accumulate)
        if self.adaptive_tokens is not None:
            positive("adaptive_tokens", self.adaptive_tokens)
        for name, options in (
            ("precision", Precision),
            ("optimizer", Optimizer),
            ("attention", AttentionKernel),
            ("library", Library),
        ):
            value = getattr(self, name)
            require(
                value in get_args(options), f"{name} {value!r} is unknown; use one of {', '.join(get_args(options))}"
            )


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
