"""Files of results that depend on a model's weights alone: the export writes them, and Python in the page reads them.

A file is the length of its header (4 bytes, little-endian), the header in JSON, which has each result by its key of
`Session.once`, and all arrays one after another, in 65,536 levels between the lowest and the highest value of each.
"""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Hashable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from vitrail.geometry import Size
from vitrail.server.arrays import Frame, Levels
from vitrail.server.rooms import transfer
from vitrail.server.rooms.positions.position_kinds import Curve, Measured
from vitrail.server.rooms.transfer.transfer_projection import Loss

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Stored", "pack_results"]

MODELS = {"transfer": transfer.Answer, "filters": Loss}
"""What the JSON of a result is, by the first word of its key; other JSON is the result itself."""


def pack_results(results: Mapping[Hashable, Any]) -> bytes:
    """Return the file of these results."""
    levels = array("H")
    header = {repr(key): _plain(result, levels) for key, result in results.items()}
    text = json.dumps(header, default=list).encode()
    text += b" " * (len(text) % 2)  # an even place for the levels
    return len(text).to_bytes(4, "little") + text + levels.tobytes()


def _plain(result: Any, levels: array[int]) -> Any:
    if isinstance(result, Frame):
        return base64.b64encode(result.body).decode()
    if isinstance(result, Measured):
        arrays = {"maps": _put(result.maps, levels), "offsets": _put(result.offsets, levels)}
        return {**vars(result), "curve": result.curve and result.curve.model_dump(), **arrays}
    return result if isinstance(result, dict) else result.model_dump(mode="json")


def _put(values: np.ndarray | Levels, levels: array[int]) -> dict[str, Any]:
    assert not isinstance(values, Levels)
    start, low, high = len(levels), float(values.min()), float(values.max())
    scaled = (values.astype(float) - low) * (65535 / ((high - low) or 1.0))
    levels.frombytes(scaled.round().astype("<u2").tobytes())
    return {"start": start, "shape": values.shape, "low": low, "high": high}


class Stored:
    """The results of one file."""

    def __init__(self, data: bytes) -> None:
        length = int.from_bytes(data[:4], "little")
        self._header: dict[str, Any] = json.loads(data[4 : 4 + length])
        self._levels = memoryview(data)[4 + length :].cast("H")

    def get(self, key: Hashable) -> Any:
        """Return the result of a key; None if it is not here."""
        plain = self._header.get(repr(key))
        if plain is None:
            return None
        if isinstance(plain, str):
            return Frame(base64.b64decode(plain))
        if "maps" in plain:
            return self._measured(plain)
        assert isinstance(key, tuple)
        return MODELS[key[0]](**plain) if key[0] in MODELS else plain

    def _measured(self, plain: dict[str, Any]) -> Measured:
        arrays = {name: self._array(**plain[name]) for name in ("maps", "offsets")}
        curve = plain["curve"] and Curve(**plain["curve"])
        return Measured(**{**plain, "grid": Size(*plain["grid"]), "curve": curve, **arrays})

    def _array(self, start: int, shape: list[int], low: float, high: float) -> Levels:
        return Levels(self._levels[start : start + prod(shape)], tuple(shape), low, high)
