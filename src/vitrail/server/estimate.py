"""How long a forward pass will take: from the last one of the same model on this machine."""

from __future__ import annotations

from pydantic import BaseModel

from vitrail.geometry import Size
from vitrail.plan.ledger import ledger
from vitrail.server.controls import Seen
from vitrail.server.default_size import default_size
from vitrail.server.session import Session

__all__ = ["Estimate", "estimate_of"]


class Estimate(BaseModel):
    seconds: float | None
    """None before the model's first pass."""
    basis: str
    """What the estimate is made from."""


def estimate_of(asked: Seen, session: Session, size: Size | None = None) -> Estimate:
    """Scale the time of the model's last pass by the FLOPs of this one, at the room's input size or another."""
    last = session.last_pass(asked.weights)
    if last is None:
        return Estimate(seconds=None, basis="the first pass of this model here: no estimate yet")
    config, size = session.config(asked.weights), size or session.seen_size(asked.weights, default_size(asked, session))
    now, before = (ledger(config.but(image=image)).flops_forward for image in (size, last.size))
    time = f"{last.seconds:.1f} s" if last.seconds >= 0.1 else f"{1000 * last.seconds:.1f} ms"
    took = f"{time} at {last.size.height} × {last.size.width} px"
    scaled = "" if size == last.size else ", scaled by FLOPs"
    return Estimate(seconds=last.seconds * now / before, basis=f"its last pass took {took}{scaled}")
