"""Tables on a terminal, and values as JSON, which keeps exact integers. rich is imported by the functions that draw."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.geometry import Size

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

__all__ = [
    "plain",
    "show",
    "table",
    "write_csv",
    "write_json",
    "written",
]

READABLE = 24
"""Letters of a line of prose below which nobody reads it."""


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


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    align: str,
    *,
    caption: str = "",
    keys: int = 1,
) -> Any:
    """A rich table with a line below it. `align` has a letter per column: l for words, r for numbers, w for prose.

    Words and numbers are never cut, and prose is never narrower than READABLE letters: columns for which there is no
    room follow below, beside the first `keys` columns, which name the rows.
    """
    from rich.console import Group

    drawn = _Columns(title, columns, list(rows), align, keys)
    return Group(drawn, f" [dim]{caption}[/]\n") if caption else Group(drawn, "")


@dataclasses.dataclass(frozen=True)
class _Columns:
    """A table that is drawn when its room is known."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str
    keys: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.measure import Measurement

        keys, unbounded = list(range(self.keys)), options.update(max_width=sys.maxsize)
        title, drawn = self.title, [*keys]
        for place in range(self.keys, len(self.columns)):
            needed = Measurement.get(console, unbounded, self._table([*drawn, place])).minimum
            if needed > options.max_width and drawn != keys:
                yield self._table(drawn, title)
                title, drawn = "", [*keys]
            drawn.append(place)
        yield self._table(drawn, title)

    def _table(self, places: Sequence[int], title: str = "") -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        named = any(self.columns)
        drawn = Table(
            title=title or None,
            box=box.SIMPLE_HEAD if named else None,
            title_justify="left",
            title_style="bold",
            header_style="dim",
            collapse_padding=True,
            show_header=named,
        )
        for place in places:
            letter, cells = self.align[place], [self.columns[place], *(row[place] for row in self.rows)]
            width = max(line.cell_len for cell in cells for line in Text.from_markup(cell).split() or [Text()])
            prose = letter == "w"
            drawn.add_column(
                self.columns[place],
                justify="right" if letter == "r" else "left",
                no_wrap=not prose,
                overflow="fold",
                min_width=min(width, READABLE) if prose else width,
            )
        for row in self.rows:
            drawn.add_row(*(row[place] for place in places))
        return drawn


def show(*parts: Any) -> None:
    """Draw tables and lines of text, which may have rich's markup, on standard output."""
    from rich.console import Console

    # a pipe has no width of its own: room for every column, unless COLUMNS says otherwise
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(highlight=False, width=None if known else 120)
    for part in parts:
        console.print(part)


def written(*paths: Path, note: str = "") -> None:
    """Name the files that a command has written."""
    from rich.console import Console

    for path in paths:  # not wrapped, so that a path can be copied
        Console(highlight=False, markup=False, soft_wrap=True).print(f"written: {path}{note}")
