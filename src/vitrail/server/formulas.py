"""A formula in symbols, and the same formula with numbers substituted."""

from __future__ import annotations

from pydantic import BaseModel

__all__ = ["Formula", "short"]


class Formula(BaseModel):
    name: str
    symbols: str
    numbers: str
    """The formula with numbers substituted; the result follows the last equals sign."""


def short(value: float) -> str:
    """Format a number with thousands separators and about four digits.

    >>> short(196), short(1048576), short(35.1276)
    ('196', '1,048,576', '35.13')
    """
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
