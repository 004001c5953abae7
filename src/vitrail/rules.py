"""Validation rules that several configs share; each error states the value, the rule and the remedy.

A number's range is part of its type: a type checker reads `depth: PositiveInt` as an int, and `vitrail.value` reads the
`Range` in the annotation to check the field.
"""

from __future__ import annotations

import math
import re
from numbers import Integral, Real
from typing import Annotated, Any

from vitrail.errors import VitrailError, require, shown
from vitrail.traced import Traced

__all__ = [
    "FiniteFloat",
    "NonNegativeFloat",
    "NonNegativeInt",
    "PositiveFloat",
    "PositiveInt",
    "Range",
    "Rate",
    "at_least_zero",
    "divided_by_heads",
    "multiple",
    "number",
    "positive",
    "whole_number",
]


class Range:
    """The numbers that a field accepts, in interval notation: "[0, 1)" includes 0 and excludes 1.

    "[0, inf]" contains infinity, "[0, inf)" does not; no range contains NaN.

    >>> Range("(0, 1]", "use 1 for all").bounds
    'above 0 and at most 1'
    """

    def __init__(self, interval: str, remedy: str) -> None:
        match = re.fullmatch(r"([\[(])(\S+), (\S+)([])])", interval)
        if match is None:
            raise TypeError(f"{interval!r} is not an interval; write one like [0, 1)")
        low, high = float(match[2]), float(match[3])
        over, under = match[1] == "(", match[4] == ")"
        self.remedy = remedy
        self.low = math.nextafter(low, math.inf) if over else low
        """The smallest number in the range."""
        self.high = math.nextafter(high, -math.inf) if under else high
        """The largest number in the range."""
        above = (f"above {low:g}" if over else f"of {low:g} or more") if math.isfinite(low) else ""
        below = (f"below {high:g}" if under else f"at most {high:g}") if math.isfinite(high) else ""
        self.bounds = " and ".join(filter(None, (above, below)))

    def error(self, place: str, value: object, noun: str) -> VitrailError:
        infinite = isinstance(value, float) and not math.isfinite(value) and self.high < math.inf
        rule = " ".join(filter(None, ("finite" if infinite or not self.bounds else "", noun, self.bounds)))
        rule = "positive whole number" if rule == "whole number of 1 or more" else rule
        return VitrailError(f"{place} {shown(value)} is not a {rule}; {self.remedy}")


_POSITIVE = Range("[1, inf)", "give 1 or more")
_NON_NEGATIVE = Range("[0, inf)", "use 0 for none")

PositiveInt = Annotated[int, _POSITIVE]
NonNegativeInt = Annotated[int, _NON_NEGATIVE]
PositiveFloat = Annotated[float, Range("(0, inf)", "give a positive number")]
NonNegativeFloat = Annotated[float, _NON_NEGATIVE]
FiniteFloat = Annotated[float, Range("(-inf, inf)", "give a number like 0.5")]
Rate = Annotated[float, Range("[0, 1)", "use 0 for none")]


def whole_number(place: str, value: Any, within: Range) -> int:
    """Return the value as a Python int, or raise an error that names the field. NumPy integers pass, bools do not.

    `Traced` numbers stay what they are, and are checked alike.
    """
    if type(value) not in (int, Traced):
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise within.error(place, value, "whole number")
        value = int(value)
    if not within.low <= value <= within.high:
        raise within.error(place, value, "whole number")
    return value


def number(place: str, value: Any, within: Range) -> float:
    """Return the value as a Python float, or raise an error that names the field. Integers pass, bools do not."""
    if type(value) is not float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise within.error(place, value, "number")
        try:
            value = float(value)
        except OverflowError:
            raise within.error(place, value, "number") from None
    if not within.low <= value <= within.high:
        raise within.error(place, value, "number")
    return value


def positive(name: str, value: int) -> int:
    return whole_number(name, value, _POSITIVE)


def at_least_zero(name: str, value: int) -> int:
    return whole_number(name, value, _NON_NEGATIVE)


def divided_by_heads(width_name: str, width: int, heads_name: str, num_heads: int) -> None:
    below, above = width // num_heads * num_heads, -(-width // num_heads) * num_heads
    options = f"{below} or {above}" if below else f"{above}"
    require(
        width % num_heads == 0,
        f"{width_name} {width} is not divisible by {heads_name} {num_heads}; try {options}",
    )


def multiple(kind: str, name: str, value: int, factor: int) -> None:
    below, above = value // factor * factor, -(-value // factor) * factor
    options = f"{below} or {above}" if below else f"{above}"
    require(
        value % factor == 0,
        f"{name} {value} is not a multiple of {factor}, which {kind} needs; try {options}",
    )
