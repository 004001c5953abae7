"""The tracker's answer to a planner's question: a step of the real model on fake tensors, every storage followed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from libraries import make
from tracker import Tracker
from vitrail.config import Config
from vitrail.plan import Workload

__all__ = ["follow_step"]

_KERNELS = torch.library.Library("aten", "IMPL")


@contextmanager
def _stand_in_for_cuda() -> Iterator[None]:
    """What the shim cannot give: answers that autocast asks for in Python, and operators that a CPU build, having no
    CUDA kernel of them, would take apart."""

    def new_tensor(self: torch.Tensor, data: Any) -> torch.Tensor:
        return torch.zeros(torch.tensor(data, device="cpu").shape, dtype=self.dtype, device=self.device)

    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::silu_backward", "CUDA"):
        _KERNELS.impl("silu_backward", lambda *args: None, "CUDA")
    with (
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True),
        patch.object(torch.Tensor, "new_tensor", new_tensor),
    ):
        yield


DTYPES = {"fp32": torch.float32, "amp-bf16": torch.float32, "amp-fp16": torch.float32, "bf16": torch.bfloat16}
KERNELS = {
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "eager": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION],
}


def follow_step(
    config: Config, workload: Workload, *, device: str = "cuda", fake: bool = True, log: list[str] | None = None
) -> Tracker:
    """Two steps, so that the second is the steady state; its phases' peaks are the answer."""
    with torch.device("meta"):
        model = make(config, workload)
    tracker = Tracker(device)
    with ExitStack() as stack:
        if device == "cuda":
            stack.enter_context(_stand_in_for_cuda())
            stack.enter_context(sdpa_kernel(KERNELS[workload.attention]))
        if fake:
            stack.enter_context(FakeTensorMode())
        dtype = DTYPES[workload.precision]
        _materialise(model, device, dtype)
        if workload.checkpointing:
            _checkpoint_blocks(model)
        stack.enter_context(tracker)
        tracker.follow([*model.parameters(), *model.buffers()], "model")
        images = torch.zeros(workload.batch, config.channels, *config.image, device=device, dtype=dtype)
        if not workload.train:
            model.eval()
            tracker.log = log
            with tracker.phase("forward"), torch.no_grad(), _autocast(workload, device):
                logits = model(images)
            del logits
            return tracker
        labels = torch.zeros(workload.batch, dtype=torch.long, device=device)
        optimizer = _optimizer(workload, model)
        for _ in range(2):
            tracker.phase_peaks.clear()
            tracker.log = log
            _step(workload, model, images, labels, optimizer, tracker, device)
    return tracker


def _step(workload: Workload, model: nn.Module, images: Any, labels: Any, optimizer: Any, tracker: Any, device: str):
    def forward_and_backward() -> None:
        if tracker.log is not None:
            tracker.log.clear()
        with tracker.phase("forward"), _autocast(workload, device):
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
        with tracker.phase("backward"):
            loss.backward()

    for _ in range(workload.accumulate):
        forward_and_backward()
    with tracker.phase("optimizer"):
        optimizer.step()
    optimizer.zero_grad()


@contextmanager
def _autocast(workload: Workload, device: str) -> Iterator[None]:
    half = torch.float16 if workload.precision == "amp-fp16" else torch.bfloat16
    with torch.autocast(device, dtype=half, enabled=workload.precision.startswith("amp")):
        yield


def _optimizer(workload: Workload, model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    match workload.optimizer:
        case "sgd":
            return torch.optim.SGD(parameters, lr=0.1, foreach=True)
        case "momentum":
            return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True)
        case "adamw":
            return torch.optim.AdamW(parameters, foreach=True)
        case "adamw-fused":
            return torch.optim.AdamW(parameters, fused=True)
    raise AssertionError(workload.optimizer)


def _materialise(model: nn.Module, device: str, dtype: torch.dtype) -> None:
    """Meta parameters and buffers → tensors of the device, of the workload's type where they are floats."""
    for part in model.modules():
        for store in (part._parameters, part._buffers):
            for name, value in store.items():
                if value is None:
                    continue
                kind = dtype if value.is_floating_point() else value.dtype
                fresh = torch.zeros(value.shape, dtype=kind, device=device)
                store[name] = nn.Parameter(fresh) if isinstance(value, nn.Parameter) else fresh  # type: ignore


def _checkpoint_blocks(model: nn.Module) -> None:
    """As `torch.utils.checkpoint` is meant to be used: a block at a time, not reentrant."""
    for name, part in model.named_modules():
        if re.search(r"(^|\.)(blocks|(encoder|vit)\.layers?)\.\d+$", name):
            forward = part.forward
            part.forward = lambda *args, f=forward, **kwargs: checkpoint(
                f, *args, use_reentrant=False, preserve_rng_state=False, **kwargs
            )
