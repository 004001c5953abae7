"""The peak memory of live tensors in one step, by component and phase."""

from __future__ import annotations

from vitrail.config import Config
from vitrail.plan.meter import COMPONENTS, Meter
from vitrail.plan.recall import recalled
from vitrail.plan.sharding import EXACT, micro_batches, optimizer_part, shard_sizes
from vitrail.plan.step import Step, run_step
from vitrail.plan.tape import Tape
from vitrail.plan.tensor_parallel import is_split
from vitrail.plan.workload import Memory, Optimizer, Workload
from vitrail.traced import highest

__all__ = ["COMPONENTS", "is_followed", "memory", "memory_of", "persistent_bytes"]


def memory(config: Config, workload: Workload) -> Memory:
    """Return the peak memory of one training step in steady state, or of one inference.

    A step's tensors are freed when backward ends; images and labels belong to the caller and are not.

    >>> from vitrail.config import ViTConfig
    >>> memory(ViTConfig(), Workload(batch=8, train=True)).peak_bytes
    2011288200
    """
    if not is_followed(workload):
        return recalled(config, workload, _planned)
    *earlier, last = micro_batches(config, workload)
    return memory_of(last, workload, *earlier)


def _planned(config: Config, workload: Workload, meter: Meter) -> Memory:
    return memory_of(run_step(config, workload, meter=meter), workload)


def memory_of(step: Step, workload: Workload, *earlier: Step) -> Memory:
    """Return the memory of a step that was run, after earlier micro-batches whose gradients it adds to."""
    persistent, temporary = persistent_bytes(workload, step.tape)
    notes = _estimate_notes(workload, step.tape)
    by_phase = {}
    for phase in step.phase_bytes:
        moments = [(each.phase_peaks[phase], each.phase_bytes[phase]) for each in (*earlier, step)]
        by_phase[phase] = _sum(persistent, highest(moments)[1] if earlier else step.phase_bytes[phase])
    if workload.train:
        by_phase["optimizer"] = _sum(persistent, step.after, {"temporary": temporary})
    if workload.shard is not None and not is_followed(workload):
        by_phase = {phase: _estimated(workload, components, step) for phase, components in by_phase.items()}
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
    shard = workload.shard
    if shard is not None and not is_followed(workload):
        notes.append(f"{shard.kind}: PyTorch has no such stage to follow; its gradients and buffers are estimated")
    if shard is not None and shard.kind == "fsdp" and shard.devices == 1:
        notes.append("fsdp: one device gathers nothing, and is planned as one of several")
    return notes


def is_followed(workload: Workload) -> bool:
    """Return whether a sharded step is followed tensor by tensor, not estimated."""
    return workload.shard is not None and (workload.shard.kind in EXACT or not workload.train)


def _sum(*parts: dict[str, int]) -> dict[str, int]:
    total: dict[str, int] = dict.fromkeys(COMPONENTS, 0)
    for part in parts:
        for name, size in part.items():
            total[name] += size
    return total


def persistent_bytes(workload: Workload, tape: Tape) -> tuple[dict[str, int], int]:
    """Return the bytes that stay allocated throughout a step, by component, and the optimizer's temporary bytes."""
    size, shard = workload.parameter_bytes, workload.shard
    kind = shard.kind if shard else None
    params, trained = tape.params(), tape.params(trained=True)
    if shard is not None and kind == "fsdp":
        params, trained = (shard_sizes(tape, shard.devices, trained=only) for only in (False, True))
    on_host = workload.offload and kind == "fsdp"
    persistent = {"weights": (0 if on_host else tape.total(params) * size) + tape.total(tape.buffer_bytes)}
    if not workload.train:
        return persistent, 0
    if workload.accumulate > 1 and kind in (None, "zero2", "tensor"):  # the others have their own micro-batches
        persistent["gradients"] = tape.total(tape.grad_bytes)
    if workload.offload:
        return persistent, 0
    count, tensors = tape.total(trained), sum(tape.times(leaf.path) for leaf in tape.leaves if leaf.trained)
    if shard is not None and kind == "zero1":
        part = optimizer_part(tape, shard.devices)
        count, tensors = sum(part), len(part)
    state = _state_bytes(workload.optimizer, count, tensors, size)
    if kind == "tensor":  # one group of tensors is updated after the other
        split = tape.total({path: count for path, count in trained.items() if is_split(path)})
        count = max(split, count - split)
    return persistent | {"optimizer": state}, _update_bytes(workload.optimizer, count, size)


_ESTIMATES = {
    "adamw-8bit": "adamw-8bit: estimated as two bytes per parameter and two float32 scales per 256, for every tensor",
    "adafactor": "adafactor: its state is estimated as 1 % of the weights, its update as one copy of them",
}


def _state_bytes(optimizer: Optimizer, params: int, tensors: int, size: int) -> int:
    """Return the bytes of an optimizer's state."""
    match optimizer:
        case "sgd":
            return 0
        case "momentum":
            return params * size
        case "adamw":
            return 2 * params * size
        case "adamw-fused":
            return 2 * params * size + 4 * tensors  # its step counters are on the device
        case "adamw-8bit":
            return 2 * params + 8 * -(-params // 256)
        case "adafactor":
            return params * 4 // 100


def _update_bytes(optimizer: Optimizer, params: int, size: int) -> int:
    """Return the bytes of an update's temporaries; `adamw` is PyTorch's default, foreach, which computes all square
    roots at once."""
    return params * size if optimizer in ("adamw", "adafactor") else 0


def _estimated(workload: Workload, components: dict[str, int], step: Step) -> dict[str, int]:
    """Return the bytes of one device whose optimizer's state and gradients are sharded (zero2)."""
    assert workload.shard is not None
    devices, size = workload.shard.devices, workload.parameter_bytes
    shares = {name: -(-components[name] // devices) for name in ("optimizer", "gradients")}
    return components | shares | {"reduced_gradients": step.largest_unit * size}
