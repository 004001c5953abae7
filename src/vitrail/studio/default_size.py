"""How large a model sees the image where nobody says: as it was trained, or larger where that shows too little."""

from __future__ import annotations

from vitrail.config import ViTConfig
from vitrail.studio.controls import Seen
from vitrail.studio.session import Session

__all__ = ["default_size"]

COARSE, FINE = 14, 24
"""Patches along the shorter side: fewer than COARSE show little of an image, and FINE show enough."""


def default_size(asked: Seen, here: Session, *, fine: int = FINE) -> int:
    """A side in pixels for `Session.subject`; 0 is the size that the model was trained at."""
    config = here.config(asked.weights)
    if asked.seen or not isinstance(config, ViTConfig) or min(config.grid) >= COARSE:
        return asked.seen
    return fine * max(config.patch)
