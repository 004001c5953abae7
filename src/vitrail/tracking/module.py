"""The cost of any nn.Module: a step on fake tensors, which have shapes but no memory, every storage followed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from vitrail.charts.notebook import Shown, facts, html_table
from vitrail.charts.numbers import bytes_text, count_text
from vitrail.errors import VitrailError, require
from vitrail.plan.timeline import Timeline
from vitrail.plan.workload import Memory, Workload
from vitrail.tracking.step import DTYPES, checkpoint_module, materialise, track_step
from vitrail.tracking.tracker import Tracker

__all__ = ["Input", "Tracked", "track"]

DEVICE = "cpu"
"""Whose kernels are followed: fake tensors of a card need a CUDA build of PyTorch."""
NOTE = (
    "followed with the kernels of PyTorch's CPU backend. A card's may keep other tensors, under autocast above all; "
    "and with dropout in attention, only a card has a fused kernel that keeps no maps"
)


@dataclass(frozen=True)
class Input:
    """The shape and type of a tensor that a module takes.

    >>> Input.parse("8x3x224x320"), Input.parse("8x77:int64").dtype
    (Input(shape=(8, 3, 224, 320), dtype=None), torch.int64)
    """

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None
    """None for the precision's."""

    @classmethod
    def parse(cls, text: str) -> Input:
        sides, _, kind = text.partition(":")
        dtype = getattr(torch, kind, None) if kind else None
        if not re.fullmatch(r"\d{1,9}(x\d{1,9})*", sides) or (kind and not isinstance(dtype, torch.dtype)):
            raise VitrailError(f"input {text!r} is not a shape; write 8x3x224x224, or 8x77:int64 for another type")
        shape = tuple(int(side) for side in sides.split("x"))
        require(min(shape) > 0, f"input {text!r} has a side of 0; give 1 or more")
        return cls(shape, dtype)

    def __str__(self) -> str:
        kind = f":{str(self.dtype).removeprefix('torch.')}" if self.dtype else ""
        return "x".join(map(str, self.shape)) + kind


@dataclass(frozen=True, kw_only=True, repr=False)
class Tracked(Shown):
    """What a step of a module takes: parameters, FLOPs of the whole batch, and the timeline of its bytes."""

    inputs: tuple[Input, ...]
    workload: Workload
    params: dict[str, int]
    """By module, without its submodules."""
    flops_forward: int
    flops_step: int
    loss: str
    """What is minimised, in words; nothing for inference."""
    timeline: Timeline

    @property
    def memory(self) -> Memory:
        return Memory(
            peak_bytes=self.timeline.peak_bytes,
            bytes=self.timeline.at_peak(),
            phase_peaks=self.timeline.phase_peaks,
            note=NOTE,
        )

    def rows(self, depth: int | None = None) -> list[tuple[str, int, int]]:
        """Return (module, parameters, bytes at the peak); with a depth, submodules below it are added to theirs."""
        size = self.timeline.at_peak("module")
        found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for path in dict.fromkeys([*self.params, *size]):
            short = path if depth is None else ".".join(path.split(".")[:depth])
            found[short][0] += self.params.get(path, 0)
            found[short][1] += size.get(path, 0)
        return [(path, *numbers) for path, numbers in found.items()]  # type: ignore[misc]

    def _summary(self) -> str:
        return f"{sum(self.params.values()):,} parameters, {bytes_text(self.timeline.peak_bytes)} at the peak"

    def _panel(self) -> Iterator[str]:
        yield facts(
            [("forward", count_text(self.flops_forward, "FLOP")), ("step", count_text(self.flops_step, "FLOP"))]
        )
        yield from self.memory._panel()
        rows = ((path or "outside", f"{params:,}", bytes_text(size)) for path, params, size in self.rows(2))
        yield html_table(("module", "parameters", "bytes at the peak"), rows, "lrr")


