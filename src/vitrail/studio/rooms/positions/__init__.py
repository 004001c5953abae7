"""Room 4, positions: how alike they make places, for every kind, on any grid."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.responses import Response

from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import (
    Learned,
    Mlp,
    NoPosition,
    Patches,
    Position,
    RelativeBias,
    Rotary,
    RotaryMixed,
    SinCos1d,
    SinCos2d,
)
from vitrail.studio.arrays import FRAME, frame
from vitrail.studio.controls import Loaded, choice, number
from vitrail.studio.formulas import Formula, short
from vitrail.studio.plans import Pair
from vitrail.studio.session import DEFAULT, Here, Session

if TYPE_CHECKING:
    from vitrail.look.offsets import ByOffset
    from vitrail.look.positions import PositionSimilarity

__all__ = ["Question", "router"]

router = APIRouter()

Kind = Literal["own", "learned", "sine1d", "sine2d", "relative", "rotary", "rotary_normalised", "rotary_mixed", "none"]
WORDS: dict[str, str] = {
    "own": "The model's own",
    "learned": "Learned, untrained",
    "sine1d": "1D sines",
    "sine2d": "2D sines",
    "relative": "Relative bias, untrained",
    "rotary": "Rotary, by index",
    "rotary_normalised": "Rotary, normalised",
    "rotary_mixed": "Rotary, mixed, untrained",
    "none": "None",
}
POSITIONS: dict[str, Position] = {
    "learned": Learned(),
    "sine1d": SinCos1d(),
    "sine2d": SinCos2d(),
    "relative": RelativeBias(),
    "rotary": Rotary(),
    "rotary_normalised": Rotary(coordinates="normalised"),
    "rotary_mixed": RotaryMixed(),
    "none": NoPosition(),
}
MAX_PLACES = 1400
MEASURED_PLACES = 324
"""All kinds are measured on grids up to this; beyond, the two that are shown."""


class Question(Loaded):
    """Two kinds of position on one grid, and a place on it."""

    kind: Kind = choice("own", label="Positions", about="The kind that is shown first", words=WORDS)
    other_kind: Kind = choice("sine2d", label="Beside them", about="The kind to compare with", words=WORDS)
    grid_rows: int = number(8, 1, 40, label="Rows", about="Of the grid of patches; a learned table is carried to it")
    grid_columns: int = number(8, 1, 40, label="Columns", about="Of the grid of patches")
    cell_row: int = number(2, 0, 39, label="Row of the patch", about="Whose similarity with all others is shown")
    cell_column: int = number(3, 0, 39, label="Column of the patch", about="From 0, at the left")
    position_layer: int = number(
        0, 0, 63, label="Layer", about="Where every layer has positions of its own; 0 is the first"
    )
    position_head: int = number(
        -1, -1, 63, label="Head", about="Where every head has positions of its own; −1 is the mean of all"
    )


Asked = Annotated[Question, Query()]


class Curve(BaseModel):
    """Similarity against distance on the grid, over all pairs of different patches."""

    distances: list[int]
    means: list[float]
    spreads: list[float]
    pairs: list[int]
    correlation: float


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
    grid = _grid(asked)
    cell = (min(asked.cell_row, grid.height - 1), min(asked.cell_column, grid.width - 1))
    prefix = config.prefix.count if isinstance(config, ViTConfig) else 0
    sides = [_side(kind, asked, here) for kind in (asked.kind, asked.other_kind)]
    return Answer(
        own_grid=(config.grid.height, config.grid.width),
        token=prefix + cell[0] * grid.width + cell[1],
        sides=sides,
        untrained=_measured("learned", asked, here).curve,
        formulas=_formulas(sides, asked, here),
    )


@router.get("/positions/maps", response_class=Response, responses=FRAME)
def maps(asked: Asked, here: Here) -> Response:
    """`first` and `second`: every patch's map, (rows, columns, rows, columns); and the means by offset."""
    arrays: dict[str, np.ndarray] = {}
    for name, kind in (("first", asked.kind), ("second", asked.other_kind)):
        found = _measured(kind, asked, here)
        arrays[name] = found.similarity.values.numpy()
        arrays[f"{name}_offsets"] = found.offsets.means.numpy()
    return frame({}, arrays)


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
        measure = _grid(asked).area <= MEASURED_PLACES or kind in (asked.kind, asked.other_kind)
        try:
            count = _parameters(kind, asked, here)[0]
            found = _measured(kind, asked, here) if measure else None
        except VitrailError:  # this width or these heads cannot have it; a mobile model has none of its own
            continue
        rows.append(
            Row(
                kind=kind,
                words=WORDS[kind],
                parameters=count,
                correlation=found.curve.correlation if found and found.curve else None,
                offset_share=found.offsets.share if found else None,
                on_new_grid=_on_new_grid(kind, asked, here),
            )
        )
    return rows


