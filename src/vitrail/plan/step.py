"""Run one step of a config and a workload on a tape: forward and, in training, the loss and backward."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from vitrail.config import Config
from vitrail.parts import FullAttention, WindowedAttention
from vitrail.plan import peers
from vitrail.plan.graph import Tensor
from vitrail.plan.meter import Meter
from vitrail.plan.model.build import build
from vitrail.plan.model.pretraining import pretraining_loss
from vitrail.plan.ops import cross_entropy
from vitrail.plan.tape import Tape
from vitrail.plan.workload import Workload
from vitrail.pretraining import Pretraining

__all__ = ["Step", "run_step"]

_LIBRARIES = {"vitrail": build, "timm": peers.build_timm, "huggingface": peers.build_huggingface}
_NAMES = {"timm": peers.timm_path, "huggingface": peers.huggingface_path}


@dataclass(frozen=True)
class Step:
    """The tape of a step, and the peak of each phase, without what stays allocated throughout a step."""

    tape: Tape
    phase_peaks: dict[str, int]
    phase_bytes: dict[str, dict[str, int]]
    """Bytes by component, at each phase's peak."""
    after: dict[str, int]
    """Bytes by component, after backward."""
    inputs: tuple[Tensor, ...]
    """Images and labels, which the caller of a step keeps, and what is kept for the optimizer's step."""

    @property
    def largest_unit(self) -> int:
        """Parameters of the largest block, or of all others together: what a sharded model gathers at a time."""
        units: dict[str, int] = {}
        for path, count in self.tape.params().items():
            block = re.match(r".*?blocks\.\d+", path)
            name = block[0] if block else ""
            units[name] = units.get(name, 0) + count
        return max(units.values())


def _is_explicit(config: Config, workload: Workload) -> bool:
    """Whether softmax attention runs step by step; windows, and full blocks between them, always use a kernel."""
    attention = getattr(config, "attention", None)
    if isinstance(attention, WindowedAttention):
        return False
    return workload.attention == "eager" or attention == FullAttention(fused=False)


def run_step(
    config: Config, workload: Workload, *, kind: Callable[..., Tape] = Tape, meter: Meter | None = None
) -> Step:
    """Run one step on a tape of a kind, with a meter."""
    meter = meter or Meter()
    train = workload.train
    tape = kind(
        meter,
        train=train,
        amp=workload.precision.startswith("amp"),
        fp16=workload.precision == "amp-fp16",
        size=workload.parameter_bytes,
        kernel=workload.attention,
        explicit=_is_explicit(config, workload),
        checkpointing=workload.checkpointing,
        has_grads=workload.accumulate > 1,
        tuned=None if not train or workload.tuning.is_everything else workload.tuning.on(config),
        naming=_NAMES.get(workload.library),
    )
    peaks: dict[str, int] = {}
    at_peak: dict[str, dict[str, int]] = {}

    def end(phase: str) -> None:
        peaks[phase], at_peak[phase] = meter.end_phase()

    inputs, outputs, loss = _forward(tape, config, workload)
    if train and loss.node is None:
        raise workload.tuning.refuse()
    tape.end_autocast()
    end("forward")
    if train:
        tape.backward(loss)
        end("backward")
    del outputs, loss
    return Step(tape, peaks, at_peak, meter.state(), inputs)


def _forward(tape: Tape, config: Config, workload: Workload) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Return what the step's caller keeps, the model's outputs, which live through backward, and the loss."""
    if workload.pretraining is not None:
        return _pretrain(tape, config, workload, workload.pretraining)
    model = _LIBRARIES[workload.library](config, workload)
    images = tape.new(workload.batch * prod(config.input_shape), workload.parameter_bytes, "input")
    if not workload.train:
        outputs = tape.whole(model, images)
        return (images,), outputs, outputs
    merged = 1 if getattr(config, "merger", None) is None else config.visual_tokens  # type: ignore[union-attr]
    labels = tape.new(workload.batch * merged, 8, "input")  # one for every token of a merger
    outputs = tape.whole(model, images)
    return (images, labels), outputs, cross_entropy(tape, outputs)


def _pretrain(
    tape: Tape, config: Config, workload: Workload, spec: Pretraining
) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    plain, held = spec.check(config), []
    views = spec.views(plain.image, workload.batch)
    images = [tape.new(count * plain.channels * image.area, tape.size, "input") for count, image in views]
    loss = pretraining_loss(tape, plain, spec, workload, images, held)
    return (*images, *held), loss, loss
