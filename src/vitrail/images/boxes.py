"""Boxes in images: a region that a user names, and the boxes of objects, which say how large objects are."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path
from statistics import median
from typing import NamedTuple

from vitrail.errors import VitrailError, require
from vitrail.geometry import Size

__all__ = ["Box", "typical_object"]


class Box(NamedTuple):
    """A part of an image, in its pixels.

    >>> Box.of("10,20,64,80")
    Box(top=10, left=20, height=64, width=80)
    """

    top: int
    left: int
    height: int
    width: int

    @classmethod
    def of(cls, text: str) -> Box:
        numbers = [part.strip() for part in text.split(",")]
        require(
            len(numbers) == 4 and all(number.isdecimal() for number in numbers),
            f"box {text!r} is not TOP,LEFT,HEIGHT,WIDTH in pixels; write 10,20,64,80",
        )
        box = cls(*map(int, numbers))
        require(box.height > 0 and box.width > 0, f"box {text!r} is empty; give a height and a width above 0")
        return box

    def __str__(self) -> str:
        return ",".join(map(str, self))

    def holds(self, row: float, column: float) -> bool:
        """Whether a place is in the box."""
        return self.top <= row < self.top + self.height and self.left <= column < self.left + self.width

    def check_inside(self, image: Size) -> None:
        require(
            self.top + self.height <= image.height and self.left + self.width <= image.width,
            f"box {self} is not inside the image of {image}; its rows end at "
            f"{self.top + self.height} and its columns at {self.left + self.width}",
        )


def typical_object(path: str | Path) -> int:
    """Return the median of √(width · height) over the boxes of a COCO file, in pixels of the stored images."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        sides = [sqrt(width * height) for _, _, width, height in (entry["bbox"] for entry in data["annotations"])]
    except OSError as error:
        raise VitrailError(f"boxes {path} cannot be read ({error.strerror}); give a COCO JSON file") from None
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise VitrailError(f"boxes {path} is not COCO JSON ({reason}); give a file with annotations[].bbox") from None
    if not sides:
        raise VitrailError(f"boxes {path} has no annotations; give a file that has some, or --object")
    return max(1, round(median(sides)))
