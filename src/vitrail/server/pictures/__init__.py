"""The bundled images: a photograph (its source is in SOURCE.md) and a drawn stained-glass window."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.images.decode import Pixels

__all__ = ["ABOUT", "PICTURES"]


@cache
def _cat() -> Pixels:
    from vitrail.images.decode import decode

    return decode((files("vitrail.server.pictures") / "cat.jpg").read_bytes())


@cache
def _window() -> Pixels:
    from vitrail.images.default_picture import draw_window

    return draw_window()


PICTURES: dict[str, Callable[[], Pixels]] = {"cat": _cat, "window": _window}
"""The bundled images by id, the default first; each is created once, on first use."""
ABOUT = {
    "cat": "A cat, looking past you",
    "window": "A stained-glass window: a ship under sail before the setting sun",
}
"""Alternative texts."""
