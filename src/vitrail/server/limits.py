"""The ranges of controls for one loaded model, which are narrower than those that hold for every model."""

from __future__ import annotations

from math import isqrt

from pydantic import BaseModel

from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig
from vitrail.server.default_size import automatic_side
from vitrail.server.plans import Pair
from vitrail.server.session import MAX_TOKENS, Session

__all__ = ["Limit", "limits_of"]


class Limit(BaseModel):
    minimum: int
    maximum: int
    step: int = 1
    automatic: Pair | None = None
    """The size that the value 0 stands for."""


def limits_of(weights: str, session: Session) -> dict[str, Limit]:
    """Return the ranges that depend on the model, by the name of the control."""
    config = session.config(weights)
    layers, heads = _attention(config)
    side = min(config.unit)
    limits = {
        "layer": Limit(minimum=-1, maximum=layers - 1),
        "block": Limit(minimum=0, maximum=layers - 1),
        "head": Limit(minimum=0, maximum=heads - 1),
        "position_layer": Limit(minimum=0, maximum=layers - 1),
        "position_head": Limit(minimum=-1, maximum=heads - 1),
        "seen": Limit(
            minimum=side,
            maximum=isqrt(MAX_TOKENS) * side,
            step=side,
            automatic=session.seen_size(weights, automatic_side(config)),
        ),
    }
    if isinstance(config, ViTConfig):
        limits["unit"] = Limit(minimum=0, maximum=config.width - 1)
    return limits


def _attention(config: Config) -> tuple[int, int]:
    """Return the number of layers with attention, and the most heads in one."""
    match config:
        case ViTConfig():
            return config.depth, config.num_heads
        case PyramidConfig():
            return sum(stage.depth for stage in config.stages), max(stage.num_heads for stage in config.stages)
        case MobileConfig():
            return sum(stage.transformer_depth for stage in config.stages), config.num_heads
