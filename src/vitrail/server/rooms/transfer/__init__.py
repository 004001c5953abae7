"""Room 5, resolution transfer: positions on another grid, patch projections at another size, and what is lost."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.server.arrays import Frame, Header, frame
from vitrail.server.formulas import Formula
from vitrail.server.own_position import own_position
from vitrail.server.plans import Pair
from vitrail.server.rooms.transfer.transfer_frames import (
    DriftFacts,
    FilterFacts,
    TableFacts,
    feature_drift,
    resampled_table,
    resized_filters,
)
from vitrail.server.rooms.transfer.transfer_projection import (
    Loss,
    curves_of,
    filters_key,
    filters_of,
    loss_key,
    loss_of,
    plain_config,
    projection_formulas,
    scaled,
    sides_of,
)
from vitrail.server.rooms.transfer.transfer_question import LARGEST_PATCH, Question
from vitrail.server.rooms.transfer.transfer_table import (
    TableErrors,
    formulas_of,
    grids_of,
    measure_table,
    new_grid,
    own_table,
    table_of,
)
from vitrail.server.session import Session, SessionDep

__all__ = ["Answer", "Question", "maps_key", "router", "transfer_key"]

router = APIRouter()

Asked = Annotated[Question, Query()]


class Answer(TableErrors):
    old: Pair
    new: Pair
    table: str
    """Which table is resampled."""
    own_grid: Pair
    position: str
    note: str
    """Why the model's own table is not shown, if it is not."""
    formulas: list[Formula]


@router.get("/transfer")
def transfer(asked: Asked, session: SessionDep) -> Answer:
    """Return the error of every method by frequency, and the differences between conventions."""
    old, new = grids_of(asked, session)
    return session.once(transfer_key(asked, session), lambda: _answer(asked, session, old, new))


def transfer_key(asked: Question, session: Session) -> Hashable:
    """Return what the errors depend on."""
    return ("transfer", asked.weights, asked.transfer_table, *grids_of(asked, session), asked.bands, asked.resampling)


def _answer(asked: Question, session: Session, old: Size, new: Size) -> Answer:
    config, own = session.config(asked.weights), own_table(asked, session)
    errors, kind = measure_table(asked, session, old, new), own_position(config)
    position = type(kind).__name__ if kind else "windows"
    note = ""
    if asked.transfer_table == "own" and own is None:
        note = f"These weights have no position table ({position}): a 1/f² table on the same grid is shown instead."
    return Answer(
        old=old,
        new=new,
        table="the model's own table" if own is not None else "a table with power 1/f²",
        own_grid=config.position_grid,
        position=position,
        note=note,
        formulas=formulas_of(old, new, asked, errors),
        **dict(errors),
    )


@router.get("/transfer/maps", response_class=Frame, response_model=Header[TableFacts])
def maps(asked: Asked, session: SessionDep) -> Frame:
    """Return pictures of the table before, after and exactly resampled, and of the difference."""
    return session.once(maps_key(asked, session), lambda: _maps(asked, session))


def maps_key(asked: Question, session: Session) -> Hashable:
    """Return what the pictures of the table depend on."""
    shown = (asked.resampling, asked.table_view, asked.table_index)
    return ("transfer maps", asked.weights, asked.transfer_table, *grids_of(asked, session), *shown)


def _maps(asked: Question, session: Session) -> Frame:
    old, new = grids_of(asked, session)
    table = table_of(asked, session, old)
    require(
        asked.table_view == "colours" or asked.table_index < table.shape[1],
        f"{asked.table_view} {asked.table_index} is not among {table.shape[1]}; use 0 to {table.shape[1] - 1}",
    )
    return frame(*resampled_table(table, old, new, asked.resampling, asked.table_view, asked.table_index))


class Projected(BaseModel):
    patch: Pair
    new_patch: Pair
    largest_patch: int
    """The largest useful height of a new patch."""
    chosen: Loss
    sides: list[int]
    """Heights of the new patches of the curves."""
    curves: dict[str, list[float]]
    """The relative error of tokens on photographs, by method of resizing."""
    formulas: list[Formula]


@router.get("/transfer/projection")
def projection(asked: Asked, session: SessionDep) -> Projected:
    """Return what the patch projection loses when it is resized to another patch size."""
    config = plain_config(asked, session)
    patch = config.patch
    new = scaled(patch, asked.resized_patch)
    chosen = session.once(
        loss_key(asked, session), lambda: loss_of(filters_of(asked, session), new, asked.filter_resize)
    )
    sides = sides_of(patch)
    curves = session.once(("filter curves", asked.weights), lambda: curves_of(filters_of(asked, session), patch, sides))
    return Projected(
        patch=patch,
        new_patch=new,
        largest_patch=min(LARGEST_PATCH, 4 * patch.height),
        chosen=chosen,
        sides=sides,
        curves=curves,
        formulas=projection_formulas(patch, new, chosen, config.width),
    )


@router.get("/transfer/filters", response_class=Frame, response_model=Header[FilterFacts])
def filters(asked: Asked, session: SessionDep) -> Frame:
    """Return the strongest filters before and after resizing, and resized back."""
    new = scaled(plain_config(asked, session).patch, asked.resized_patch)
    return session.once(
        filters_key(asked, session),
        lambda: frame(*resized_filters(filters_of(asked, session), new, asked.filter_resize)),
    )


@router.get("/transfer/drift", response_class=Frame, response_model=Header[DriftFacts])
def drift(asked: Asked, session: SessionDep) -> Frame:
    """Return how much the model's features change: for every method, and as a map for the chosen one."""
    checkpoint, new = session.checkpoint(asked.weights), new_grid(asked)
    config = checkpoint.config
    if not isinstance(config, ViTConfig):
        raise VitrailError(f"a {type(config).__name__} has no tokens on one grid to compare; choose a ViT's weights")
    pixels = session.image(asked.image)
    key = ("drift", asked.image, asked.weights, new, asked.resampling)
    return frame(*session.once(key, lambda: feature_drift(checkpoint, new, pixels, asked.resampling)))
