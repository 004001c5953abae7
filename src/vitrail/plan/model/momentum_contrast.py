"""The cost of momentum contrast."""

from __future__ import annotations

from vitrail.config import ViTConfig
from vitrail.plan import ops
from vitrail.plan.attention_ops import product
from vitrail.plan.graph import Tensor, module
from vitrail.plan.loss_ops import normalise, total
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.vit import vector
from vitrail.plan.tape import Tape
from vitrail.pretraining import MomentumContrast

__all__ = ["contrast"]


@module
def projector(t: Tape, c: ViTConfig, spec: MomentumContrast, n: Sizes, image: Tensor) -> Tensor:
    """An encoder and two linear layers: unit vectors."""
    width = c.vector_width

    def encoded() -> Tensor:
        with t.model("encoder"):
            return vector(t, c, n, image)

    hidden = [ops.saving_output(t, "fc1", ops.Linear(t, "fc1", encoded(), width, width))]
    return normalise(t, "fc2", ops.Linear(t, "fc2", hidden.pop(), width, spec.dimension), spec.dimension)


@module
def contrast(
    t: Tape, c: ViTConfig, spec: MomentumContrast, n: Sizes, views: list[Tensor], held: list[Tensor], earlier: int
) -> Tensor:
    """Two views → the loss. The keys, and those of `earlier` passes, are held until the optimizer's step, when they
    enter the queue."""
    held += [t.new(n.batch * spec.dimension, 4 if t.amp else t.size) for _ in range(earlier)]
    first, second = views
    with t.model("student"):
        queries = projector(t, c, spec, n, first)
    with t.model("teacher", teaches=True):
        keys = projector(t, c, spec, n, second)
    held.append(keys)
    queue = t.buffer("queue", spec.dimension * spec.queue, t.size)
    own = total(t, ops.multiply(t, "loss", queries, keys), n.batch)
    others = product(t, "loss", queries, queue, 1, n.batch, spec.dimension, spec.queue, copies=(False, False))
    joined = [ops.cat(t, own, others)]
    del others
    logits = ops.fresh(t, joined.pop())
    return ops.cross_entropy(t, logits, t.new(n.batch, 8))
