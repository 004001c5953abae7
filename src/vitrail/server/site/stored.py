"""Results that depend on a model's weights alone: the export computes them, and a page has them by their keys.

A key is that of `Session.once`. A file of results is the length of its header (4 bytes, little-endian), the header in
JSON, and all arrays one after another, in 65,536 levels between the lowest and the highest value of each.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.server.arrays import Levels
from vitrail.server.rooms.positions.position_kinds import WORDS, Curve, Measured, Question, measure_kind, measured_key
from vitrail.server.session import Session

if TYPE_CHECKING:
    import numpy as np

__all__ = ["SIDES", "Stored", "measured_kinds", "pack_results"]

SIDES = range(4, 24, 4)
"""Rows and columns of the grids that a page has positions for, besides the model's own grid."""
MOST = 2**16 - 1


class Stored:
    """The results of one file."""

    def __init__(self, data: bytes) -> None:
        length = int.from_bytes(data[:4], "little")
        self._header: dict[str, Any] = json.loads(data[4 : 4 + length])
        self._levels = memoryview(data)[4 + length :].cast("H")

    def get(self, key: Hashable) -> Any:
        """Return the result of a key; None if it is not here."""
        plain = self._header.get(repr(key))
        return None if plain is None else _measured(plain, self._array)

    def _array(self, plain: dict[str, Any]) -> Levels:
        start, shape = plain["start"], tuple(plain["shape"])
        count = 1
        for side in shape:
            count *= side
        return Levels(self._levels[start : start + count], shape, plain["low"], plain["high"])


def measured_kinds(weights: str, session: Session) -> dict[Hashable, Measured]:
    """Measure every kind of position on the grids of a page; positions that differ by head, as the mean of heads."""
    found: dict[Hashable, Measured] = {}
    for rows, columns in [(0, 0), *product(SIDES, SIDES)]:
        asked = Question(weights=weights, grid_rows=rows, grid_columns=columns)
        for kind in WORDS:
            with suppress(VitrailError):  # not possible with this width or number of heads
                found[measured_key(kind, asked, session)] = measure_kind(kind, asked, session)
    return found


def pack_results(results: Mapping[Hashable, Measured]) -> bytes:
    """Return the file of these results."""
    header, levels = {}, array("H")

    def put(values: np.ndarray) -> dict[str, Any]:
        low, high = float(values.min()), float(values.max())
        start = len(levels)
        levels.frombytes(((values.astype(float) - low) * (MOST / ((high - low) or 1.0))).round().astype("<u2").tobytes())
        return {"start": start, "shape": values.shape, "low": low, "high": high}

    for key, each in results.items():
        header[repr(key)] = {
            "grid": list(each.grid),
            "measure": each.measure,
            "share": each.share,
            "curve": each.curve and each.curve.model_dump(),
            "maps": put(each.maps),  # type: ignore[arg-type]
            "offsets": put(each.offsets),  # type: ignore[arg-type]
        }
    text = json.dumps(header).encode()
    text += b" " * (len(text) % 2)  # an even place for the levels
    return len(text).to_bytes(4, "little") + text + levels.tobytes()


def _measured(plain: dict[str, Any], read: Callable[[dict[str, Any]], Levels]) -> Measured:
    return Measured(
        grid=Size(*plain["grid"]),
        measure=plain["measure"],
        share=plain["share"],
        curve=plain["curve"] and Curve(**plain["curve"]),
        maps=read(plain["maps"]),
        offsets=read(plain["offsets"]),
    )
