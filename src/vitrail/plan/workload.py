"""Workloads: the batch, precision, optimizer and other settings of a step, and the memory that it takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from html import escape
from typing import Any, Literal, get_args

from vitrail.charts.notebook import Shown, facts, html_table, parts_bar, swatch
from vitrail.charts.numbers import bytes_text
from vitrail.checkpointing import Checkpointing
from vitrail.codec import to_plain
from vitrail.errors import VitrailError, require, shown
from vitrail.pretraining import Dino, MaskedAutoencoder, MomentumContrast
from vitrail.rules import PositiveInt
from vitrail.tuning import Tuning
from vitrail.value import Value, one_of

__all__ = ["AttentionKernel", "Library", "Memory", "Optimizer", "Precision", "Shard", "Workload"]

Precision = Literal["fp32", "amp-bf16", "amp-fp16", "bf16"]
Optimizer = Literal["sgd", "momentum", "adamw", "adamw-fused", "adafactor", "adamw-8bit"]
AttentionKernel = Literal["eager", "flash", "efficient"]
Library = Literal["vitrail", "timm", "huggingface"]
ShardKind = Literal["ddp", "zero1", "zero2", "fsdp", "tensor"]


@dataclass(frozen=True)
class Shard(Value):
    """A step spread over `devices`: ddp copies all state, zero1 shards the optimizer's, zero2 gradients too, fsdp
    (PyTorch's `fully_shard`, by block) weights too; tensor splits the heads and hidden units of every block, and all
    devices see the same images. Options have the names that PyTorch gives them.

    >>> from vitrail.plan import Shard
    >>> str(Shard.of("fsdp:8,param_dtype=bf16,reshard_after_forward=no"))
    'fsdp:8,reshard_after_forward=no,param_dtype=bf16'
    """

    kind: ShardKind
    devices: PositiveInt
    gradient_as_bucket_view: bool = False
    """ddp: gradients are views of the buckets that are reduced, instead of tensors beside them."""
    reshard_after_forward: bool = True
    """fsdp: release a block's gathered weights after its forward, and gather them again in backward."""
    param_dtype: Literal["fp32", "bf16"] | None = None
    """fsdp: the type that weights are gathered and used in; None for their own."""
    reduce_dtype: Literal["fp32", "bf16"] | None = None
    """fsdp: the type that gradients are reduced in; None for that of the gathered weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.options:
            kind = "ddp" if name == "gradient_as_bucket_view" else "fsdp"
            require(self.kind == kind, f"{name} is an option of {kind}, not of {self.kind}; leave it out")

    @classmethod
    def of(cls, value: Shard | str) -> Shard:
        """Read `fsdp:8`, `fsdp:8,param_dtype=bf16` or a Shard."""
        if isinstance(value, Shard):
            return value
        match = re.fullmatch(r"([^:]*):(\d{1,9})((?:,[^,]*)*)", value) if isinstance(value, str) else None
        if match is None:
            raise VitrailError(f"shard {shown(value)} is not KIND:DEVICES; write fsdp:8, zero2:4 or ddp:2")
        options: dict[str, Any] = {}
        for text in match[3].split(",")[1:]:
            name, _, word = text.partition("=")
            name = one_of("shard option", name, tuple(each.name for each in fields(cls)[2:]))
            flag = name not in ("param_dtype", "reduce_dtype")
            options[name] = one_of(name, word or "yes", ("yes", "no")) == "yes" if flag else word
        return cls(one_of("shard", match[1], get_args(ShardKind)), int(match[2]), **options)

    @property
    def options(self) -> dict[str, str]:
        """The options that are not the default, in words."""
        words = {True: "yes", False: "no"}
        given = ((each.name, getattr(self, each.name)) for each in self.changed_fields()[2:])
        return {name: words[value] if isinstance(value, bool) else str(value) for name, value in given}

    def __str__(self) -> str:
        return ",".join([f"{self.kind}:{self.devices}", *(f"{name}={word}" for name, word in self.options.items())])


@dataclass(frozen=True, kw_only=True)
class Workload(Value):
    """One step: a batch through the model, forward only or with backward and an optimizer.

    >>> from vitrail.plan import Workload
    >>> Workload(batch=32, train=True, precision="amp-bf16")
    Workload(batch=32, train=True, precision='amp-bf16')
    """

    batch: PositiveInt = 1
    """Images per device and forward pass; the effective batch is `batch` · `accumulate`."""
    train: bool = False
    precision: Precision = "fp32"
    optimizer: Optimizer = "adamw"
    attention: AttentionKernel = "flash"
    checkpointing: Checkpointing | None = None
    """Which blocks recompute activations in backward, and what they keep."""
    accumulate: PositiveInt = 1
    shard: Shard | None = None
    offload: bool = False
    """Keep the optimizer's state on the CPU, and step there; fsdp (by its CPUOffloadPolicy) keeps weights and gradients
    there too."""
    library: Library = "vitrail"
    """The library whose implementation of the config is planned."""
    adaptive_tokens: PositiveInt | None = None
    """Patch tokens per image, for adaptive patches (default: the maximum)."""
    tuning: Tuning = Tuning()
    """Which weights a training step changes."""
    pretraining: Dino | MaskedAutoencoder | MomentumContrast | None = None
    """A self-supervised step, instead of one with labels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.shard is None or self.shard.param_dtype is None or not self.precision.startswith("amp"),
            f"param_dtype takes the place of autocast, and precision is {self.precision}; use fp32 or bf16",
        )
        if self.pretraining is None:
            return
        name = self.pretraining.KIND
        require(self.train, f"{name} is a training step; set train, or leave pretraining out")
        require(self.library == "vitrail", f"{name} is defined for vitrail's models alone; leave {self.library} out")
        require(self.tuning.is_everything, f"{name} trains everything; leave tuning out")
        require(self.shard is None, f"a sharded step of {name} is not modelled; leave shard out")
        twice = isinstance(self.pretraining, Dino) and self.pretraining.local_crops > 0
        selective = self.checkpointing is not None and self.checkpointing.kind == "selective"
        require(
            not (twice and selective and self.precision.startswith("amp")),
            "selective checkpointing fails in PyTorch under autocast where a block runs twice, as in dino with local "
            "crops: the second pass finds casts of weights that recomputing lacks; use full checkpointing, or bf16",
        )

    @property
    def arithmetic(self) -> Precision:
        """The precision that blocks compute in: that of FSDP's gathered weights, if they have their own type."""
        return (self.shard and self.shard.param_dtype) or self.precision

    @property
    def parameter_bytes(self) -> int:
        """Bytes per parameter; autocast keeps parameters in float32."""
        return 2 if self.precision == "bf16" else 4

    def to_json(self) -> dict[str, Any]:
        """Return what `vitrail plan --json` prints: parts that read themselves are text."""
        texts = {name: value and str(value) for name, value in vars(self).items() if name in ("checkpointing", "shard")}
        return asdict(self) | texts | {"pretraining": to_plain(self.pretraining)}