def track(model: nn.Module, inputs: tuple[Input, ...], workload: Workload, *, fake: bool = True) -> Tracked:
    """Follow one step of a module in steady state, on fake tensors; its own tensors are replaced by zeros.

    Build the module on the meta device (`with torch.device("meta"):`), and it never takes memory. With `fake=False`
    the step runs on real zeros, and takes what it reports.

    >>> with torch.device("meta"):
    ...     model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 5 * 7, 11))
    >>> track(model, (Input((2, 3, 5, 7)),), Workload())
    <Tracked: 1,166 parameters, 5.46 KiB at the peak>
    """
    require(workload.shard is None, "a sharded step of a module is not followed; leave shard out")
    require(not workload.offload, "the state of a module's optimizer is followed on one device; leave offload out")
    tracker = Tracker(DEVICE)
    minimised = _Loss(tracker)
    with ExitStack() as stack:
        if workload.attention == "eager":
            stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
        if fake:
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        dtype = DTYPES[workload.precision]
        materialise(model, DEVICE, dtype)
        if workload.checkpointing:
            checkpoint_module(model, workload.checkpointing)
        stack.enter_context(tracker)
        for path, part in model.named_modules():
            own = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
            tracker.follow(own, "weights", path)
        given = tuple(torch.zeros(each.shape, dtype=each.dtype or dtype, device=DEVICE) for each in inputs)
        tracker.follow(given, "input")
        with tracker.watch(model):
            track_step(model, given, minimised, workload, tracker, around_first=minimised.counter)
    total = minimised.counter.get_total_flops()
    return Tracked(
        inputs=inputs,
        workload=workload,
        params=_params(model),
        flops_forward=minimised.flops_forward * workload.accumulate if workload.train else total,
        flops_step=total,
        loss=minimised.words,
        timeline=tracker.timeline,
    )


def _params(model: nn.Module) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for name, value in model.named_parameters():  # shared ones once
        found[name.rpartition(".")[0]] += prod(value.shape)
    return dict(found)


class _Loss:
    """What is minimised, by what the module returns: its own number, the cross-entropy of logits, or a mean.

    Labels are made once, for the first step, and belong to the caller, as images do.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        aten = torch.ops.aten
        # PyTorch's registry lacks the CPU's attention, and counts the backward of grouped convolutions as if ungrouped
        corrected = {
            aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
            aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
            aten.convolution_backward: _convolution_backward_flops,
        }
        self.counter = FlopCounterMode(display=False, custom_mapping=corrected)
        self.flops_forward = 0
        self.words = ""
        self._labels: Tensor | None = None

    def __call__(self, outputs: Any) -> Tensor:
        self.flops_forward = self.flops_forward or self.counter.get_total_flops()
        floats = [each for each in tree_leaves(outputs) if isinstance(each, Tensor) and each.requires_grad]
        require(len(floats) > 0, "the module returns no tensor that depends on trained parameters; return one")
        logits = getattr(outputs, "logits", None)
        first = logits if isinstance(logits, Tensor) else floats[0]
        if first.ndim == 0:
            self.words = "the number that the module returns"
            return first
        if first.ndim == 2 and (len(floats) == 1 or first is logits):
            self.words = f"cross-entropy over {first.shape[1]:,} classes"
            if self._labels is None:
                self._labels = torch.zeros(len(first), dtype=torch.long, device=first.device)
                self._tracker.follow([self._labels], "input")
            return F.cross_entropy(first, self._labels)
        self.words = "the mean of what the module returns"
        return torch.stack([each.mean() for each in floats]).sum() if len(floats) > 1 else first.mean()


def _attention_flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(q, k, v)


def _attention_backward_flops(grad: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(grad, q, k, v)


def _convolution_backward_flops(grad: Any, x: Any, w: Any, *settings: Any, **_: Any) -> int:
    """The gradients of the input and of the weights each take what the convolution took."""
    transposed, wanted = settings[4], settings[7]
    places = x if transposed else grad
    return 2 * prod(w) * places[0] * prod(places[2:]) * sum(wanted[:2])
