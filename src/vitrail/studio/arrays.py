"""How arrays travel to the page: one frame, uint8, ready for a canvas.

    4 bytes     length of the header, little-endian
    header      JSON: {"facts": {…}, "arrays": [{"name", "shape", "low", "high"}, …]}
    the rest    the arrays' bytes, one after the other, in the header's order, rows first

A byte b stands for low + (high − low) · b / 255; of a picture (height, width, 3) low is 0 and high is 255. `facts` is
any JSON that belongs to the arrays. web/src/lib/frame.ts reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.responses import Response

__all__ = ["FRAME", "frame"]

FRAME: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "description": "A frame of arrays; see vitrail/studio/arrays.py",
    }
}
"""For an endpoint's `responses`."""


def frame(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Response:
    """Pack facts and arrays; uint8 goes as it is, anything else is scaled from its own range."""
    described, parts = [], []
    for name, array in arrays.items():
        low, high, scaled = _bytes(np.asarray(array))
        described.append({"name": name, "shape": list(scaled.shape), "low": low, "high": high})
        parts.append(scaled.tobytes())
    header = json.dumps({"facts": facts, "arrays": described}, allow_nan=False).encode()
    body = b"".join([len(header).to_bytes(4, "little"), header, *parts])
    return Response(body, media_type="application/octet-stream")


def _bytes(array: np.ndarray) -> tuple[float, float, np.ndarray]:
    if array.dtype == np.uint8:
        return 0.0, 255.0, array
    values = np.nan_to_num(array.astype(np.float64))
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    span = (high - low) or 1.0
    return low, high, np.round((values - low) * (255 / span)).astype(np.uint8)
