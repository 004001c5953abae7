"""The JSON of the folder room: the images with their points, and what is known of the map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field

from vitrail.server.formulas import Formula, short
from vitrail.server.plans import Pair

if TYPE_CHECKING:
    from vitrail.maps.atlas import Atlas
    from vitrail.vectors.duplicates import Duplicates

__all__ = [
    "PER_SHEET",
    "FolderMap",
    "Group",
    "Kin",
    "Mapping",
    "Point",
    "duplicate_groups",
    "map_facts",
    "thumbnail_side",
]

PER_SHEET = 256
"""Thumbnails of a sheet, row by row in a square."""
SIDES = {2_000: 96, 20_000: 48}
"""Side of a thumbnail in pixels, for up to so many images."""
LISTED = 20
"""Failures that are named."""


Point = Annotated[tuple[float, ...], Field(min_length=2, max_length=2)]
"""Across and up."""


class Kin(BaseModel):
    """An image that is like another."""

    place: int
    """Its number in the map."""
    cosine: float


class Group(BaseModel):
    """Near duplicates, each with its cosine to the first."""

    images: list[Kin]


class FolderMap(BaseModel):
    """A finished map."""

    ids: list[str]
    sizes: list[Pair]
    """Height and width of each image."""
    points: list[Point]
    """Across and up."""
    near: list[list[Kin]]
    """The nearest images of each, best first."""
    classes: list[str]
    """Empty without classes."""
    colours: list[str]
    """A colour for every class; one for all without classes."""
    labels: list[int]
    """The class of each image; −1 without classes."""
    guesses: list[int]
    """The class that the probe finds most probable; −1 for an image that was not judged. Empty without a probe."""
    probabilities: list[float | None]
    """Of each image's own class."""
    doubts: list[int]
    """The numbers of the judged images, the most doubted first."""
    accuracy: float | None
    chance: float | None
    unjudged: str
    """Why there is no probe, or what it leaves out."""
    variance: float | None
    """Share of the variance that two components have; None for t-SNE."""
    kept: float | None
    """Share of the nearest neighbours that are nearest on the map."""
    failed: list[Annotated[tuple[str, ...], Field(min_length=2, max_length=2)]]
    """The first images that cannot be read, with the reasons."""
    failures: int
    side: int
    """Of a thumbnail, in pixels."""
    per_sheet: int
    weights: str
    """What the vectors were made with."""
    formulas: list[Formula]


class Mapping(BaseModel):
    """A map, or how far it is."""

    folder: str
    sample: bool
    """Whether this is the sample that is shown without a folder."""
    own_weights: bool
    """Whether the folder has vectors, made with their own weights."""
    reading: int
    """How often the folder was read."""
    changed: bool
    """Whether the folder has changed since it was read."""
    words: str
    done: int
    total: int
    """0 where the work cannot be counted."""
    map: FolderMap | None
    """None while it is computed."""


def map_facts(atlas: Atlas) -> FolderMap:
    from vitrail.maps.colours import class_colours

    judged, plan = atlas.judged, atlas.collection.plan
    sizes = atlas.collection.table.select(["height", "width"]).to_pydict()
    left_out = judged.left_out if judged is not None else ()
    return FolderMap(
        ids=list(atlas.ids),
        sizes=list(zip(sizes["height"], sizes["width"], strict=True)),
        points=[(round(across, 5), round(up, 5)) for across, up in atlas.points.tolist()],
        near=[
            [Kin(place=place, cosine=round(cosine, 4)) for place, cosine in zip(*row, strict=True)]
            for row in zip(atlas.near.places.tolist(), atlas.near.scores.tolist(), strict=True)
        ],
        classes=list(atlas.classes),
        colours=class_colours(len(atlas.classes)),
        labels=atlas.labels.tolist(),
        guesses=[] if judged is None else judged.guesses.tolist(),
        probabilities=[]
        if judged is None
        else [None if each != each else round(each, 6) for each in judged.probabilities.tolist()],
        doubts=[] if judged is None else judged.doubted().tolist(),
        accuracy=None if judged is None else judged.accuracy,
        chance=None if judged is None else judged.chance,
        unjudged=f"not judged, with one different image: {', '.join(left_out)}" if left_out else atlas.unjudged,
        variance=atlas.flat.variance,
        kept=None if atlas.kept is None else atlas.kept.share,
        failed=[(each.id, each.error) for each in atlas.failed[:LISTED]],
        failures=len(atlas.failed),
        side=thumbnail_side(len(atlas)),
        per_sheet=PER_SHEET,
        weights="" if plan is None else plan.weights_name,
        formulas=_formulas(atlas),
    )


def thumbnail_side(images: int) -> int:
    """Return the longer side of a thumbnail in pixels."""
    return next(side for most, side in SIDES.items() if images <= most)


def duplicate_groups(found: Duplicates, ids: list[str]) -> list[Group]:
    places = {name: place for place, name in enumerate(ids)}
    return [
        Group(images=[Kin(place=places[each.id], cosine=round(each.score, 4)) for each in group])
        for group in found.groups
    ]


def _formulas(atlas: Atlas) -> list[Formula]:
    """Return how the figures of the room are computed."""
    count, failures = len(atlas), len(atlas.failed)
    files = f"{short(count + failures)} − {short(failures)} = {count:,}"
    found = [Formula(name="images", symbols="files − failures", numbers=files)]
    kept, judged, variance = atlas.kept, atlas.judged, atlas.flat.variance
    if variance is not None:
        found.append(
            Formula(
                name="variance shown",
                symbols="(λ₁ + λ₂) / Σ λ",
                numbers=f"the two largest of {short(atlas.collection.width)} eigenvalues =",
            )
        )
    if kept is not None:
        found.append(
            Formula(
                name="neighbours kept",
                symbols="|near(x) ∩ near(y)| / k",
                where={
                    "x": "an image's vector",
                    "y": "its point on the map",
                    "k": "neighbours that are compared",
                },
                numbers=f"the mean over images, with k = {kept.neighbours}; by chance {kept.chance:.1%}; here =",
            )
        )
    if judged is not None:
        right = round(judged.accuracy * judged.images)
        found.append(
            Formula(
                name="named right",
                symbols="right / judged",
                numbers=f"{short(right)} / {short(judged.images)}, by {judged.folds} probes, each of which judges the "
                f"images it has not seen =",
            )
        )
    return found
