"""Numbers as people read them: three significant digits and a unit."""

from __future__ import annotations

from fractions import Fraction

__all__ = ["bytes_text", "count_text", "number_text", "seconds_text"]


def bytes_text(count: int) -> str:
    """
    >>> bytes_text(7_644_748_083), bytes_text(1023)
    ('7.12 GiB', '1,023 B')
    """
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= size:
            return f"{_three(count / size)} {unit}"
    return f"{count:,} B"


def count_text(count: float, unit: str = "") -> str:
    """
    >>> count_text(86_567_656), count_text(35_127_656_448, "FLOP")
    ('86.6 M', '35.1 GFLOP')
    """
    for letter, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{_three(count / size)} {letter}{unit}"
    return f"{_three(count)} {unit}".rstrip()


def seconds_text(seconds: float) -> str:
    """
    >>> seconds_text(0.0205), seconds_text(3.14e-5), seconds_text(3962)
    ('20.5 ms', '31.4 µs', '66.0 min')
    """
    for unit, size, least in (("h", 3600.0, 7200.0), ("min", 60.0, 120.0), ("s", 1.0, 1.0), ("ms", 1e-3, 1e-3)):
        if seconds >= least:
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds / 1e-6)} µs"


def number_text(value: float | Fraction) -> str:
    """A whole number with separators, anything else to three digits."""
    return f"{int(value):,}" if value == int(value) else _three(float(value))


def _three(value: float) -> str:
    """Three significant digits, never in exponent form."""
    magnitude = abs(value)
    if magnitude >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if magnitude >= 10 else f"{value:.2f}" if magnitude >= 1 else f"{value:.3g}"
