"""Room 2, projection: the one matrix between a patch and its token, what it costs and what it looks for."""

from __future__ import annotations

from math import sqrt
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.parts import Patches
from vitrail.plan.laws import TEXT_VOCABULARY, Projection, projection
from vitrail.studio.arrays import Frame, Header
from vitrail.studio.controls import Seen, choice, number
from vitrail.studio.default_size import default_size
from vitrail.studio.formulas import Formula, short
from vitrail.studio.plans import Pair, Shape, described
from vitrail.studio.rooms.projection.projection_filters import FilterFacts, filter_frame
from vitrail.studio.rooms.projection.projection_timing import Measured, measure
from vitrail.studio.session import Here

__all__ = ["Question", "router"]

router = APIRouter()


class Question(Shape, Seen):
    """A model to plan, a model that is loaded, an image, and which filter is looked at."""

    shown: Literal["filters", "principal"] = choice(
        "filters",
        label="Show",
        about="The model's own filters, or the principal ones that they are sums of",
        words={"filters": "filters", "principal": "vocabulary"},
    )
    order: Literal["variance", "norm", "index"] = choice(
        "variance",
        label="Sorted by",
        about="How much the answer varies over your image, the filter's own norm, or its place in the token",
        words={"variance": "answer", "norm": "norm", "index": "place"},
    )
    filter: int = number(
        -1, -1, 8191, label="Filter", about="Its place in the token, or among the principal ones; −1 is the first shown"
    )


Asked = Annotated[Question, Query()]

# ── what it costs ───────────────────────────────────────────────────────────────────────────────────────────────


class Curve(BaseModel):
    """Square patches of growing side."""

    patch: list[int]
    inputs: list[int]
    params: list[int]


class Answer(BaseModel):
    patch: Pair
    side: float
    """Side of a square patch of the same area."""
    channels: int
    width: int
    inputs: int
    """P²·C values of a patch."""
    params: int
    bias: bool
    multiply_adds: int
    """Values of one patch."""
    compression: float
    """Values in per value out."""
    rank_bound: int
    lost_directions: int
    even_side: float
    """The side of a square patch that has exactly as many values as the token."""
    curve: Curve
    vocabulary: int
    lookup_params: int
    lookup_ratio: float
    formulas: list[Formula]


@router.get("/projection")
def costs(asked: Asked, here: Here) -> Answer:
    """The projection of the planned model: parameters, and whether it compresses."""
    config = described(asked, here)
    found, bias = projection(config.patch, config.width, config.channels), _bias(config)
    sides = range(2, 65)
    curve = [projection(Size(side, side), config.width, config.channels) for side in sides]
    params = found.params - (0 if bias else config.width)
    return Answer(
        patch=(config.patch.height, config.patch.width),
        side=sqrt(config.patch.area),
        channels=config.channels,
        width=config.width,
        inputs=found.inputs,
        params=params,
        bias=bias,
        multiply_adds=found.inputs * config.width,
        compression=float(found.compression),
        rank_bound=found.rank_bound,
        lost_directions=found.lost_directions,
        even_side=sqrt(config.width / config.channels),
        curve=Curve(
            patch=list(sides),
            inputs=[each.inputs for each in curve],
            params=[each.params - (0 if bias else config.width) for each in curve],
        ),
        vocabulary=TEXT_VOCABULARY,
        lookup_params=found.lookup_params,
        lookup_ratio=found.lookup_params / params,
        formulas=_formulas(config, found, bias, params),
    )


def _bias(config: ViTConfig) -> bool:
    assert isinstance(config.embedding, Patches)
    return config.embedding.bias


def _formulas(config: ViTConfig, found: Projection, bias: bool, params: int) -> list[Formula]:
    (height, width), each, inputs = config.patch, config.width, found.inputs
    values = f"{height} · {width} · {config.channels}"
    xavier, he = sqrt(2 / (inputs + each)), sqrt(2 / inputs)
    return [
        Formula(
            name="values of a patch",
            symbols="P² · C",
            numbers=f"{values} = {short(inputs)}, for {short(each)} of a token",
        ),
        Formula(
            name="parameters",
            symbols="D · (P² · C + 1)" if bias else "D · P² · C (it has no bias)",
            numbers=f"{each} · ({values}{' + 1' if bias else ''}) = {short(params)}",
        ),
        Formula(
            name="directions of a patch that can reach the token",
            symbols="min(P² · C, D)",
            numbers=f"min({short(inputs)}, {each}) = {short(found.rank_bound)}; {short(found.lost_directions)} go lost",
        ),
        Formula(
            name="neither compresses nor expands at",
            symbols="P = √(D / C)",
            numbers=f"√({each} / {config.channels}) = {short(sqrt(each / config.channels))}",
        ),
        Formula(
            name="a text model's lookup table",
            symbols="V · D",
            numbers=f"{short(TEXT_VOCABULARY)} · {each} = {short(found.lookup_params)}",
        ),
        Formula(
            name="first values by Xavier: deviation of a weight",
            symbols="√(2 / (P² · C + D))",
            numbers=f"√(2 / ({short(inputs)} + {each})) = {xavier:.4f}",
        ),
        Formula(
            name="first values by He: deviation of a weight",
            symbols="√(2 / (P² · C))",
            numbers=f"√(2 / {short(inputs)}) = {he:.4f}",
        ),
    ]


# ── what it looks for ───────────────────────────────────────────────────────────────────────────────────────────


@router.get("/projection/filters", response_class=Frame, response_model=Header[FilterFacts])
def filters(asked: Asked, here: Here) -> Frame:
    """The loaded model's filters as pictures, and what each answers all over the image."""
    side = default_size(asked, here)
    return here.once(
        ("projection filters", asked.image, asked.weights, side),
        lambda: filter_frame(here.subject(asked.image, asked.weights, side)),
    )


# ── the same three ways, and how it begins ──────────────────────────────────────────────────────────────────────


@router.get("/projection/measured")
def measured(asked: Asked, here: Here) -> Measured:
    """The projection run three ways on the image, and the image through fresh weights."""
    side = default_size(asked, here)
    return here.once(
        ("projection measured", asked.image, asked.weights, side),
        lambda: measure(here.subject(asked.image, asked.weights, side)),
    )
