"""A formula with its symbols, and again with the numbers in their place."""

from __future__ import annotations

from pydantic import BaseModel

__all__ = ["Formula", "short"]


class Formula(BaseModel):
    name: str
    symbols: str
    numbers: str
    """The same with numbers, and the value after the last equals sign."""


def short(value: float) -> str:
    """
    >>> short(196), short(1048576), short(35.1276)
    ('196', '1,048,576', '35.13')
    """
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
