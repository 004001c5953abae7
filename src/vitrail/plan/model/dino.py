"""The cost of self-distillation with crops."""

from __future__ import annotations

from vitrail.config import ViTConfig
from vitrail.plan import ops
from vitrail.plan.attention_ops import product, softmax
from vitrail.plan.graph import Tensor, module
from vitrail.plan.loss_ops import normalise, subtract, total
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.vit import vector
from vitrail.plan.tape import Tape
from vitrail.pretraining import Dino

__all__ = ["self_distillation"]


@module
def prototypes(t: Tape, spec: Dino, x: Tensor, width: int) -> Tensor:
    """Three linear layers, and cosines with learned directions."""
    hidden = [ops.activate(t, "prototypes.fc1", ops.Linear(t, "prototypes.fc1", x, width, spec.hidden))]
    hidden = [
        ops.activate(t, "prototypes.fc2", ops.Linear(t, "prototypes.fc2", hidden.pop(), spec.hidden, spec.hidden))
    ]
    x = ops.Linear(t, "prototypes.fc3", hidden.pop(), spec.hidden, spec.bottleneck)
    unit = normalise(t, "prototypes", x, spec.bottleneck)
    directions = t.parameter("prototypes", spec.prototypes * spec.bottleneck, "directions")
    aims = normalise(t, "prototypes", directions, spec.bottleneck)
    rows = x.count // spec.bottleneck
    return product(t, "prototypes", unit, aims, 1, rows, spec.bottleneck, spec.prototypes, copies=(False, False))


@module
def compared(t: Tape, c: ViTConfig, spec: Dino, n: list[Sizes], crops: list[Tensor]) -> Tensor:
    """An encoder, with a pass for every size of crops, and its prototypes."""
    vectors = []
    for sizes, images in zip(n, crops, strict=True):
        own = c.but(image=spec.local_image) if vectors else c
        with t.model("encoder"):
            vectors.append(vector(t, own, sizes, images))
    joined = ops.cat(t, *vectors) if len(vectors) > 1 else vectors[0]
    return prototypes(t, spec, joined, c.vector_width)


@module
def self_distillation(t: Tape, c: ViTConfig, spec: Dino, n: list[Sizes], crops: list[Tensor]) -> Tensor:
    """Global and local crops → the loss."""
    batch = n[0].batch // 2
    with t.model("teacher", teaches=True):
        answers = [compared(t, c, spec, n[:1], crops[:1])]
    targets = _targets(t, spec, answers.pop())
    with t.model("student"):
        answers.append(compared(t, c, spec, n, crops))
    logits = ops.fresh(t, answers.pop())
    logs = softmax(t, "loss", logits, component=None)
    row = batch * spec.prototypes
    every = total(t, ops.multiply(t, "loss", total(t, targets, row), total(t, logs, row)), 1)
    own = total(t, ops.multiply(t, "loss", targets, ops.narrow(t, logs, 2 * row)), 1)
    return ops.fresh(t, subtract(t, own, every))


@module
def _targets(t: Tape, spec: Dino, logits: Tensor) -> Tensor:
    centre = t.buffer("", spec.prototypes, t.size)
    shifted = [t.new(logits.count, max(logits.size, centre.size))]
    shifted.append(ops.fresh(t, shifted[0]))
    del shifted[0]
    targets = softmax(t, "loss", shifted.pop(), component=None)
    mean = t.new(spec.prototypes, logits.size)
    t.cast(mean, centre.size)
    return targets
