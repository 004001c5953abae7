"""Room 13, folder: a folder of images as a map, its near duplicates, and the images that a linear probe doubts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from vitrail.errors import VitrailError, require
from vitrail.server.arrays import Frame, Header, NoFacts, frame
from vitrail.server.controls import Pictured, Weighted, choice, number
from vitrail.server.folder_maps import MapMethod
from vitrail.server.rooms.folder.folder_facts import (
    PER_SHEET,
    Group,
    Kin,
    Mapping,
    Point,
    duplicate_groups,
    map_facts,
)
from vitrail.server.session import Session, SessionDep

__all__ = ["Question", "router"]

router = APIRouter()

LAST = 19_999
"""The number of the last image of the largest folder."""
FOUND = 12
PREVIEW = 512
"""Longer side of the picture of one image, in pixels."""


class Mapped(Weighted):
    """The weights whose vectors are mapped, and how."""

    map_method: MapMethod = choice(
        "pca",
        label="Map",
        about="PCA shows the two directions with the most variance; t-SNE keeps neighbours better, and takes longer",
        words={"pca": "PCA", "tsne": "t-SNE"},
    )


class Duplicated(Mapped):
    alike: float = number(
        0.98,
        0.5,
        1.0,
        step=0.005,
        label="Duplicates from",
        about="Least cosine of two near duplicates; what is right depends on the model",
    )


class Question(Duplicated, Pictured):
    """A map, the image whose neighbours are shown, and what counts as a duplicate."""

    folder_image: int = number(
        -1, -1, LAST, label="Neighbours of", about="An image of the folder by its number; −1 is your image"
    )
    map_colour: Literal["class", "doubt"] = choice(
        "class",
        label="Frames",
        about="Colour frames by the image's class, or by how probable the probe finds that class",
        words={"class": "class", "doubt": "doubt"},
    )


class Awaited(Mapped):
    """A map that is asked for again and again until it is ready."""

    turn: int = Field(0, ge=0)


class Sheet(Mapped):
    number: int = Field(0, ge=0, le=LAST // PER_SHEET)
    reading: int = Field(0, ge=0)
    """How often the folder had been read: another reading is another address."""


class One(Mapped):
    place: int = Field(0, ge=0, le=LAST)
    """The number of an image."""


class Searched(Mapped, Pictured):
    """The image whose nearest images are sought."""


class Neighbours(BaseModel):
    """The images nearest to one that may be in the folder itself."""

    found: list[Kin]
    point: Point | None
    """Its own place on the map; None for t-SNE, which has no rule for new images."""
    itself: list[str]
    """Ids of the image itself, or copies of it, in the folder."""


@router.get("/folder")
def folder(asked: Annotated[Awaited, Query()], session: SessionDep) -> Mapping:
    """Return the map of the folder, or how far it is; it is computed while other rooms are used."""
    maps = session.maps
    progress = maps.progress(session.source(asked.weights), asked.map_method)
    if progress.error:
        raise VitrailError(progress.error)
    atlas = progress.atlas
    key = ("folder", maps.reading, asked.weights, asked.map_method)
    return Mapping(
        folder=maps.name,
        sample=maps.is_sample,
        own_weights=maps.has_own_vectors,
        reading=maps.reading,
        changed=atlas is not None and maps.has_changed(),
        words=progress.words,
        done=progress.done,
        total=progress.total,
        map=None if atlas is None else session.kept(key, lambda: map_facts(atlas)),
    )


@router.get("/folder/duplicates")
def duplicates(asked: Annotated[Duplicated, Query()], session: SessionDep) -> list[Group]:
    """Return groups of images whose vectors have at least a cosine, the largest first."""
    atlas = session.maps.atlas(session.source(asked.weights), asked.map_method)
    if asked.alike == atlas.duplicates.threshold:
        return duplicate_groups(atlas.duplicates, list(atlas.ids))
    from vitrail.vectors.duplicates import find_duplicates

    return duplicate_groups(find_duplicates(atlas.collection, asked.alike, exact=True), list(atlas.ids))


@router.get("/folder/nearest")
def nearest(asked: Annotated[Searched, Query()], session: SessionDep) -> Neighbours:
    """Search the folder by the image, which the model sees once."""
    atlas = session.maps.atlas(session.source(asked.weights), asked.map_method)
    from vitrail.vectors.cosine import unit
    from vitrail.vectors.search import ALIKE, embed_query
    from vitrail.vectors.search import nearest as find

    key = ("folder search", asked.image, atlas.collection.stamp)
    pixels = session.image(asked.image)
    vector = session.once(key, lambda: embed_query(atlas.collection, pixels))
    places = {name: place for place, name in enumerate(atlas.ids)}
    found = find(atlas.collection, vector, FOUND).matches
    return Neighbours(
        found=[Kin(place=places[each.id], cosine=round(each.score, 4)) for each in found],
        point=atlas.flat.point_of(unit(vector)),
        itself=[each.id for each in found if each.score >= max(ALIKE, 1 - 1e-5)],
    )


@router.get("/folder/sheet", response_class=Frame, response_model=Header[NoFacts])
def sheet(asked: Annotated[Sheet, Query()], session: SessionDep) -> Frame:
    """Return a sheet of thumbnails as the bytes of a JPEG (`sheet`)."""
    maps = session.maps
    atlas = maps.atlas(session.source(asked.weights), asked.map_method)
    require(asked.number * PER_SHEET < len(atlas), f"sheet {asked.number} is beyond the folder's images; use 0")
    from vitrail.server.rooms.folder.folder_pictures import thumbnail_sheet

    key = ("folder sheet", maps.reading, asked.number, len(atlas))
    return session.kept(key, lambda: frame(NoFacts(), {"sheet": thumbnail_sheet(atlas, asked.number)}))


@router.get(
    "/folder/picture",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}}},
)
def picture(asked: Annotated[One, Query()], session: SessionDep) -> Response:
    """Return one image as a JPEG."""
    from vitrail.server.rooms.folder.folder_pictures import jpeg

    return Response(jpeg(_original(asked, session), PREVIEW), media_type="image/jpeg")


class Taken(BaseModel):
    image: str
    """The id under which all rooms have the image."""


@router.post("/folder/take")
def take(asked: Annotated[One, Query()], session: SessionDep) -> Taken:
    """Make an image of the folder one of the studio's images."""
    found = _original(asked, session)
    return Taken(image=session.add_image(found if isinstance(found, bytes) else found.read_bytes()))


@router.post("/folder/read")
def read_again(session: SessionDep) -> int:
    """Read the folder again, with what was added or removed; return how often it was read."""
    session.maps.read_again()
    return session.maps.reading


def _original(asked: One, session: Session) -> Path | bytes:
    atlas = session.maps.atlas(session.source(asked.weights), asked.map_method)
    require(asked.place < len(atlas), f"image {asked.place} is beyond the folder's {len(atlas):,}; take another")
    return atlas.collection.original(atlas.collection.items([asked.place])[0])
