"""The automatic input size of a loaded model: its training size, or larger where that grid is coarse."""

from __future__ import annotations

from vitrail.config import Config, ViTConfig
from vitrail.server.controls import Seen
from vitrail.server.session import Session

__all__ = ["automatic_side", "default_size"]

COARSE, FINE = 14, 16
"""Patches along the shorter side: a grid with fewer than COARSE is enlarged to FINE."""


def default_size(asked: Seen, session: Session) -> int:
    """Return a side in pixels for `Session.subject`: the one asked for, or the same automatic one in every room."""
    return asked.seen or automatic_side(session.config(asked.weights))


def automatic_side(config: Config) -> int:
    """Return the automatic side in pixels; 0 means the training size."""
    if not isinstance(config, ViTConfig) or min(config.grid) >= COARSE:
        return 0
    return FINE * max(config.patch)
