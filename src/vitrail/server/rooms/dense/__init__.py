"""Room 12, dense: features at every pixel of an image, as colours, and the similarity of every place to a point."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.errors import require
from vitrail.server.arrays import Frame, Header, frame
from vitrail.server.controls import Paired, Seen, choice, number
from vitrail.server.default_size import default_size
from vitrail.server.estimate import estimate_of
from vitrail.server.formulas import Formula
from vitrail.server.limits import shifts_of
from vitrail.server.plans import Pair
from vitrail.server.rooms.dense.dense_facts import ColourFacts, DenseCost, NearFacts, cost_formulas, cost_of
from vitrail.server.rooms.dense.fine_grid import FineGrid, fine_grid
from vitrail.server.session import Session, SessionDep

if TYPE_CHECKING:
    from vitrail.look.dense import Dense
    from vitrail.look.dense_colours import Basis

__all__ = ["Question", "fine", "images_of", "router"]

router = APIRouter()

SHOWN_SIDE = 640
"""Pixels of the longer side of the pictures, if the model sees fewer."""
SECONDS = 300.0
"""The time limit of all passes: the page says what they cost, and stops them when something else is asked."""
MOST_BYTES = 512 * 2**20
"""Of an image's features in the session's memory."""


class Shifted(Seen, Paired):
    """A model, one or two images, and how fine their features are."""

    shifts: int = number(
        2,
        1,
        64,
        label="Shifts",
        about="Passes along a side, each with the image moved by a part of a patch: k × k passes give a token every "
        "patch ÷ k pixels",
    )
    with_second: bool = choice(
        False,
        label="Second image",
        about="Colour a second image with the same basis, and look for the point in it too; this doubles the cost",
    )


class Coloured(Shifted):
    foreground: bool = choice(
        False,
        label="Foreground",
        about="Remove the background, which the first principal component separates by Otsu's threshold",
    )


class Pointed(Shifted):
    upsample: Literal["nearest", "bilinear", "guided"] = choice(
        "guided",
        label="Tokens to pixels",
        about="Plain: every pixel has its token's value. Bilinear: between the middles of neighbouring tokens. "
        "Along edges: guided by the photograph (arXiv 1505.00996), without training",
        words={"nearest": "plain", "bilinear": "bilinear", "guided": "along edges"},
    )
    point_down: int = number(
        500, 0, 1000, unit="‰", label="Point, down", about="The place of the point, in thousandths of the height"
    )
    point_across: int = number(
        500, 0, 1000, unit="‰", label="Point, across", about="The place of the point, in thousandths of the width"
    )


class Question(Pointed, Coloured):
    """A model, its images, how fine their features are, and how they are shown."""


class DenseAnswer(BaseModel):
    seen: Pair
    """The size at which the model sees the image, which keeps its shape."""
    patch: Pair
    chosen: DenseCost
    costs: list[DenseCost]
    """Of every number of shifts that the patch allows, for one image."""
    basis: str
    """What the estimate of seconds is made from."""
    formulas: list[Formula]


@router.get("/dense")
def dense(asked: Annotated[Shifted, Query()], session: SessionDep) -> DenseAnswer:
    """Return what every number of shifts costs, without running the model."""
    grid = fine(asked, asked.image, session)
    estimate = estimate_of(asked, session, grid.whole)
    config = session.config(asked.weights)
    others = [fine_grid(config, grid.whole, shifts) for shifts in shifts_of(config)]
    return DenseAnswer(
        seen=grid.whole,
        patch=grid.patch,
        chosen=cost_of(grid, estimate),
        costs=[cost_of(each, estimate) for each in others],
        basis=estimate.basis,
        formulas=cost_formulas(grid, estimate),
    )


@router.get("/dense/colours", response_class=Frame, response_model=Header[ColourFacts])
def colours(asked: Annotated[Coloured, Query()], session: SessionDep) -> Frame:
    """Return photographs (`photo0`, `photo1`) and colours with one basis, by every way from tokens to pixels."""
    found, basis = _features(asked, session), _basis(asked, session)

    from vitrail.server.rooms.dense.dense_frames import coloured_arrays

    key = ("dense colours", asked.foreground, *_keys(asked, session))
    return frame(*session.once(key, lambda: coloured_arrays(found, basis, asked.foreground)))


@router.get("/dense/near", response_class=Frame, response_model=Header[NearFacts])
def near(asked: Annotated[Pointed, Query()], session: SessionDep) -> Frame:
    """Return the cosine of every pixel with the token at a point of the first image: `near0`, `near1`.

    `cells0` and `cells1` have one value per token. Equal bytes are equal cosines.
    """
    found = _features(asked, session)

    from vitrail.server.rooms.dense.dense_frames import near_arrays

    row, column = fine(asked, asked.image, session).cell(asked.point_down, asked.point_across)
    facts, arrays = near_arrays(found, row, column, asked.upsample)
    return frame(facts, arrays, alike=[tuple(arrays)])


def images_of(asked: Shifted) -> list[str]:
    """Return the images that are looked at."""
    return [asked.image, asked.second] if asked.with_second else [asked.image]


def fine(asked: Shifted, image: str, session: Session) -> FineGrid:
    """Return the grid of an image's features."""
    side = default_size(asked, session)
    whole = session.input_size(image, asked.weights, side, whole=True)
    return fine_grid(session.config(asked.weights), whole, asked.shifts)


def _keys(asked: Shifted, session: Session) -> list[Any]:
    sizes = [fine(asked, image, session).whole for image in images_of(asked)]
    return [asked.weights, asked.shifts, *zip(images_of(asked), sizes, strict=True)]


def _features(asked: Shifted, session: Session) -> list[Dense]:
    """Return the features of the images; a model runs once for each, and one pass is the one that all rooms share."""
    return [_features_of(asked, image, session) for image in images_of(asked)]


def _features_of(asked: Shifted, image: str, session: Session) -> Dense:
    grid = fine(asked, image, session)
    require(
        grid.feature_bytes <= MOST_BYTES,
        f"features of {grid.grid} tokens take {grid.feature_bytes / 2**20:,.0f} MiB, and the studio keeps "
        f"{MOST_BYTES // 2**20}; choose fewer shifts or a smaller input",
    )
    one = (
        session.recording(image, asked.weights, default_size(asked, session), whole=True) if grid.passes == 1 else None
    )

    def compute() -> Dense:
        from vitrail.look.dense import features_of
        from vitrail.server.rooms.dense.dense_frames import one_pass

        pixels = session.image(image)
        if one is not None:
            found = one_pass(*one, session.image_size(image))
        else:
            start = time.perf_counter()
            model, steps = session.model(asked.weights, grid.whole), session.checkpoint(asked.weights).preprocessing
            found = features_of(model, pixels, steps, whole=grid.whole, step=grid.step)
            session.note_pass(asked.weights, grid.whole, (time.perf_counter() - start) / grid.passes)
        return found.over(pixels, SHOWN_SIDE)

    return session.once(("dense", image, asked.weights, grid.whole, asked.shifts), compute, SECONDS)


def _basis(asked: Shifted, session: Session) -> Basis:
    found = _features(asked, session)

    from vitrail.look.dense_colours import common_basis

    return session.once(("dense basis", *_keys(asked, session)), lambda: common_basis(found))
