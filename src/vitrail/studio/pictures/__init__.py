"""Images that the studio brings along: a photograph (its source is in SOURCE.md), and a window drawn here."""

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
    return decode((files("vitrail.studio.pictures") / "cat.jpg").read_bytes())


@cache
def _window() -> Pixels:
    return draw_window()


PICTURES: dict[str, Picture] = {"cat": _cat, "window": _window}
"""By the id to ask for them by, the first one first; each is made once, when first asked for."""
ABOUT = {
    "cat": "A cat, looking past you",
    "window": "A stained-glass window: a ship under sail before the setting sun",
}
"""What each one shows, for those who do not see it."""
