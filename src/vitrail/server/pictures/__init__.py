"""The bundled images: a photograph, the same mirrored and turned (SOURCE.md), and a drawn stained-glass window."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.images.decode import Pixels

__all__ = ["ABOUT", "PHOTOGRAPHS", "PICTURES"]


@cache
def _photograph(name: str) -> Pixels:
    from vitrail.images.decode import decode

    return decode((files("vitrail.server.pictures") / f"{name}.jpg").read_bytes())


@cache
def _window() -> Pixels:
    from vitrail.images.default_picture import draw_window

    return draw_window()


PHOTOGRAPHS = ("cat", "turned")
"""Those of which there is a file."""
PICTURES: dict[str, Callable[[], Pixels]] = {
    "cat": partial(_photograph, "cat"),
    "window": _window,
    "turned": partial(_photograph, "turned"),
}
"""The bundled images by id, the default first; each is created once, on first use."""
ABOUT = {
    "cat": "A cat, looking past you",
    "window": "A stained-glass window: a ship under sail before the setting sun",
    "turned": "The same cat, mirrored and turned",
}
"""Alternative texts."""
