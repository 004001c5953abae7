"""Room 5, resolution transfer: a table of positions on another grid, and what that does to it and to the model."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.responses import Response

from vitrail.codec import to_plain
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import Convention, Patches
from vitrail.studio.arrays import FRAME, frame
from vitrail.studio.controls import Loaded, choice, number
from vitrail.studio.formulas import Formula, short
from vitrail.studio.plans import Pair
from vitrail.studio.rooms.transfer.transfer_frames import TableView, carried_filters, carried_table, feature_drift
from vitrail.studio.session import Here, Session

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.checkpoint.assess.projection_loss import ProjectionLoss

__all__ = ["Question", "router"]

router = APIRouter()

Resampling = Literal[
    "timm", "huggingface", "dinov2", "torchvision", "big_vision", "siglip2", "bilinear", "area", "exact"
]
"""`checkpoint.resample.Method`, spelt here so that the page's controls need no torch."""
CONVENTIONS = get_args(Convention)
KNOWN_WIDTH = 192
MAX_PLACES = 1600


class Question(Loaded):
    """A table, the grid it goes to, and how; and a patch for the projection to go to."""

    transfer_table: Literal["own", "known"] = choice(
        "own",
        label="Table",
        about="The model's own positions, or random ones whose power falls as 1/f², on any grid",
        words={"own": "the model's", "known": "power 1/f²"},
    )
    old_rows: int = number(14, 2, 40, label="From rows", about="Of the grid that a 1/f² table is on")
    old_columns: int = number(14, 2, 40, label="From columns", about="Of the grid that a 1/f² table is on")
    new_rows: int = number(14, 2, 40, label="To rows", about="Of the grid that the table goes to")
    new_columns: int = number(20, 2, 40, label="To columns", about="Of the grid that the table goes to")
    resampling: Resampling = choice(
        "timm",
        label="Method",
        about="The first six are conventions: what models were trained with, or will be run by",
        words={
            "timm": "timm: bicubic, antialiased",
            "huggingface": "Hugging Face: bicubic",
            "dinov2": "DINOv2: bicubic, + 0.1",
            "torchvision": "torchvision: bicubic, corners",
            "big_vision": "big_vision: linear, corners",
            "siglip2": "SigLIP 2: linear, antialiased",
            "bilinear": "linear",
            "area": "mean over the area",
            "exact": "exact: the cosine series",
        },
    )
    bands: int = number(4, 1, 8, label="Bands", about="Of frequency, to tell the errors apart")
    table_view: TableView = choice(
        "colours",
        label="Show",
        about="The table has as many channels as the model is wide: three components as colours, or one at a time",
        words={"colours": "colours", "component": "component", "channel": "channel"},
    )
    table_index: int = number(
        0, 0, 4095, step=1, label="Which", about="Component, the strongest first, or channel; from 0"
    )
    resized_patch: int = number(3, 1, 64, unit="px", label="New patch", about="That the projection's filters go to")
    filter_resize: Literal["pinv", "natural", "interpolate"] = choice(
        "pinv",
        label="Filters by",
        about="The pseudo-inverse of the resize (FlexiViT); the same over photographs; or as pictures",
        words={"pinv": "pinv", "natural": "natural", "interpolate": "picture"},
    )


Asked = Annotated[Question, Query()]


class MethodErrors(BaseModel):
    """One method between the two grids: as `vitrail simulate --json` says it, and what it is."""

    method: str
    about: str
    convention: bool
    error: float
    round_trip: float
    bands: list[dict[str, float]]


class Answer(BaseModel):
    old: Pair
    new: Pair
    table: str
    """What is carried, in words."""
    own_grid: Pair
    position: str
    on_new_grid: str
    note: str
    """Where the model's own table is not what is shown, why."""
    methods: list[MethodErrors]
    conventions: list[str]
    disagreement: list[list[float]]
    """Difference of the row's convention from the column's, relative to the latter."""
    kinds: list[dict[str, Any]]
    """Which kind survives: the model's own first, then stand-ins."""
    trained: bool
    """Whether the first of them is the model's own."""
    formulas: list[Formula]


