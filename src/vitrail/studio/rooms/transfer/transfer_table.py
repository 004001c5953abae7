"""The table of positions that is carried, and what every method makes of it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, get_args

from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import Convention
from vitrail.studio.formulas import Formula, short
from vitrail.studio.rooms.transfer.transfer_question import Question, Resampling
from vitrail.studio.session import Session

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TableErrors", "formulas_of", "grids_of", "measure_table", "new_grid", "own_table", "table_of"]

CONVENTIONS = get_args(Convention)
KNOWN_WIDTH = 192
MAX_PLACES = 1600


class Band(BaseModel):
    """Frequencies between two shares of the finest that the old grid carries."""

    low: float
    high: float
    energy: float
    """Share of the table's energy (its mean aside) in this band."""
    error: float
    round_trip: float


class MethodErrors(BaseModel):
    """One method between the two grids: as `vitrail simulate --json` says it, and what it is."""

    method: str
    about: str
    convention: bool
    error: float
    round_trip: float
    bands: list[Band]


class Survival(BaseModel):
    """One kind of position between two grids; see `checkpoint.assess.kind_transfer`."""

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
    """Difference of the row's convention from the column's, relative to the latter."""
    largest_disagreement: float
    kinds: list[Survival]
    """Which kind survives: the model's own first, then stand-ins."""
    trained: bool
    """Whether the first of them is the model's own."""


def new_grid(asked: Question) -> Size:
    new = Size(asked.new_rows, asked.new_columns)
    require(new.area <= MAX_PLACES, f"a grid of {new} has {new.area:,} places; use one of at most {MAX_PLACES:,}")
    return new


def grids_of(asked: Question, here: Session) -> tuple[Size, Size]:
    """The weights' own grid, or the asked one, and the new one."""
    if asked.transfer_table == "own":
        return here.config(asked.weights).grid, new_grid(asked)
    return Size(asked.old_rows, asked.old_columns), new_grid(asked)


def own_table(asked: Question, here: Session) -> Tensor | None:
    from vitrail.checkpoint.assess.kind_transfer import learned_table

    return learned_table(here.checkpoint(asked.weights)) if asked.transfer_table == "own" else None


def table_of(asked: Question, here: Session, old: Size) -> Tensor:
    from vitrail.checkpoint.assess.simulate import known_table

    own = own_table(asked, here)
    return here.once(("known", old), lambda: known_table(old, KNOWN_WIDTH)) if own is None else own


def measure_table(asked: Question, here: Session, old: Size, new: Size) -> TableErrors:
    """The library's answers, in the way that `vitrail simulate` asks for them."""
    from vitrail.checkpoint.assess.kind_transfer import survival, survival_of
    from vitrail.checkpoint.assess.simulate import known_table, simulate
    from vitrail.checkpoint.surgery.resample import METHODS, resample_table

    own = own_table(asked, here)
    found = [simulate(old, new, method, table=own, bands=asked.bands) for method in get_args(Resampling)]
    table = known_table(old, KNOWN_WIDTH) if own is None else own
    carried = {name: resample_table(table.double(), old=old, new=new, method=name) for name in CONVENTIONS}
    config = here.config(asked.weights)
    trained = []
    if asked.transfer_table == "own" and isinstance(config, ViTConfig):
        with suppress(VitrailError):  # no positions, or biases of windows: nothing to carry
            trained = [survival_of(here.checkpoint(asked.weights), new, method=asked.resampling)]
    disagreement = [
        [float((first - second).norm() / second.norm()) for second in carried.values()] for first in carried.values()
    ]
    return TableErrors(
        on_new_grid=config.position.describe().on_new_grid if isinstance(config, ViTConfig) else "the windows stay",
        methods=[
            MethodErrors(
                method=each.method,
                about=METHODS[each.method],
                convention=each.method in CONVENTIONS,
                error=each.error,
                round_trip=each.round_trip,
                bands=[Band(**vars(band)) for band in each.bands],
            )
            for each in found
        ],
        conventions=CONVENTIONS,
        disagreement=disagreement,
        largest_disagreement=max(map(max, disagreement)),
        kinds=[Survival(**vars(each)) for each in (*trained, *survival(old, new, method=asked.resampling))],
        trained=bool(trained),
    )


def formulas_of(old: Size, new: Size, asked: Question) -> list[Formula]:
    return [
        Formula(
            name="the table is a sum of cosines",
            symbols="t(i, j) = Σ a(k, l) · cos(πk (i + ½) / h) · cos(πl (j + ½) / w)",
            numbers=f"k = 0 … {old.height - 1}, l = 0 … {old.width - 1}: {short(old.area)} waves a channel",
        ),
        Formula(
            name="what the new grid can carry",
            symbols="min(h, r) · min(w, s) of h · w waves",
            numbers=f"{min(old.height, new.height)} · {min(old.width, new.width)} of {short(old.area)} = "
            f"{min(old.height, new.height) * min(old.width, new.width) / old.area:.0%}",
        ),
        Formula(
            name="error",
            symbols="|method(t) − exact(t)| / |t|, per band of waves",
            numbers=f"{asked.bands} bands, by the finer of a wave's two axes = "
            f"{', '.join(f'{(band + 1) / asked.bands:.0%}' for band in range(asked.bands))} of the finest",
        ),
        Formula(
            name="rows to store",
            symbols="r · s instead of h · w",
            numbers=f"{new.height} · {new.width} instead of {old.height} · {old.width} = "
            f"{short(new.area)} instead of {short(old.area)}",
        ),
    ]
