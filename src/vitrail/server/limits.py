"""The ranges of controls for one loaded model, which are narrower than those that hold for every model."""

from __future__ import annotations

from math import gcd, isqrt

from pydantic import BaseModel

from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig
from vitrail.server.controls import Seen
from vitrail.server.default_size import automatic_side, default_size
from vitrail.server.plans import Pair
from vitrail.server.session import MAX_TOKENS, Session

__all__ = ["Limit", "limits_of", "shifts_of", "token_limits"]


class Limit(BaseModel):
    minimum: int
    maximum: int
    step: int = 1
    automatic: Pair | None = None
    """The size that the value 0 stands for."""
    values: list[int] = []
    """The only values that are allowed, if not all of the range are."""


def limits_of(weights: str, session: Session) -> dict[str, Limit]:
    """Return the ranges that depend on the model, by the name of the control."""
    config = session.config(weights)
    layers, heads = _attention(config)
    rows, columns = config.position_grid
    side = min(config.unit)
    limits = {
        "layer": Limit(minimum=-1, maximum=layers - 1),
        "block": Limit(minimum=0, maximum=layers - 1),
        "head": Limit(minimum=0, maximum=heads - 1),
        "position_layer": Limit(minimum=0, maximum=layers - 1),
        "position_head": Limit(minimum=-1, maximum=heads - 1),
        "grid_rows": Limit(minimum=1, maximum=40, automatic=(rows, rows)),
        "grid_columns": Limit(minimum=1, maximum=40, automatic=(columns, columns)),
        "seen": Limit(
            minimum=side,
            maximum=isqrt(MAX_TOKENS) * side,
            step=side,
            automatic=session.seen_size(weights, automatic_side(weights, session)),
        ),
    }
    if isinstance(config, ViTConfig):
        limits["unit"] = Limit(minimum=0, maximum=config.width - 1)
        shifts = shifts_of(config)
        limits["shifts"] = Limit(minimum=1, maximum=shifts[-1], values=shifts)
    return limits


def shifts_of(config: Config) -> list[int]:
    """Return how many times an image can be moved along a patch, in steps of whole pixels."""
    side = gcd(*config.patch)
    return [count for count in range(1, side + 1) if side % count == 0]


def token_limits(asked: Seen, session: Session) -> dict[str, Limit]:
    """Return the ranges of tokens at an input size; −1 is a room's default. None for a mobile model's maps."""
    config = session.config(asked.weights)
    if isinstance(config, MobileConfig):
        return {}
    grid = config.but(image=session.seen_size(asked.weights, default_size(asked, session))).grid
    prefix = config.prefix.count if isinstance(config, ViTConfig) else 0
    limit = Limit(minimum=-1, maximum=prefix + grid.area - 1)
    return {"token": limit, "key": limit}


def _attention(config: Config) -> tuple[int, int]:
    """Return the number of layers with attention, and the most heads in one."""
    match config:
        case ViTConfig():
            return config.depth, config.num_heads
        case PyramidConfig():
            return sum(stage.depth for stage in config.stages), max(stage.num_heads for stage in config.stages)
        case MobileConfig():
            return sum(stage.transformer_depth for stage in config.stages), config.num_heads
