"""The default input size of a loaded model: its training size, or larger where that grid is coarse."""

from __future__ import annotations

from vitrail.config import ViTConfig
from vitrail.server.controls import Seen
from vitrail.server.session import Session

__all__ = ["default_size"]

COARSE, FINE = 14, 24
"""Patches along the shorter side: a grid with fewer than COARSE is enlarged to FINE."""


def default_size(asked: Seen, session: Session, *, fine: int = FINE) -> int:
    """Return a side in pixels for `Session.subject`; 0 means the training size."""
    config = session.config(asked.weights)
    if asked.seen or not isinstance(config, ViTConfig) or min(config.grid) >= COARSE:
        return asked.seen
    return fine * max(config.patch)
