"""Tables on a terminal, and values as JSON, which keeps exact integers. rich is imported by the functions that draw."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from vitrail.geometry import Size

__all__ = [
    "plain",
    "show",
    "table",
    "write_csv",
    "write_json",
]


def plain(value: Any) -> Any:
    """Dataclasses, sizes and fractions as JSON values: a size is an object, a whole fraction an integer."""
    if isinstance(value, Size):
        return {"height": value.height, "width": value.width}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def write_json(value: Any) -> None:
    sys.stdout.write(json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n")


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], align: str, *, caption: str = "") -> Any:
    """A rich table with a line below it. `align` has a letter per column: l for words, r for numbers, w for prose."""
    from rich import box
    from rich.console import Group
    from rich.table import Table

    drawn = Table(
        title=title or None,
        box=box.SIMPLE_HEAD if any(columns) else None,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        collapse_padding=True,
        show_header=any(columns),
    )
    for column, letter in zip(columns, align, strict=True):
        drawn.add_column(column, justify="right" if letter == "r" else "left", no_wrap=letter != "w")
    for row in rows:
        drawn.add_row(*row)
    return Group(drawn, f" [dim]{caption}[/]\n") if caption else Group(drawn, "")


def show(*parts: Any) -> None:
    """Draw tables and lines of text, which may have rich's markup, on standard output."""
    from rich.console import Console

    # a pipe has no width of its own: room for every column
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    for part in parts:
        console.print(part)
