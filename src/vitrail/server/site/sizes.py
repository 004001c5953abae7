"""The input sizes at which an exported page runs a model, besides the automatic one."""

from __future__ import annotations

from vitrail.server.default_size import automatic_side
from vitrail.server.session import Session

__all__ = ["GRID_SIDES", "other_sides"]

GRID_SIDES = range(8, 20, 4)
"""Patches along a side."""
MOST_BYTES = 16 * 2**20
"""Of a model's weights, which the graph of every size contains: larger models have the automatic size alone."""


def other_sides(weights: str, session: Session) -> list[int]:
    """Return sides in pixels for `Session.subject`."""
    if sum(each.nbytes for each in session.checkpoint(weights).tensors.values()) > MOST_BYTES:
        return []
    unit, automatic = session.config(weights).unit, automatic_side(weights, session)
    if unit.height != unit.width:
        return []
    sides = [count * unit.height for count in GRID_SIDES if count**2 <= session.most_patches]
    return [side for side in sides if session.seen_size(weights, side) != session.seen_size(weights, automatic)]
