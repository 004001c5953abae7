"""Bytes of live tensors over one step, by component and phase."""

from __future__ import annotations

from vitrail.config import Config
from vitrail.errors import VitrailError
from vitrail.plan.step import SIZES, run_step
from vitrail.plan.workload import Memory, Workload

__all__ = ["COMPONENTS", "memory"]

COMPONENTS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "attention_maps",
    "weight_casts",
    "input",
    "temporary",
)


def memory(config: Config, workload: Workload) -> Memory:
    """The highest point of a step: the tensors of a training step in steady state, or of one inference.

    >>> from vitrail.config import ViTConfig
    >>> memory(ViTConfig(), Workload(batch=8, train=True)).peak_bytes
    2011288200
    """
    step, size = run_step(config, workload), SIZES[workload.precision]
    tape = step.tape
    params = tape.total(tape.params)
    held = {"weights": params * size + tape.total(tape.buffer_bytes)}
    temporary = 0
    if workload.train:
        held["optimizer"], temporary = _optimizer_bytes(workload.optimizer, params, tape.total(tape.tensors), size)
        if workload.accumulate > 1:
            held["gradients"] = tape.total(tape.grad_bytes)
    notes = list(tape.notes)
    by_phase = {phase: _sum(held, found) for phase, found in step.phase_bytes.items()}
    if workload.train:
        by_phase["optimizer"] = _sum(held, step.after, {"temporary": temporary})
    phase_peaks = {phase: sum(found.values()) for phase, found in by_phase.items()}
    highest = max(phase_peaks, key=lambda phase: phase_peaks[phase])
    return Memory(peak_bytes=phase_peaks[highest], bytes=by_phase[highest], phase_peaks=phase_peaks, exact=not notes, note="; ".join(notes))


def _sum(*parts: dict[str, int]) -> dict[str, int]:
    return {name: sum(part.get(name, 0) for part in parts) for name in COMPONENTS}


def _optimizer_bytes(optimizer: str, params: int, tensors: int, size: int) -> tuple[int, int]:
    """(state, temporary): foreach AdamW takes the square root of every second moment at once."""
    match optimizer:
        case "sgd":
            return 0, 0
        case "momentum":
            return params * size, 0
        case "adamw":
            return 2 * params * size, params * size
        case "adamw-fused":
            return 2 * params * size + 4 * tensors, 0  # its step counters are on the device
    raise VitrailError(f"optimizer {optimizer!r} is not planned; use adamw")
