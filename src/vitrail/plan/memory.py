"""The peak memory of live tensors in one step, by component and phase."""

from __future__ import annotations

from vitrail.config import Config
from vitrail.plan.array_meter import highest
from vitrail.plan.step import Step, run_step
from vitrail.plan.tape import Tape
from vitrail.plan.workload import Memory, Optimizer, Workload

__all__ = ["COMPONENTS", "memory", "memory_of", "persistent_bytes"]

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
    """Return the peak memory of one training step in steady state, or of one inference.

    A step's tensors are freed when backward ends; images and labels belong to the caller and are not.

    >>> from vitrail.config import ViTConfig
    >>> memory(ViTConfig(), Workload(batch=8, train=True)).peak_bytes
    2011288200
    """
    return memory_of(run_step(config, workload), workload)


def memory_of(step: Step, workload: Workload) -> Memory:
    """Return the memory of a step that was run."""
    persistent, temporary = persistent_bytes(workload, step.tape)
    notes = _estimate_notes(workload, step.tape)
    by_phase = {phase: _sum(persistent, components) for phase, components in step.phase_bytes.items()}
    if workload.train:
        by_phase["optimizer"] = _sum(persistent, step.after, {"temporary": temporary})
    if workload.shard is not None:
        by_phase = {phase: _sharded(workload, components, step) for phase, components in by_phase.items()}
    phase_peaks = {phase: sum(components.values()) for phase, components in by_phase.items()}
    peak_bytes, components = highest(list(zip(phase_peaks.values(), by_phase.values(), strict=True)))
    return Memory(
        peak_bytes=peak_bytes,
        bytes=components,
        phase_peaks=phase_peaks,
        exact=not notes,
        note="; ".join(notes),
    )


def _estimate_notes(workload: Workload, tape: Tape) -> list[str]:
    """Return what is only estimated in a plan, and how; empty if everything is verified."""
    notes = list(tape.notes)
    if workload.train and workload.optimizer in _ESTIMATES:
        notes.append(_ESTIMATES[workload.optimizer])
    if workload.shard is not None:
        notes.append(f"{workload.shard.kind}: the memory of each device is modelled, not tracked on devices")
    return notes


def _sum(*parts: dict[str, int]) -> dict[str, int]:
    return {name: sum(part.get(name, 0) for part in parts) for name in COMPONENTS}


def persistent_bytes(workload: Workload, tape: Tape) -> tuple[dict[str, int], int]:
    """Return the bytes that stay allocated throughout a step, by component, and the optimizer's temporary bytes."""
    size = workload.parameter_bytes
    params = tape.total(tape.params)
    persistent = {"weights": params * size + tape.total(tape.buffer_bytes)}
    if not workload.train:
        return persistent, 0
    if workload.accumulate > 1:
        persistent["gradients"] = tape.total(tape.grad_bytes)
    trained = tape.total(tape.trained_params)
    persistent["optimizer"], temporary = _optimizer_bytes(workload.optimizer, trained, tape, size)
    return persistent, temporary


_ESTIMATES = {
    "adamw-8bit": "adamw-8bit: estimated as two bytes per parameter and two float32 scales per 256, for every tensor",
    "adafactor": "adafactor: its state is estimated as 1 % of the weights, its update as one copy of them",
}


def _optimizer_bytes(optimizer: Optimizer, params: int, tape: Tape, size: int) -> tuple[int, int]:
    """Return (state, temporary); `adamw` is PyTorch's default, foreach, which computes all square roots at once."""
    match optimizer:
        case "sgd":
            return 0, 0
        case "momentum":
            return params * size, 0
        case "adamw":
            return 2 * params * size, params * size
        case "adamw-fused":
            return 2 * params * size + 4 * tape.total(tape.trained_tensors), 0  # its step counters are on the device
        case "adamw-8bit":
            return 2 * params + 8 * -(-params // 256), 0
        case "adafactor":
            return params * 4 // 100, params * size


def _sharded(workload: Workload, components: dict[str, int], step: Step) -> dict[str, int]:
    """Return the bytes of one device. DDP's buckets are one more copy of the gradients."""
    shard, size = workload.shard, workload.parameter_bytes
    assert shard is not None
    count, bucket = shard.devices, step.tape.total(step.tape.trained_params) * size
    components = dict(components)

    def divide(*names: str) -> None:
        for name in names:
            components[name] = -(-components[name] // count)

    if shard.kind == "ddp":
        components["gradients"] += bucket
    elif shard.kind == "zero1":
        components["gradients"] += bucket
        divide("optimizer")
    elif shard.kind == "zero2":
        divide("optimizer", "gradients")
        components["temporary"] += step.largest_unit * size
    else:
        divide("weights", "optimizer", "gradients")
        components["temporary"] += 2 * step.largest_unit * size  # one block gathered, the next prefetched
    return components
