"""Room 4, positions: how similar every kind of position embedding makes two patches, on any grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.config import MobileConfig
from vitrail.errors import VitrailError
from vitrail.geometry import position_id
from vitrail.server.arrays import Frame, Header, Levels, NoFacts, frame
from vitrail.server.formulas import Formula
from vitrail.server.plans import Pair
from vitrail.server.rooms.positions.position_kinds import (
    WORDS,
    Curve,
    Question,
    differs_by_head,
    grid_of,
    measure_kind,
    position_of,
)
from vitrail.server.rooms.positions.position_words import (
    about,
    formulas_of,
    measured_formulas,
    on_new_grid_of,
    parameters_of,
)
from vitrail.server.session import Session, SessionDep

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Question", "router"]

router = APIRouter()

MEASURED_PATCHES = 324
"""All kinds are measured on grids of up to this many patches; on larger grids, only the two that are shown."""


Asked = Annotated[Question, Query()]


class Side(BaseModel):
    """One kind of position on the chosen grid."""

    kind: str
    words: str
    about: str
    measure: str
    grid: Pair
    """The chosen grid, or the window's for a model with windows."""
    parameters: int
    parameters_formula: Formula
    formulas: list[Formula]
    """Those of its figures."""
    on_new_grid: str
    curve: Curve | None
    """None for a grid of one patch."""
    offset_share: float
    """The share of the similarity's variance that the offset between two patches explains."""
    cell: Pair
    map: list[list[float]]
    """The similarity of the chosen patch to every patch, by row and column."""
    by_layer: bool
    """Whether layers and heads have different positions."""


class Answer(BaseModel):
    own_grid: Pair
    """The grid of the model's training."""
    token: int
    """The index of the chosen patch in the sequence."""
    sides: list[Side]
    untrained: Curve | None
    """A learned table before training, for comparison."""
    formulas: list[Formula]


@router.get("/positions")
def positions(asked: Asked, session: SessionDep) -> Answer:
    """Return both kinds: parameters, similarity against distance, and the chosen patch's map."""
    config = session.config(asked.weights)
    grid = grid_of(asked, session)
    cell = (min(asked.cell_row, grid.height - 1), min(asked.cell_column, grid.width - 1))
    prefix = 0 if isinstance(config, MobileConfig) else config.prefix.count
    sides = [_side(kind, asked, session) for kind in (asked.kind, asked.other_kind)]
    return Answer(
        own_grid=config.position_grid,
        token=position_id(*cell, grid, prefix),
        sides=sides,
        untrained=measure_kind("learned", asked, session).curve,
        formulas=formulas_of({side.words: side.parameters_formula for side in sides}, asked, session),
    )


@router.get("/positions/maps", response_class=Frame, response_model=Header[NoFacts])
def maps(asked: Asked, session: SessionDep) -> Frame:
    """Return `first` and `second`, every patch's map (rows, columns, rows, columns), and the means by offset."""
    sides = {name: measure_kind(k, asked, session) for name, k in (("first", asked.kind), ("second", asked.other_kind))}
    arrays: dict[str, np.ndarray | Levels] = {}
    for name, measured in sides.items():
        arrays |= {name: measured.maps, f"{name}_offsets": measured.offsets}
    comparable = len({measured.measure for measured in sides.values()}) == 1
    return frame(
        NoFacts(), arrays, alike=[("first", "second"), ("first_offsets", "second_offsets")] if comparable else []
    )


class Row(BaseModel):
    """One kind of position, as a table row."""

    kind: str
    words: str
    parameters: int
    correlation: float | None
    """None, like `offset_share`, if the grid is large and the kind is not shown."""
    offset_share: float | None
    on_new_grid: str


@router.get("/positions/kinds")
def kinds(asked: Asked, session: SessionDep) -> list[Row]:
    """Return all kinds of position, measured on the chosen grid."""
    rows = []
    for kind in WORDS:
        measure = grid_of(asked, session).area <= MEASURED_PATCHES or kind in (asked.kind, asked.other_kind)
        try:
            count = parameters_of(kind, asked, session)[0]
            measured = measure_kind(kind, asked, session) if measure else None
        except VitrailError:  # not possible with this width or number of heads; a mobile model has no positions
            continue
        rows.append(
            Row(
                kind=kind,
                words=WORDS[kind],
                parameters=count,
                correlation=measured.curve.correlation if measured and measured.curve else None,
                offset_share=measured.share if measured else None,
                on_new_grid=on_new_grid_of(kind, asked, session),
            )
        )
    return rows


def _side(kind: str, asked: Question, session: Session) -> Side:
    measured = measure_kind(kind, asked, session)
    grid = measured.grid
    row, column = min(asked.cell_row, grid.height - 1), min(asked.cell_column, grid.width - 1)
    count, formula = parameters_of(kind, asked, session)
    position = position_of(kind, session.config(asked.weights))
    return Side(
        kind=kind,
        words=WORDS[kind],
        about=about(kind, position, asked),
        measure=measured.measure,
        grid=grid,
        parameters=count,
        parameters_formula=formula,
        formulas=[formula.model_copy(update={"name": "parameters"}), *measured_formulas(measured)],
        on_new_grid=on_new_grid_of(kind, asked, session),
        curve=measured.curve,
        offset_share=measured.share,
        cell=(row, column),
        map=measured.maps[row, column].tolist(),
        by_layer=differs_by_head(position),
    )
