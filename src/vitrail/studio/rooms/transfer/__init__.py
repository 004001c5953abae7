"""Room 5, resolution transfer: a table of positions on another grid, and what that does to it and to the model."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.studio.arrays import Frame, Header, frame
from vitrail.studio.formulas import Formula, short
from vitrail.studio.plans import Pair
from vitrail.studio.rooms.transfer.transfer_frames import (
    DriftFacts,
    FilterFacts,
    TableFacts,
    carried_filters,
    carried_table,
    feature_drift,
)
from vitrail.studio.rooms.transfer.transfer_projection import Loss, curves_of, filters_of, loss_of, scaled, sides_of
from vitrail.studio.rooms.transfer.transfer_question import LARGEST_PATCH, Question
from vitrail.studio.rooms.transfer.transfer_table import (
    TableErrors,
    formulas_of,
    grids_of,
    measure_table,
    new_grid,
    own_table,
    table_of,
)
from vitrail.studio.session import Here

__all__ = ["Question", "router"]

router = APIRouter()

Asked = Annotated[Question, Query()]


class Answer(TableErrors):
    old: Pair
    new: Pair
    table: str
    """What is carried, in words."""
    own_grid: Pair
    position: str
    note: str
    """Where the model's own table is not what is shown, why."""
    formulas: list[Formula]


@router.get("/transfer")
def transfer(asked: Asked, here: Here) -> Answer:
    """What every method makes of the table, frequency by frequency, and how far conventions are apart."""
    config = here.config(asked.weights)
    old, new = grids_of(asked, here)
    own = own_table(asked, here)
    key = ("transfer", asked.weights, asked.transfer_table, old, new, asked.bands, asked.resampling)
    found = here.once(key, lambda: measure_table(asked, here, old, new))
    is_vit = isinstance(config, ViTConfig)
    position = type(config.position).__name__ if is_vit else "windows"
    note = ""
    if asked.transfer_table == "own" and own is None:
        note = f"These weights have no table of places ({position}): a 1/f² table on their grid is shown instead."
    return Answer(
        old=(old.height, old.width),
        new=(new.height, new.width),
        table="the model's own table" if own is not None else "a table with power 1/f²",
        own_grid=(config.grid.height, config.grid.width),
        position=position,
        note=note,
        formulas=formulas_of(old, new, asked),
        **dict(found),
    )


@router.get("/transfer/maps", response_class=Frame, response_model=Header[TableFacts])
def maps(asked: Asked, here: Here) -> Frame:
    """The table before, after, as it should be, and the difference, as pictures: bytes, their range in the facts."""
    old, new = grids_of(asked, here)
    table = table_of(asked, here, old)
    require(
        asked.table_view == "colours" or asked.table_index < table.shape[1],
        f"{asked.table_view} {asked.table_index} is not among this table's {table.shape[1]}; use a smaller one",
    )
    return frame(*carried_table(table, old, new, asked.resampling, asked.table_view, asked.table_index))


class Projected(BaseModel):
    patch: Pair
    new_patch: Pair
    largest_patch: int
    """The largest height that is worth asking for."""
    chosen: Loss
    sides: list[int]
    """Heights of new patches, for the curves."""
    curves: dict[str, list[float]]
    """By way of resizing: tokens off by, on photographs."""
    formulas: list[Formula]


@router.get("/transfer/projection")
def projection(asked: Asked, here: Here) -> Projected:
    """What the patch projection loses on its way to another patch size."""
    filters, patch = filters_of(asked, here)
    new = scaled(patch, asked.resized_patch)
    chosen = here.once(
        ("filters", asked.weights, new, asked.filter_resize), lambda: loss_of(filters, new, asked.filter_resize)
    )
    sides = sides_of(patch)
    curves = here.once(("filter curves", asked.weights), lambda: curves_of(filters, patch, sides))
    return Projected(
        patch=(patch.height, patch.width),
        new_patch=(new.height, new.width),
        largest_patch=min(LARGEST_PATCH, 4 * patch.height),
        chosen=chosen,
        sides=sides,
        curves=curves,
        formulas=[
            Formula(
                name="new filters",
                symbols="ŵ = argmin E|ŵ · B x − w · x|²",
                numbers=f"B resizes a patch from {patch} to {new}: {short(patch.area)} → {short(new.area)} pixels "
                f"a channel = {'nothing' if new.height >= patch.height else 'some of it'} is lost",
            )
        ],
    )


@router.get("/transfer/filters", response_class=Frame, response_model=Header[FilterFacts])
def filters(asked: Asked, here: Here) -> Frame:
    """The strongest filters before, after, and after a way back."""
    found, patch = filters_of(asked, here)
    return frame(*carried_filters(found, scaled(patch, asked.resized_patch), asked.filter_resize))


@router.get("/transfer/drift", response_class=Frame, response_model=Header[DriftFacts])
def drift(asked: Asked, here: Here) -> Frame:
    """How far the model's features move on the image: by every method, and place by place for the chosen one."""
    checkpoint, new = here.checkpoint(asked.weights), new_grid(asked)
    config = checkpoint.config
    if not isinstance(config, ViTConfig):
        raise VitrailError(f"a {type(config).__name__} has windows, not positions on a grid; choose a ViT's weights")
    pixels = here.image(asked.image)
    key = ("drift", asked.image, asked.weights, new, asked.resampling)
    return frame(*here.once(key, lambda: feature_drift(checkpoint, new, pixels, asked.resampling)))
