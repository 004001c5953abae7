"""A step of a module under a tracker: two of them, so that the second is the steady state."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.checkpointing import Checkpointing
from vitrail.errors import VitrailError, require
from vitrail.nn.checkpointing import checkpoint_blocks
from vitrail.plan.workload import Workload
from vitrail.tracking.tracker import Tracker

__all__ = [
    "BLOCKS",
    "DTYPES",
    "Loss",
    "autocast",
    "build_optimizer",
    "checkpoint_module",
    "materialise",
    "track_step",
]

DTYPES = {"fp32": torch.float32, "amp-bf16": torch.float32, "amp-fp16": torch.float32, "bf16": torch.bfloat16}
"""The type of parameters and images; autocast keeps them in float32."""
BLOCKS = r"(^|\.)(blocks|(encoder|vit)\.layers?)\.\d+$"
"""Names of the modules that checkpointing recomputes one at a time."""

Loss = Callable[[Any], Tensor]
"""What a model returns → the number that is minimised."""


def track_step(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    loss: Loss,
    workload: Workload,
    tracker: Tracker,
    around_first: Any = None,
    optimizer: Any = None,
    micro_batch: Callable[[bool], Any] = nullcontext,
    advance: Callable[[], None] | None = None,
) -> None:
    """Run a step of the model under an active tracker, which then has the events and peaks of this step.

    A first step, inside the context `around_first`, makes the optimizer's state. Every forward and backward pass runs
    inside the context `micro_batch(last)`, which is told whether it is the last before the optimizer steps; `advance`
    follows the optimizer's step.
    """
    first = around_first or nullcontext()
    if not workload.train:
        model.eval()
        for context in (first, nullcontext()):
            tracker.restart()
            with context, tracker.phase("forward"), torch.no_grad(), autocast(workload, tracker.device):
                outputs = model(*inputs)
            del outputs
        tracker.stop()
        return
    model.train()
    optimizer = optimizer or build_optimizer(workload, [each for each in model.parameters() if each.requires_grad])
    owners = _owners(model)

    def accumulated(parameter: Tensor) -> None:
        tracker.follow([parameter.grad], "gradients", owners.get(id(parameter), ""))

    handles = [
        each.register_post_accumulate_grad_hook(accumulated) for each in model.parameters() if each.requires_grad
    ]
    for context in (first, nullcontext()):
        optimizer.zero_grad()
        tracker.restart()
        with context:
            for number in range(1, workload.accumulate + 1):
                with micro_batch(number == workload.accumulate):
                    _forward_and_backward(model, inputs, loss, workload, tracker)
        with tracker.phase("optimizer"):
            optimizer.step()
            if advance is not None:
                advance()
        for parameter, state in optimizer.state.items():
            tracker.follow(state.values(), "optimizer", owners.get(id(parameter), ""))
    tracker.stop()
    for handle in handles:
        handle.remove()


def _forward_and_backward(model: nn.Module, inputs: Any, loss: Loss, workload: Workload, tracker: Tracker) -> None:
    with tracker.phase("forward"), autocast(workload, tracker.device):
        outputs = model(*inputs)
        minimised = loss(outputs)
    with tracker.phase("backward"):
        minimised.backward()


@contextmanager
def autocast(workload: Workload, device: str) -> Iterator[None]:
    half = torch.float16 if workload.precision == "amp-fp16" else torch.bfloat16
    with torch.autocast(device, dtype=half, enabled=workload.precision.startswith("amp")):
        yield


def build_optimizer(workload: Workload, parameters: list[Any]) -> torch.optim.Optimizer:
    """Build PyTorch's optimizer over parameters, or over groups of them."""
    require(len(parameters) > 0, "the module has no parameter that is trained; leave --train out")
    match workload.optimizer:
        case "sgd":
            return torch.optim.SGD(parameters, lr=0.1, foreach=True)
        case "momentum":
            return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True)
        case "adamw":
            return torch.optim.AdamW(parameters, foreach=True)
        case "adamw-fused":
            return torch.optim.AdamW(parameters, fused=True)
    raise VitrailError(
        f"optimizer {workload.optimizer} is not part of PyTorch; use adamw, adamw-fused, sgd or momentum"
    )


def _owners(model: nn.Module) -> dict[int, str]:
    """Return the path of each parameter's module, by the parameter's identity."""
    return {id(value): name.rpartition(".")[0] for name, value in model.named_parameters()}


# ── before a step ───────────────────────────────────────────────────────────────────────────────────────────────


def materialise(model: nn.Module, device: str, dtype: torch.dtype) -> None:
    """Replace parameters, buffers and other tensors of a model by zeros on a device, which are fake in fake mode.

    Floats get the type. What was one tensor stays one.
    """
    made: dict[int, Tensor] = {}

    def fresh(value: Tensor) -> Tensor:
        if id(value) not in made:
            kind = dtype if value.is_floating_point() else value.dtype
            zeros = torch.zeros(value.shape, dtype=kind, device=device)
            made[id(value)] = nn.Parameter(zeros, value.requires_grad) if isinstance(value, nn.Parameter) else zeros
        return made[id(value)]

    for part in model.modules():
        stores: Any = (part._parameters, part._buffers, vars(part))
        for store in stores:
            for name, value in list(store.items()):
                if isinstance(value, Tensor):
                    store[name] = fresh(value)


def checkpoint_module(model: nn.Module, how: Checkpointing) -> None:
    """Checkpoint blocks one at a time; random states of fake devices do not exist, so they are not kept."""
    blocks = [(name, part) for name, part in model.named_modules() if re.search(BLOCKS, name)]
    require(len(blocks) > 0, "checkpointing finds no blocks: it looks for modules named blocks.N, layer.N or layers.N")
    checkpoint_blocks(blocks, how, random_state=False)
