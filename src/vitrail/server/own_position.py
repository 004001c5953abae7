"""The position of a loaded model, as the rooms show it on a grid."""

from __future__ import annotations

from vitrail.config import Config, MobileConfig, PyramidConfig
from vitrail.parts import Position, TiledTable

__all__ = ["own_position"]


def own_position(config: Config) -> Position | None:
    """Return the position kind; None for a mobile model and for a pyramid whose positions are those of windows."""
    if isinstance(config, MobileConfig) or isinstance(config.position, TiledTable):
        return None
    in_windows = isinstance(config, PyramidConfig) and config.position.acts_on == "scores"
    return None if in_windows else config.position