@dataclass(frozen=True, kw_only=True, repr=False)
class Memory(Shown):
    """Bytes of live tensors on one device, at the peak of the step and of each phase.

    >>> from vitrail import preset
    >>> from vitrail.plan import Workload, memory
    >>> step = memory(preset("B/16"), Workload(batch=8, train=True))
    >>> step, sum(step.bytes.values()) == step.peak_bytes
    (<Memory: 1.87 GiB at the peak (exact)>, True)
    """

    peak_bytes: int
    bytes: dict[str, int]
    """By component at the peak: weights, gradients, optimizer, activations, attention_maps, weight_casts, input,
    temporary. Their sum is `peak_bytes`."""
    phase_peaks: dict[str, int]
    """By phase: forward, backward, optimizer; inference has only forward."""
    exact: bool = True
    """Whether the bytes are verified against real allocations; otherwise they are an estimate that `note` explains."""
    note: str = ""

    def _summary(self) -> str:
        return f"{bytes_text(self.peak_bytes)} at the peak ({'exact' if self.exact else 'an estimate'})"

    def _panel(self) -> Iterator[str]:
        parts = {name: size for name, size in sorted(self.bytes.items(), key=lambda item: -item[1]) if size}
        yield parts_bar("Memory at the peak, by component", parts)
        yield html_table(
            ("", "component", "bytes", "share"),
            (
                (swatch(place), name.replace("_", " "), bytes_text(size), f"{size / self.peak_bytes:.1%}")
                for place, (name, size) in enumerate(parts.items())
            ),
            "llrr",
        )
        yield facts((f"peak in {phase}", bytes_text(size)) for phase, size in self.phase_peaks.items())
        if self.note:
            yield f"<div>{escape(self.note)}</div>"