# ── a kind on a grid ────────────────────────────────────────────────────────────────────────────────────────────


def _grid(asked: Question) -> Size:
    grid = Size(asked.grid_rows, asked.grid_columns)
    require(grid.area <= MAX_PLACES, f"a grid of {grid} has {grid.area:,} places; use one of at most {MAX_PLACES:,}")
    return grid


def _side(kind: str, asked: Question, here: Session) -> Side:
    measured = _measured(kind, asked, here)
    found = measured.similarity
    row, column = min(asked.cell_row, found.grid.height - 1), min(asked.cell_column, found.grid.width - 1)
    count, formula = _parameters(kind, asked, here)
    position = _position(kind, here.config(asked.weights))
    return Side(
        kind=kind,
        words=WORDS[kind],
        about=_about(kind, position, asked),
        measure=found.measure,
        grid=(found.grid.height, found.grid.width),
        parameters=count,
        parameters_formula=formula,
        on_new_grid=_on_new_grid(kind, asked, here),
        curve=measured.curve,
        offset_share=measured.offsets.share,
        cell=(row, column),
        map=found.values[row, column].tolist(),
        by_layer=position is None or isinstance(position, RelativeBias | RotaryMixed),
    )


def _position(kind: str, config: Config) -> Position | None:
    """None for a pyramid's windows."""
    if kind != "own":
        return POSITIONS[kind]
    return config.position if isinstance(config, ViTConfig) else None


def _plain(config: Config, grid: Size, position: Position, here: Session, **changes: Any) -> ViTConfig:
    """A ViT of the model's width and heads on a grid; a pyramid has no one width, so the bundled model's are taken."""
    base = config if isinstance(config, ViTConfig) else here.planned("default")
    if isinstance(position, RelativeBias) and not base.prefix.count:
        position = replace(position, prefix=False)
    return ViTConfig(
        image=grid,
        embedding=Patches(patch=Size(1, 1)),
        prefix=base.prefix,
        pool=base.pool,
        position=position,
        width=base.width,
        num_heads=base.num_heads,
        **changes,
    )


@dataclass(frozen=True)
class Measured:
    """A kind on a grid, with what follows from it."""

    similarity: PositionSimilarity
    offsets: ByOffset
    curve: Curve | None


def _measured(kind: str, asked: Question, here: Session) -> Measured:
    grid = _grid(asked)
    layered = isinstance(_position(kind, here.config(asked.weights)), RelativeBias | RotaryMixed | None)
    layer, head = (asked.position_layer, asked.position_head) if layered else (0, -1)
    key = ("positions", asked.weights, kind, grid, layer, head)

    def measure() -> Measured:
        from vitrail.look.offsets import by_distance, by_offset

        found = _compute(kind, asked.weights, here, grid, layer, None if head < 0 else head)
        offsets = by_offset(found)
        curve = None if found.grid.area == 1 else Curve(**asdict(by_distance(offsets)))
        return Measured(found, offsets, curve)

    return here.once(key, measure)


