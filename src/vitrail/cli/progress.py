"""What long commands show: a line that moves, notes above it, and what stays."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn

__all__ = ["LiveView"]


class LiveView:
    """Writes to standard error what moves, and to standard output what stays."""

    def __init__(self, *columns: ProgressColumn, description: str = "") -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
        self.out = Console(highlight=False, soft_wrap=True, markup=False)
        self.bar = Progress(*columns, console=self.console)
        self.task = self.bar.add_task(description, total=None)

    def note(self, line: str) -> None:
        self.console.print(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar.live.is_started:  # else it would leave an empty line
            self.bar.stop()
