"""The loss of a patch projection that is resized to another patch size."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import Patches
from vitrail.server.formulas import Formula, short
from vitrail.server.rooms.transfer.transfer_question import Question
from vitrail.server.session import Session

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Loss",
    "curves_of",
    "filters_key",
    "filters_of",
    "loss_key",
    "loss_of",
    "plain_config",
    "projection_formulas",
    "scaled",
    "sides_of",
]


class Loss(BaseModel):
    """`checkpoint.assess.projection_loss.ProjectionLoss`, as in `vitrail adapt --json`."""

    old: str
    new: str
    how: str
    natural: float
    least: float
    white: float
    round_trip: float
    round_trip_white: float


def plain_config(asked: Question, session: Session) -> ViTConfig:
    """Return the config of a model with one projection; refuse one that has several or none."""
    config = session.config(asked.weights)
    if not isinstance(config, ViTConfig) or not isinstance(config.embedding, Patches):
        raise VitrailError("these weights have no single patch projection; choose the weights of a plain ViT")
    return config


def filters_of(asked: Question, session: Session) -> Tensor:
    """(D, C, P, Q)"""
    return session.checkpoint(asked.weights).tensors["embedding.weight"]


def loss_key(asked: Question, session: Session) -> tuple[Hashable, ...]:
    """Return what the loss of resized filters depends on."""
    return (
        "filters",
        asked.weights,
        scaled(plain_config(asked, session).patch, asked.resized_patch),
        asked.filter_resize,
    )


def filters_key(asked: Question, session: Session) -> tuple[Hashable, ...]:
    """Return what the pictures of resized filters depend on."""
    return ("transfer filters", *loss_key(asked, session)[1:])


def scaled(patch: Size, height: int) -> Size:
    """Return a patch with this height and the same aspect ratio."""
    return Size(height, max(1, round(height * patch.width / patch.height)))


def sides_of(patch: Size) -> list[int]:
    """Return about a dozen heights, from a quarter to twice the patch's."""
    low, high = max(1, patch.height // 4), 2 * patch.height
    return sorted({round(low + (high - low) * step / 11) for step in range(12)} | {patch.height})


def loss_of(filters: Tensor, new: Size, how: Literal["pinv", "natural", "interpolate"]) -> Loss:
    from vitrail.checkpoint.assess.projection_loss import predicted_loss

    loss = predicted_loss(filters, new, how=how)
    return Loss(**{**vars(loss), "old": str(loss.old), "new": str(loss.new)})


def curves_of(filters: Tensor, patch: Size, sides: list[int]) -> dict[str, list[float]]:
    curves: dict[str, list[float]] = {"pinv": [], "natural": [], "interpolate": [], "noise": []}
    for side in sides:
        for how in ("pinv", "natural", "interpolate"):
            loss = loss_of(filters, scaled(patch, side), how)
            curves[how].append(loss.natural)
            if how == "pinv":
                curves["noise"].append(loss.white)
    return curves


def projection_formulas(patch: Size, new: Size, chosen: Loss, count: int) -> list[Formula]:
    """Return how the new filters and their errors are computed."""
    meanings = {
        "B": "the matrix that resizes a patch",
        "w": "a filter",
        "ŵ": "the new filter",
        "x": "a patch",
    }
    photographs = f"{short(count)} filters, patches with the covariance of photographs"
    noise = f"{short(count)} filters, patches of independent pixels"

    def error(name: str, symbols: str, over: str, value: float) -> Formula:
        return Formula(name=name, symbols=symbols, where=meanings, numbers=f"{over}, in closed form = {value:.2%}")

    there, back = "√(Σ E|ŵ · B x − w · x|² / Σ E|w · x|²)", "√(Σ E|w̃ · x − w · x|² / Σ E|w · x|²)"
    meanings["w̃"] = "the new filter, resized back"
    return [
        error("error on photographs", there, photographs, chosen.natural),
        error("error on noise", there, noise, chosen.white),
        error("round trip, photographs", back, photographs, chosen.round_trip),
        error("round trip, filters", "|w̃ − w| / |w|", f"{short(count)} filters", chosen.round_trip_white),
        Formula(
            name="new filters",
            symbols="ŵ = argmin E|ŵ · B x − w · x|²",
            where=meanings,
            numbers=f"B resizes a patch from {patch} to {new}: {short(patch.area)} → {short(new.area)} pixels "
            f"per channel = {'nothing' if new.height >= patch.height else 'some of it'} is lost",
        ),
    ]
