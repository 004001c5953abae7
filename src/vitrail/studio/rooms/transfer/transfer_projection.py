"""What the patch projection loses on its way to another patch size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import Patches
from vitrail.studio.rooms.transfer.transfer_question import Question
from vitrail.studio.session import Session

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Loss", "curves_of", "filters_of", "loss_of", "scaled", "sides_of"]


class Loss(BaseModel):
    """`checkpoint.assess.projection_loss.ProjectionLoss`, as `vitrail adapt --json` says it."""

    old: str
    new: str
    how: str
    natural: float
    least: float
    white: float
    round_trip: float
    round_trip_white: float


def filters_of(asked: Question, here: Session) -> tuple[Tensor, Size]:
    config = here.config(asked.weights)
    if not isinstance(config, ViTConfig) or not isinstance(config.embedding, Patches):
        raise VitrailError("these weights do not begin with one projection of patches; choose a plain ViT's")
    weight = here.checkpoint(asked.weights).tensors["embedding.weight"]
    return weight, Size(*weight.shape[2:])


def scaled(patch: Size, height: int) -> Size:
    """A patch of this height and the same shape."""
    return Size(height, max(1, round(height * patch.width / patch.height)))


def sides_of(patch: Size) -> list[int]:
    """Patches of a quarter to twice the height, a dozen at most."""
    low, high = max(1, patch.height // 4), 2 * patch.height
    return sorted({round(low + (high - low) * step / 11) for step in range(12)} | {patch.height})


def loss_of(filters: Tensor, new: Size, how: Literal["pinv", "natural", "interpolate"]) -> Loss:
    from vitrail.checkpoint.assess.projection_loss import predicted_loss

    found = predicted_loss(filters, new, how=how)
    return Loss(**{**vars(found), "old": str(found.old), "new": str(found.new)})


def curves_of(filters: Tensor, patch: Size, sides: list[int]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"pinv": [], "natural": [], "interpolate": [], "noise": []}
    for side in sides:
        for how in ("pinv", "natural", "interpolate"):
            loss = loss_of(filters, scaled(patch, side), how)
            found[how].append(loss.natural)
            if how == "pinv":
                found["noise"].append(loss.white)
    return found