def _compute(kind: str, weights: str, here: Session, grid: Size, layer: int, head: int | None) -> PositionSimilarity:
    import torch

    from vitrail.look.positions import PositionSimilarity, position_similarity
    from vitrail.nn.vit import ViT

    config = here.config(weights)
    if kind == "own":
        if _position(kind, config) == NoPosition():
            return _alike(grid)
        found = position_similarity(here.subject("default", weights).model, grid=grid, layer=layer, head=head)
    elif kind == "none":
        return _alike(grid)
    else:
        plain = _plain(config, grid, POSITIONS[kind], here, depth=1, mlp=Mlp(width=1), classes=0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(layer)
            found = position_similarity(ViT(plain), head=head)
    return PositionSimilarity(values=found.values.float(), kind=found.kind, measure=found.measure)


def _alike(grid: Size) -> PositionSimilarity:
    """Without positions, equal tokens are equal wherever they lie."""
    import torch

    from vitrail.look.positions import PositionSimilarity

    return PositionSimilarity(values=torch.ones(*grid, *grid), kind="none", measure="q·k of equal tokens, over |q||k|")


# ── words and formulas ──────────────────────────────────────────────────────────────────────────────────────────


def _on_new_grid(kind: str, asked: Question, here: Session) -> str:
    position = _position(kind, here.config(asked.weights))
    return "the window stays, whatever the grid" if position is None else position.describe().on_new_grid


def _parameters(kind: str, asked: Question, here: Session) -> tuple[int, Formula]:
    """What the kind has to learn on the asked grid, and how that is counted."""
    config, name = here.config(asked.weights), "parameters of positions"
    position = _position(kind, config)
    if position is None:
        tensors = here.checkpoint(asked.weights).tensors
        count = sum(tensor.numel() for name, tensor in tensors.items() if name.endswith("position.table"))
        return count, Formula(
            name=name, symbols="(2h − 1) · (2w − 1) · heads, every block", numbers=f"= {short(count)}"
        )
    depth = config.depth if isinstance(config, ViTConfig) else here.planned("default").depth
    attention = {"attention": config.attention} if kind == "own" and isinstance(config, ViTConfig) else {}
    plain = _plain(config, _grid(asked), position, here, depth=depth, **attention)
    found = plain.position.learns(plain)
    return found.count, Formula(name=name, symbols=found.symbols, numbers=f"{found.numbers} = {short(found.count)}")


def _formulas(sides: list[Side], asked: Question, here: Session) -> list[Formula]:
    grid, config = _grid(asked), here.config(asked.weights)
    base = config if isinstance(config, ViTConfig) else here.planned("default")
    row, column = min(asked.cell_row, grid.height - 1), min(asked.cell_column, grid.width - 1)
    prefix, offsets = base.prefix.count, (2 * grid.height - 1) * (2 * grid.width - 1)
    own = [
        Formula(name=f"{side.parameters_formula.name}: {side.words}", symbols=symbols, numbers=numbers)
        for side in sides
        for symbols, numbers in [(side.parameters_formula.symbols, side.parameters_formula.numbers)]
    ]
    unique = list({formula.name: formula for formula in own}.values())
    return [
        Formula(
            name="place in the sequence",
            symbols="prefix + i · columns + j",
            numbers=f"{prefix} + {row} · {grid.width} + {column} = {prefix + row * grid.width + column}",
        ),
        *unique,
        Formula(
            name="a relative bias, per head",
            symbols="(2h − 1) · (2w − 1), not 2 · N · D as is often said",
            numbers=f"{2 * grid.height - 1} · {2 * grid.width - 1} = {short(offsets)}, "
            f"not 2 · {grid.area} · {base.width} = {short(2 * grid.area * base.width)}",
        ),
        Formula(
            name="a row of 2D sines is as long as any other",
            symbols="√(D / 2)",
            numbers=f"√({base.width} / 2) = {short((base.width / 2) ** 0.5)}",
        ),
        Formula(
            name="cosine similarity",
            symbols="p · q / (|p| · |q|)",
            numbers=f"of two rows of {base.width} numbers = −1 … 1",
        ),
    ]


def _about(kind: str, position: Position | None, asked: Question) -> str:
    """What one sees, in a sentence or two."""
    match position:
        case None:
            return "A bias for every offset within a window, learned: near keys are favoured, or some direction is."
        case Learned() if kind == "own" and asked.weights == DEFAULT:
            return (
                "One row of numbers per patch, trained on photographs. This table began as sines of row and column, "
                "so not all of its two dimensions were learned."
            )
        case Learned() if kind == "own":
            return (
                "One row of numbers per patch. Nothing tells training where the patches lie; "
                "what the table knows of rows and columns, it has from images, or from how it began."
            )
        case Learned():
            return "One row per patch, as training finds it: random, so that no place is like any other yet."
        case SinCos1d():
            return (
                f"Sines of the index in the sequence. The patch to the right is 1 step away, the patch below "
                f"{asked.grid_columns}: the second dimension is not told."
            )
        case SinCos2d():
            return (
                "Half of a row's numbers are sines of its row, half of its column: around every patch the same cross."
            )
        case RelativeBias():
            trained = "as learned" if kind == "own" else "as training finds it: random"
            return f"A number per head for every offset, added to the scores of attention; {trained}."
        case RotaryMixed():
            return "Queries and keys turn along directions of their own per head; their product tells the offset."
        case Rotary(coordinates="normalised"):
            return (
                "Queries and keys turn by their place between the image's edges, −1 … 1: a finer grid turns them by "
                "less from patch to patch."
            )
        case Rotary():
            return "Queries and keys turn by angles of row and column; their product depends on the offset alone."
        case _:
            return (
                "Every place is like every other. Shuffle the patches, and the outputs are shuffled along: the encoder "
                "sees a bag of patches."
            )
