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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Frame", "Header", "Levels", "NoFacts", "frame"]

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


@dataclass(frozen=True)
class Levels:
    """An array in an exported page, which has no NumPy: whole levels from 0 to 65,535, between two values."""

    data: memoryview
    shape: tuple[int, ...]
    low: float
    high: float

    def __getitem__(self, places: tuple[int, ...]) -> Levels:
        """Return the part at indices of the first axes."""
        data, shape = self.data, self.shape
        for place in places:
            size = len(data) // shape[0]
            data, shape = data[place * size : (place + 1) * size], shape[1:]
        return Levels(data, shape, self.low, self.high)

    def tolist(self) -> list[Any]:
        if len(self.shape) > 1:
            return [self[row,].tolist() for row in range(self.shape[0])]
        step = (self.high - self.low) / 65535
        return [self.low + step * level for level in self.data]

    def bytes_between(self, low: float, high: float) -> bytes:
        """Return the values as bytes, of which 0 stands for `low` and 255 for `high`."""
        scale = 255 / ((high - low) or 1.0)
        first, step = (self.low - low) * scale, (self.high - self.low) / 65535 * scale
        return bytes([round(first + step * level) for level in self.data])


def frame(facts: BaseModel, arrays: Mapping[str, np.ndarray | Levels], *, alike: Sequence[Sequence[str]] = ()) -> Frame:
    """Pack facts and arrays. uint8 arrays are sent unchanged; others are scaled from their own range.

    The arrays of a group in `alike` have one range, so that equal bytes are equal values.
    """
    planes, parts = [], []
    together = {name: group for group in alike for name in group}
    for name, array in arrays.items():
        low, high = _range([arrays[each] for each in together.get(name, (name,))])
        planes.append(Plane(name=name, shape=list(array.shape), low=low, high=high))
        parts.append(array.bytes_between(low, high) if isinstance(array, Levels) else _bytes(array, low, high))
    header = Header(facts=facts, arrays=planes).model_dump_json(serialize_as_any=True).encode()
    return Frame(b"".join([len(header).to_bytes(4, "little"), header, *parts]))


def _range(arrays: Sequence[np.ndarray | Levels]) -> tuple[float, float]:
    """Return the smallest and the largest value of arrays together; 0 and 255 for bytes."""
    if any(not isinstance(each, Levels) and each.dtype == "uint8" for each in arrays):
        return 0.0, 255.0
    limits = [(each.low, each.high) if isinstance(each, Levels) else _limits(each) for each in arrays]
    return min(low for low, _ in limits), max(high for _, high in limits)


def _limits(array: np.ndarray) -> tuple[float, float]:
    import numpy as np

    values = np.nan_to_num(array.astype(np.float64))
    return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)


def _bytes(array: np.ndarray, low: float, high: float) -> bytes:
    import numpy as np

    if array.dtype == np.uint8:
        return array.tobytes()
    values = np.nan_to_num(array.astype(np.float64))
    return np.round((values - low) * (255 / ((high - low) or 1.0))).astype(np.uint8).tobytes()
