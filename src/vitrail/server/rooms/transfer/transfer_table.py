"""The position table that is resampled, and the error of every method."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, get_args

from pydantic import BaseModel

from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import Convention
from vitrail.server.formulas import Formula, short
from vitrail.server.own_position import own_position
from vitrail.server.rooms.transfer.transfer_question import Question, Resampling
from vitrail.server.session import Session

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TableErrors", "formulas_of", "grids_of", "measure_table", "new_grid", "own_table", "table_of"]

CONVENTIONS = get_args(Convention)
KNOWN_WIDTH = 192
MAX_PATCHES = 1600


class Band(BaseModel):
    """A band of frequencies, as fractions of the highest frequency of the old grid."""

    low: float
    high: float
    energy: float
    """The band's share of the table's energy, without the mean."""
    error: float
    round_trip: float


class MethodErrors(BaseModel):
    """One method between the two grids, as in `vitrail simulate --json`, with a description."""

    method: str
    about: str
    convention: bool
    error: float
    round_trip: float
    bands: list[Band]


class Survival(BaseModel):
    """`checkpoint.assess.kind_transfer.Survival`: one kind of position between two grids."""

    kind: str
    place: float
    step: float
    unseen: float
    on_new_grid: str


class TableErrors(BaseModel):
    on_new_grid: str
    methods: list[MethodErrors]
    conventions: tuple[str, ...]
    disagreement: list[list[float]]
    """The difference between the row's and the column's convention, relative to the column's."""
    largest_disagreement: float
    kinds: list[Survival]
    """The model's own positions first, then other kinds."""
    trained: bool
    """Whether the first kind is the model's own."""


def new_grid(asked: Question) -> Size:
    new = Size(asked.new_rows, asked.new_columns)
    require(new.area <= MAX_PATCHES, f"a grid of {new} has {new.area:,} patches; use at most {MAX_PATCHES:,}")
    return new


def grids_of(asked: Question, session: Session) -> tuple[Size, Size]:
    """Return the old grid, which is the model's own or a chosen one, and the new grid."""
    if asked.transfer_table == "own":
        return session.config(asked.weights).position_grid, new_grid(asked)
    return Size(asked.old_rows, asked.old_columns), new_grid(asked)


def own_table(asked: Question, session: Session) -> Tensor | None:
    from vitrail.checkpoint.assess.kind_transfer import learned_table

    return learned_table(session.checkpoint(asked.weights)) if asked.transfer_table == "own" else None


def table_of(asked: Question, session: Session, old: Size) -> Tensor:
    from vitrail.checkpoint.assess.simulate import known_table

    own = own_table(asked, session)
    return known_table(old, KNOWN_WIDTH) if own is None else own


def measure_table(asked: Question, session: Session, old: Size, new: Size) -> TableErrors:
    """Measure every method and kind of position, as `vitrail simulate` does."""
    from vitrail.checkpoint.assess.kind_transfer import survival, survival_of
    from vitrail.checkpoint.assess.simulate import known_table, simulate
    from vitrail.checkpoint.surgery.resample import METHODS, resample_table

    own = own_table(asked, session)
    simulations = [simulate(old, new, method, table=own, bands=asked.bands) for method in get_args(Resampling)]
    table = known_table(old, KNOWN_WIDTH) if own is None else own
    resampled = {name: resample_table(table.double(), old=old, new=new, method=name) for name in CONVENTIONS}
    position, trained = own_position(session.config(asked.weights)), []
    if asked.transfer_table == "own":
        with suppress(VitrailError):  # no positions, or window biases: nothing to resample
            trained = [survival_of(session.checkpoint(asked.weights), new, method=asked.resampling)]
    tables = resampled.values()
    disagreement = [[float((row - column).norm() / column.norm()) for column in tables] for row in tables]
    return TableErrors(
        on_new_grid=position.describe().on_new_grid if position else "the windows stay",
        methods=[
            MethodErrors(
                method=each.method,
                about=METHODS[each.method],
                convention=each.method in CONVENTIONS,
                error=each.error,
                round_trip=each.round_trip,
                bands=[Band(**vars(band)) for band in each.bands],
            )
            for each in simulations
        ],
        conventions=CONVENTIONS,
        disagreement=disagreement,
        largest_disagreement=max(map(max, disagreement)),
        kinds=[Survival(**vars(each)) for each in (*trained, *survival(old, new, method=asked.resampling))],
        trained=bool(trained),
    )


def _furthest(errors: TableErrors) -> tuple[str, str]:
    """Return the two conventions that differ most."""
    names, rows = errors.conventions, errors.disagreement
    pairs = [(rows[i][j], names[i], names[j]) for i in range(len(names)) for j in range(len(names))]
    return max(pairs)[1:]


def formulas_of(old: Size, new: Size, asked: Question, errors: TableErrors) -> list[Formula]:
    chosen = next(each for each in errors.methods if each.method == asked.resampling)
    table, waves = {"t": "the table of positions"}, f"over {short(old.area - 1)} waves, without the mean"
    first, second = _furthest(errors)
    return [
        Formula(
            name="error on the new grid",
            symbols="|method(t) − exact(t)| / |t|",
            where=table,
            numbers=f"{chosen.method}, {old} → {new}, {waves} = {chosen.error:.2%}",
        ),
        Formula(
            name="round-trip error",
            symbols="|method back(method(t)) − t| / |t|",
            where=table,
            numbers=f"{chosen.method}, {old} → {new} → {old}, {waves} = {chosen.round_trip:.2%}",
        ),
        Formula(
            name="conventions differ by at most",
            symbols="max |a(t) − b(t)| / |b(t)|",
            where={**table, "a": "one convention", "b": "another"},
            numbers=f"{first} against {second} = {errors.largest_disagreement:.2%}",
        ),
        Formula(
            name="the table as a sum of cosines",
            symbols="t(i, j) = Σ a(k, l) · cos(πk (i + ½) / h) · cos(πl (j + ½) / w)",
            where={"k": "frequency of a wave, downwards", "l": "frequency of a wave, across"},
            numbers=f"k = 0 … {old.height - 1}, l = 0 … {old.width - 1}: {short(old.area)} waves per channel",
        ),
        Formula(
            name="waves that the new grid can represent",
            symbols="min(h, r) · min(w, s) of h · w waves",
            numbers=f"{min(old.height, new.height)} · {min(old.width, new.width)} of {short(old.area)} = "
            f"{min(old.height, new.height) * min(old.width, new.width) / old.area:.0%}",
        ),
        Formula(
            name="error by band",
            symbols="|method(t) − exact(t)| / |t|, per band of waves",
            where=table,
            numbers=f"{asked.bands} bands, by the higher of a wave's two frequencies = "
            f"{', '.join(f'{(band + 1) / asked.bands:.0%}' for band in range(asked.bands))} of the highest",
        ),
        Formula(
            name="rows of the table",
            symbols="r · s instead of h · w",
            numbers=f"{new.height} · {new.width} instead of {old.height} · {old.width} = "
            f"{short(new.area)} instead of {short(old.area)}",
        ),
    ]
