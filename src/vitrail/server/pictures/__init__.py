"""The bundled images: a photograph (its source is in SOURCE.md) and a drawn stained-glass window."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files

from vitrail.images.decode import Pixels, decode
from vitrail.images.default_picture import draw_window

__all__ = ["ABOUT", "PICTURES", "Picture"]

Picture = Callable[[], Pixels]


@cache
def _cat() -> Pixels:
    return decode((files("vitrail.server.pictures") / "cat.jpg").read_bytes())


@cache
def _window() -> Pixels:
    return draw_window()


PICTURES: dict[str, Picture] = {"cat": _cat, "window": _window}
"""The bundled images by id, the default first; each is created once, on first use."""
ABOUT = {
    "cat": "A cat, looking past you",
    "window": "A stained-glass window: a ship under sail before the setting sun",
}
"""Alternative texts."""