@router.get("/transfer")
def transfer(asked: Asked, here: Here) -> Answer:
    """What every method makes of the table, frequency by frequency, and how far conventions are apart."""
    config = here.config(asked.weights)
    old, new = _grids(asked, here)
    own = _own_table(asked, here)
    key = ("transfer", asked.weights, asked.transfer_table, old, new, asked.bands, asked.resampling)
    found = here.once(key, lambda: _measure(asked, here, old, new))
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
        formulas=_formulas(old, new, asked),
        **found,
    )


@router.get("/transfer/maps", response_class=Response, responses=FRAME)
def maps(asked: Asked, here: Here) -> Response:
    """The table before, after, as it should be, and the difference, as pictures: bytes, their range in the facts."""
    old, new = _grids(asked, here)
    table = _table(asked, here, old)
    require(
        asked.table_view == "colours" or asked.table_index < table.shape[1],
        f"{asked.table_view} {asked.table_index} is not among this table's {table.shape[1]}; use a smaller one",
    )
    return frame(*carried_table(table, old, new, asked.resampling, asked.table_view, asked.table_index))


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


class Projected(BaseModel):
    patch: Pair
    new_patch: Pair
    chosen: Loss
    sides: list[int]
    """Heights of new patches, for the curves."""
    curves: dict[str, list[float]]
    """By way of resizing: tokens off by, on photographs."""
    formulas: list[Formula]


