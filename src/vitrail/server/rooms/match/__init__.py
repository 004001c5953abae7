"""Room 11, match: which patch is which in two images, and why the images are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query

from vitrail.server.arrays import Frame, Header, frame
from vitrail.server.controls import Paired, choice, number
from vitrail.server.default_size import default_size
from vitrail.server.rooms.attention import Layered
from vitrail.server.rooms.match.match_facts import MatchFacts
from vitrail.server.session import Session, SessionDep

if TYPE_CHECKING:
    from vitrail.look.record import Recording
    from vitrail.look.subject import Subject

__all__ = ["Matched", "Question", "router"]

router = APIRouter()


class Matched(Layered, Paired):
    """A model, two images, and the layer whose tokens are compared."""

    match_shape: Literal["crop", "whole"] = choice(
        "crop",
        label="Shape",
        about="Crop the centre of each image to a square, as the model does, or keep the shape of each image whole, "
        "with about as many pixels",
        words={"crop": "crop", "whole": "whole"},
    )


class Question(Matched):
    """Two matched images, the lines that are drawn, and the patch that is followed."""

    lines: int = number(
        40, 1, 400, scale="log", label="Lines", about="Best buddies that are drawn, the most alike first"
    )
    match_side: Literal["first", "second"] = choice(
        "first",
        label="Query in",
        about="The image whose patch is followed",
        words={"first": "first", "second": "second"},
    )
    match_patch: int = number(-1, -1, 4095, label="Patch", about="Its number, row by row; −1 is the one in the middle")


@router.get("/match/maps", response_class=Frame, response_model=Header[MatchFacts])
def maps(asked: Annotated[Matched, Query()], session: SessionDep) -> Frame:
    """Return both photographs (`photo0`, `photo1`) and all cosines of their patches.

    `cross` is (first, second); `own0` and `own1` are of an image with itself. Equal bytes are equal cosines.
    """
    first, second = (_recording(asked, image, session) for image in (asked.image, asked.second))

    from vitrail.server.rooms.match.match_frames import matched_arrays

    key = ("match", asked.layer, *(_key(asked, image, session) for image in (asked.image, asked.second)))
    layer = None if asked.layer < 0 else asked.layer
    facts, arrays = session.once(key, lambda: matched_arrays(first, second, layer))
    return frame(facts, arrays, alike=[("cross", "own0", "own1")])


def _side(asked: Matched, session: Session) -> int:
    return default_size(asked, session)


def _key(asked: Matched, image: str, session: Session) -> tuple[Any, ...]:
    whole = asked.match_shape == "whole"
    size = session.input_size(image, asked.weights, _side(asked, session), whole=whole)
    return image, asked.weights, size, whole


def _recording(asked: Matched, image: str, session: Session) -> tuple[Subject, Recording]:
    """Return the pass. Imports of `vitrail.look` come after it: two threads that load it at once would deadlock."""
    return session.recording(image, asked.weights, _side(asked, session), whole=asked.match_shape == "whole")
