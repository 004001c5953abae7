"""The automatic input size of a loaded model: its training size, or larger where that grid is coarse."""

from __future__ import annotations

from vitrail.config import ViTConfig
from vitrail.server.controls import Seen
from vitrail.server.session import Session

__all__ = ["automatic_side", "default_size"]

COARSE, FINE = 14, 16
"""Patches along the shorter side: a grid with fewer than COARSE is enlarged to FINE, and one with more patches than the
session shows by itself is reduced to it."""


def default_size(asked: Seen, session: Session) -> int:
    """Return a side in pixels for `Session.subject`: the one asked for, or the same automatic one in every room."""
    return asked.seen or automatic_side(asked.weights, session)


def automatic_side(weights: str, session: Session) -> int:
    """Return the automatic side in pixels; 0 means the training size."""
    config = session.config(weights)
    if not isinstance(config, ViTConfig):
        return 0
    if min(config.grid) >= COARSE and config.grid.area <= session.most_patches:
        return 0
    return FINE * max(config.patch)
