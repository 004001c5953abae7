"""Room 4, positions: how alike they make places, for every kind, on any grid."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import position_id
from vitrail.studio.arrays import Frame, Header, NoFacts, frame
from vitrail.studio.formulas import Formula
from vitrail.studio.plans import Pair
from vitrail.studio.rooms.positions.position_kinds import (
    WORDS,
    Curve,
    Question,
    differs_by_head,
    grid_of,
    measure_kind,
    position_of,
)
from vitrail.studio.rooms.positions.position_words import about, formulas_of, on_new_grid_of, parameters_of
from vitrail.studio.session import Here, Session

__all__ = ["Question", "router"]

router = APIRouter()

MEASURED_PLACES = 324
"""All kinds are measured on grids up to this; beyond, the two that are shown."""


Asked = Annotated[Question, Query()]


class Side(BaseModel):
    """One kind on the asked grid."""

    kind: str
    words: str
    about: str
    measure: str
    grid: Pair
    """As asked, or the window's where the model has windows."""
    parameters: int
    parameters_formula: Formula
    on_new_grid: str
    curve: Curve | None
    """None on a grid of one patch."""
    offset_share: float
    """Share of the similarity's variance that the offset between two patches alone explains."""
    cell: Pair
    map: list[list[float]]
    """The chosen patch's similarity with all: exact, rows first."""
    by_layer: bool
    """Whether layer and head choose among several."""


class Answer(BaseModel):
    own_grid: Pair
    """The grid that the model's positions were made for."""
    token: int
    """Place in the sequence of the chosen patch."""
    sides: list[Side]
    untrained: Curve | None
    """A learned table as training would find it, for comparison."""
    formulas: list[Formula]


@router.get("/positions")
def positions(asked: Asked, here: Here) -> Answer:
    """Both kinds: parameters, similarity against distance, and the chosen patch's map."""
    config = here.config(asked.weights)
    grid = grid_of(asked)
    cell = (min(asked.cell_row, grid.height - 1), min(asked.cell_column, grid.width - 1))
    prefix = config.prefix.count if isinstance(config, ViTConfig) else 0
    sides = [_side(kind, asked, here) for kind in (asked.kind, asked.other_kind)]
    return Answer(
        own_grid=(config.grid.height, config.grid.width),
        token=position_id(*cell, grid, prefix),
        sides=sides,
        untrained=measure_kind("learned", asked, here).curve,
        formulas=formulas_of({side.words: side.parameters_formula for side in sides}, asked, here),
    )


@router.get("/positions/maps", response_class=Frame, response_model=Header[NoFacts])
def maps(asked: Asked, here: Here) -> Frame:
    """`first` and `second`: every patch's map, (rows, columns, rows, columns); and the means by offset."""
    arrays: dict[str, np.ndarray] = {}
    for name, kind in (("first", asked.kind), ("second", asked.other_kind)):
        found = measure_kind(kind, asked, here)
        arrays[name] = found.similarity.values.numpy()
        arrays[f"{name}_offsets"] = found.offsets.means.numpy()
    return frame(NoFacts(), arrays)


class Row(BaseModel):
    """One kind, in a line."""

    kind: str
    words: str
    parameters: int
    correlation: float | None
    """None, as the next, on grids so large that only what is shown is measured."""
    offset_share: float | None
    on_new_grid: str


@router.get("/positions/kinds")
def kinds(asked: Asked, here: Here) -> list[Row]:
    """All kinds on the asked grid, measured."""
    rows = []
    for kind in WORDS:
        measure = grid_of(asked).area <= MEASURED_PLACES or kind in (asked.kind, asked.other_kind)
        try:
            count = parameters_of(kind, asked, here)[0]
            found = measure_kind(kind, asked, here) if measure else None
        except VitrailError:  # this width or these heads cannot have it; a mobile model has none of its own
            continue
        rows.append(
            Row(
                kind=kind,
                words=WORDS[kind],
                parameters=count,
                correlation=found.curve.correlation if found and found.curve else None,
                offset_share=found.offsets.share if found else None,
                on_new_grid=on_new_grid_of(kind, asked, here),
            )
        )
    return rows


def _side(kind: str, asked: Question, here: Session) -> Side:
    measured = measure_kind(kind, asked, here)
    found = measured.similarity
    row, column = min(asked.cell_row, found.grid.height - 1), min(asked.cell_column, found.grid.width - 1)
    count, formula = parameters_of(kind, asked, here)
    position = position_of(kind, here.config(asked.weights))
    return Side(
        kind=kind,
        words=WORDS[kind],
        about=about(kind, position, asked),
        measure=found.measure,
        grid=(found.grid.height, found.grid.width),
        parameters=count,
        parameters_formula=formula,
        on_new_grid=on_new_grid_of(kind, asked, here),
        curve=measured.curve,
        offset_share=measured.offsets.share,
        cell=(row, column),
        map=found.values[row, column].tolist(),
        by_layer=differs_by_head(position),
    )
