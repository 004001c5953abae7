"""A formula in symbols, the same formula with numbers substituted, and what its letters mean."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel

__all__ = ["LETTERS", "Formula", "short"]

LETTERS = {
    "N": "number of tokens, prefix included",
    "D": "width of a token",
    "P": "side of a patch, in pixels",
    "H": "height of the image, in pixels",
    "W": "width of the image, in pixels",
    "C": "number of colour channels",
    "B": "batch: images per forward pass",
    "V": "vocabulary: rows of the table",
    "S": "stride: pixels between patches",
    "m": "width of the MLP's hidden layer",
    "e": "bytes of a saved value",
    "eᵣ": "bytes of a value of the residual stream",
    "h": "rows of the grid",
    "w": "columns of the grid",
    "r": "rows of the new grid",
    "s": "columns of the new grid",
    "i": "row",
    "j": "column",
    "p": "one position's vector",
    "q": "another position's vector",
}
"""The letters of all rooms; a formula in which one means something else says so in `where`."""
ALONE = re.compile(r"(?<![A-Za-z'])([A-Za-z]ᵣ?)(?![A-Za-zˢˡ(])")
"""A letter that is not part of a word or the name of a function."""


class Formula(BaseModel):
    name: str
    symbols: str
    numbers: str
    """The formula with numbers substituted; the result follows the last equals sign, or is the figure's own value
    if nothing does."""
    where: dict[str, str] = {}
    """What the letters mean, in the order of the symbols."""
    folklore: str = ""
    """What is often claimed instead, and why that is wrong."""

    def model_post_init(self, context: Any, /) -> None:
        meanings = LETTERS | self.where
        self.where = {letter: meanings[letter] for letter in ALONE.findall(self.symbols) if letter in meanings}


def short(value: float) -> str:
    """Format a number with thousands separators and about four digits.

    >>> short(196), short(1048576), short(35.1276)
    ('196', '1,048,576', '35.13')
    """
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