@router.get("/transfer/projection")
def projection(asked: Asked, here: Here) -> Projected:
    """What the patch projection loses on its way to another patch size."""
    filters, patch = _filters(asked, here)
    new = _scaled(patch, asked.resized_patch)
    chosen = here.once(
        ("filters", asked.weights, new, asked.filter_resize), lambda: _loss(filters, new, asked.filter_resize)
    )
    sides = _sides(patch)
    curves = here.once(("filter curves", asked.weights), lambda: _curves(filters, patch, sides))
    return Projected(
        patch=(patch.height, patch.width),
        new_patch=(new.height, new.width),
        chosen=Loss(**_plain(chosen)),
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


@router.get("/transfer/filters", response_class=Response, responses=FRAME)
def filters(asked: Asked, here: Here) -> Response:
    """The strongest filters before, after, and after a way back."""
    found, patch = _filters(asked, here)
    return frame(*carried_filters(found, _scaled(patch, asked.resized_patch), asked.filter_resize))


@router.get("/transfer/drift", response_class=Response, responses=FRAME)
def drift(asked: Asked, here: Here) -> Response:
    """How far the model's features move on the image: by every method, and place by place for the chosen one."""
    checkpoint, new = here.checkpoint(asked.weights), _new_grid(asked)
    config = checkpoint.config
    if not isinstance(config, ViTConfig):
        raise VitrailError(f"a {type(config).__name__} has windows, not positions on a grid; choose a ViT's weights")
    pixels = here.image(asked.image)
    key = ("drift", asked.image, asked.weights, new, asked.resampling)
    return frame(*here.once(key, lambda: feature_drift(checkpoint, new, pixels, asked.resampling)))


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────


def _new_grid(asked: Question) -> Size:
    new = Size(asked.new_rows, asked.new_columns)
    require(new.area <= MAX_PLACES, f"a grid of {new} has {new.area:,} places; use one of at most {MAX_PLACES:,}")
    return new


def _grids(asked: Question, here: Session) -> tuple[Size, Size]:
    """The weights' own grid, or the asked one, and the new one."""
    if asked.transfer_table == "own":
        return here.config(asked.weights).grid, _new_grid(asked)
    return Size(asked.old_rows, asked.old_columns), _new_grid(asked)


def _own_table(asked: Question, here: Session) -> Tensor | None:
    from vitrail.checkpoint.assess.kind_transfer import learned_table

    return learned_table(here.checkpoint(asked.weights)) if asked.transfer_table == "own" else None


def _table(asked: Question, here: Session, old: Size) -> Tensor:
    from vitrail.checkpoint.assess.simulate import known_table

    own = _own_table(asked, here)
    return here.once(("known", old), lambda: known_table(old, KNOWN_WIDTH)) if own is None else own


def _measure(asked: Question, here: Session, old: Size, new: Size) -> dict[str, Any]:
    """The library's answers, in the way that `vitrail simulate` asks for them."""
    from vitrail.checkpoint.assess.kind_transfer import survival, survival_of
    from vitrail.checkpoint.assess.simulate import known_table, simulate
    from vitrail.checkpoint.surgery.resample import METHODS, resample_table

    own = _own_table(asked, here)
    found = [simulate(old, new, method, table=own, bands=asked.bands) for method in get_args(Resampling)]
    table = known_table(old, KNOWN_WIDTH) if own is None else own
    carried = {name: resample_table(table.double(), old=old, new=new, method=name) for name in CONVENTIONS}
    config = here.config(asked.weights)
    trained = []
    if asked.transfer_table == "own" and isinstance(config, ViTConfig):
        with suppress(VitrailError):  # no positions, or biases of windows: nothing to carry
            trained = [survival_of(here.checkpoint(asked.weights), new, method=asked.resampling)]
    return {
        "on_new_grid": config.position.describe().on_new_grid if isinstance(config, ViTConfig) else "the windows stay",
        "methods": [
            MethodErrors(
                method=each.method,
                about=METHODS[each.method],
                convention=each.method in CONVENTIONS,
                error=each.error,
                round_trip=each.round_trip,
                bands=[to_plain(vars(band)) for band in each.bands],
            )
            for each in found
        ],
        "conventions": list(CONVENTIONS),
        "disagreement": [
            [float((first - second).norm() / second.norm()) for second in carried.values()]
            for first in carried.values()
        ],
        "kinds": [vars(each) for each in (*trained, *survival(old, new, method=asked.resampling))],
        "trained": bool(trained),
    }


def _formulas(old: Size, new: Size, asked: Question) -> list[Formula]:
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


# ── the projection ──────────────────────────────────────────────────────────────────────────────────────────────


def _plain(loss: ProjectionLoss) -> dict[str, Any]:
    return {**vars(loss), "old": str(loss.old), "new": str(loss.new)}


def _filters(asked: Question, here: Session) -> tuple[Tensor, Size]:
    config = here.config(asked.weights)
    if not isinstance(config, ViTConfig) or not isinstance(config.embedding, Patches):
        raise VitrailError("these weights do not begin with one projection of patches; choose a plain ViT's")
    weight = here.checkpoint(asked.weights).tensors["embedding.weight"]
    return weight, Size(*weight.shape[2:])


def _scaled(patch: Size, height: int) -> Size:
    """A patch of this height and the same shape."""
    return Size(height, max(1, round(height * patch.width / patch.height)))


def _sides(patch: Size) -> list[int]:
    """Patches of a quarter to twice the height, a dozen at most."""
    low, high = max(1, patch.height // 4), 2 * patch.height
    return sorted({round(low + (high - low) * step / 11) for step in range(12)} | {patch.height})


def _loss(filters: Tensor, new: Size, how: Any) -> ProjectionLoss:
    from vitrail.checkpoint.assess.projection_loss import predicted_loss

    return predicted_loss(filters, new, how=how)


def _curves(filters: Tensor, patch: Size, sides: list[int]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"pinv": [], "natural": [], "interpolate": [], "noise": []}
    for side in sides:
        for how in ("pinv", "natural", "interpolate"):
            loss = _loss(filters, _scaled(patch, side), how)
            found[how].append(loss.natural)
            if how == "pinv":
                found["noise"].append(loss.white)
    return found
