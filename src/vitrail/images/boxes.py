"""Bounding boxes of objects, used to find out how large objects are."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path
from statistics import median

from vitrail.errors import VitrailError

__all__ = ["typical_object"]


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
