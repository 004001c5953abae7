"""Rules that several descriptions share, each with its value, rule and remedy in the message."""

from __future__ import annotations

from vitrail.errors import require
from vitrail.geometry import Size

__all__ = ["as_size", "at_least_zero", "divided_by_heads", "multiple", "positive", "rate"]


def positive(name: str, value: int) -> None:
    require(
        isinstance(value, int) and not isinstance(value, bool) and value > 0,
        f"{name} {value!r} is not a positive whole number; give 1 or more",
    )


def at_least_zero(name: str, value: int) -> None:
    require(
        isinstance(value, int) and not isinstance(value, bool) and value >= 0,
        f"{name} {value!r} is not a whole number of 0 or more; use 0 for none",
    )


def as_size(part: object, name: str) -> None:
    """Let a frozen field that holds a Size be given as 16, "16x8" or (16, 8)."""
    value = getattr(part, name)
    if value is not None:
        object.__setattr__(part, name, Size.of(value))


def divided_by_heads(width_name: str, width: int, heads_name: str, num_heads: int) -> None:
    below, above = width // num_heads * num_heads, -(-width // num_heads) * num_heads
    options = f"{below} or {above}" if below else f"{above}"
    require(
        width % num_heads == 0,
        f"{width_name} {width} is not divisible by {heads_name} {num_heads}; try {options}",
    )


def rate(name: str, value: float) -> None:
    require(0 <= value < 1, f"{name} {value} is outside 0 ≤ rate < 1; use 0 for none")


def multiple(kind: str, name: str, value: int, factor: int) -> None:
    below, above = value // factor * factor, -(-value // factor) * factor
    options = f"{below} or {above}" if below else f"{above}"
    require(
        value % factor == 0,
        f"{name} {value} is not a multiple of {factor}, which {kind} needs; try {options}",
    )
