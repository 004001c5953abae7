"""Arrays for the page: one binary frame of uint8 arrays, ready for a canvas.

    4 bytes     length of the header, little-endian
    header      JSON, a `Header`
    arrays      their bytes, concatenated in the header's order, each in row-major order

A byte b stands for low + (high − low) · b / 255; a picture (height, width, 3) has low 0 and high 255. `facts` is JSON
that belongs to the arrays. web/src/lib/frame.ts reads a frame. An endpoint declares the header as its response model:

    @router.get("/NAME/maps", response_class=Frame, response_model=Header[Facts])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import BaseModel
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Frame", "Header", "NoFacts", "frame"]

F = TypeVar("F", bound=BaseModel)


class NoFacts(BaseModel):
    """The facts of arrays that need none."""


class Plane(BaseModel):
    name: str
    shape: list[int]
    low: float
    high: float


class Header(BaseModel, Generic[F]):
    """The JSON header of a frame of arrays; see vitrail/server/arrays.py."""

    facts: F
    arrays: list[Plane]


class Frame(JSONResponse):
    """A binary response. The endpoint's `response_model` is the schema of its JSON header."""

    media_type = "application/octet-stream"

    def render(self, content: bytes) -> bytes:
        return content


def frame(facts: BaseModel, arrays: Mapping[str, np.ndarray], *, alike: Sequence[Sequence[str]] = ()) -> Frame:
    """Pack facts and arrays. uint8 arrays are sent unchanged; others are scaled from their own range.

    The arrays of a group in `alike` have one range, so that equal bytes are equal values.
    """
    import numpy as np

    planes, parts = [], []
    together = {name: np.concatenate([np.ravel(arrays[each]) for each in group]) for group in alike for name in group}
    for name, array in arrays.items():
        low, high, scaled = _bytes(np.asarray(array), together.get(name, np.asarray(array)))
        planes.append(Plane(name=name, shape=list(scaled.shape), low=low, high=high))
        parts.append(scaled.tobytes())
    header = Header(facts=facts, arrays=planes).model_dump_json(serialize_as_any=True).encode()
    return Frame(b"".join([len(header).to_bytes(4, "little"), header, *parts]))


def _bytes(array: np.ndarray, scale: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Return the smallest and largest value of `scale`, and the array as bytes between them."""
    import numpy as np

    if array.dtype == np.uint8:
        return 0.0, 255.0, array
    values, scale = (np.nan_to_num(each.astype(np.float64)) for each in (array, scale))
    low, high = (float(scale.min()), float(scale.max())) if scale.size else (0.0, 0.0)
    span = (high - low) or 1.0
    return low, high, np.round((values - low) * (255 / span)).astype(np.uint8)
