"""Pictures of a folder's images: sheets of thumbnails, and one image."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.maps.atlas import Atlas
from vitrail.maps.thumbnails import shrunk, thumbnails
from vitrail.server.rooms.folder.folder_facts import PER_SHEET, thumbnail_side

__all__ = ["jpeg", "thumbnail_sheet"]

QUALITY = 82


def thumbnail_sheet(atlas: Atlas, number: int) -> np.ndarray:
    """Return the bytes of a JPEG with thumbnails at the top left of square cells; a file that is gone stays grey."""
    side, columns = thumbnail_side(len(atlas)), round(PER_SHEET**0.5)
    first, last = number * PER_SHEET, min(len(atlas), (number + 1) * PER_SHEET)
    rows = -(-(last - first) // columns)
    sheet = Image.new("RGB", (columns * side, rows * side), (128, 128, 128))
    for place, picture in thumbnails(atlas.collection, range(first, last), side):
        if picture is not None:
            row, column = divmod(place - first, columns)
            sheet.paste(picture, (column * side, row * side))
    return np.frombuffer(_encoded(sheet), np.uint8)


def jpeg(source: Path | bytes, side: int) -> bytes:
    """Return an image as a JPEG whose longer side has at most `side` pixels."""
    return _encoded(shrunk(source, side))


def _encoded(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()
