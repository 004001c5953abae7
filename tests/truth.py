"""The tracker's answer to a planner's question: a step of the real model on fake tensors, every storage followed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from libraries import make, tune
from sharding import optimizer_of, process_group, spread
from vitrail.config import Config, ViTConfig
from vitrail.plan import Workload
from vitrail.tracking.step import DTYPES, checkpoint_module, materialise, track_step
from vitrail.tracking.tracker import Tracker

__all__ = ["follow_step"]

_KERNELS = torch.library.Library("aten", "IMPL")


@contextmanager
def _stand_in_for_cuda() -> Iterator[None]:
    """What the shim cannot give: answers that autocast asks for in Python, and operators that a CPU build, having no
    CUDA kernel of them, would take apart."""

    def new_tensor(self: torch.Tensor, data: Any) -> torch.Tensor:
        return torch.zeros(torch.tensor(data, device="cpu").shape, dtype=self.dtype, device=self.device)

    for name in ("silu_backward", "_fused_rms_norm", "_fused_rms_norm_backward"):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
            _KERNELS.impl(name, lambda *args: None, "CUDA")
    with (
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True),
        patch.object(torch.Tensor, "new_tensor", new_tensor),
    ):
        yield


KERNELS = {
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "eager": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION],
}


def follow_step(config: Config, workload: Workload, *, device: str = "cuda", fake: bool = True) -> Tracker:
    """Two steps, so that the second is the steady state; its phases' peaks are the answer."""
    with torch.device("meta"):
        model = make(config, workload)
        tune(model, config, workload)
    tracker = Tracker(device)
    with ExitStack() as stack:
        mesh = stack.enter_context(process_group(workload.shard))
        if device == "cuda":
            stack.enter_context(_stand_in_for_cuda())
            stack.enter_context(sdpa_kernel(KERNELS[workload.attention]))
        if fake:
            stack.enter_context(FakeTensorMode())
        dtype = DTYPES[workload.precision]
        materialise(model, device, dtype)
        if workload.checkpointing:
            checkpoint_module(model, workload.checkpointing)
        stack.enter_context(tracker)
        stack.enter_context(tracker.resizes())
        runs, micro_batch = spread(model, workload, mesh)
        tracker.follow([*model.parameters(), *model.buffers()], "weights")
        if workload.pretraining is not None:
            views = workload.pretraining.views(config.image, workload.batch)
            given = tuple(torch.zeros(n, config.channels, *size, device=device, dtype=dtype) for n, size in views)
            track_step(model, given, lambda loss: loss, workload, tracker, advance=model.advance)  # type: ignore[arg-type]
            return tracker
        images = torch.zeros(workload.batch, *config.input_shape, device=device, dtype=dtype)
        merged = config.visual_tokens if isinstance(config, ViTConfig) and config.merger else 1
        labels = torch.zeros(workload.batch * merged, dtype=torch.long, device=device) if workload.train else None
        optimizer = optimizer_of(model, workload)
        loss = partial(_cross_entropy, labels)
        track_step(runs, (images,), loss, workload, tracker, optimizer=optimizer, micro_batch=micro_batch)
    return tracker


def _cross_entropy(labels: Any, logits: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, -2), labels)
