"""What long commands show: a line that moves, notes above it, and what stays."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

__all__ = ["LiveView", "Tell", "counted", "working"]

T = TypeVar("T")
LABEL = 10
"""Width of the labels of a view's lines."""


class Tell(Protocol):
    """Change what a moving line says: its words, or how many of how many are done."""

    def __call__(self, words: str | None = None, done: int | None = None, total: int | None = None) -> None: ...


@contextmanager
def working(words: str) -> Iterator[Tell]:
    """Show on a terminal's standard error what is running and for how long; it disappears at the end."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(words, total=None)

        def tell(words: str | None = None, done: int | None = None, total: int | None = None) -> None:
            bar.update(task, description=words, completed=done, total=total)

        yield tell


def counted(items: Iterable[T], words: str, total: int) -> Iterator[T]:
    """Yield the items while a moving line counts them."""
    with working(words) as tell:
        for done, item in enumerate(items, 1):
            tell(f"{words} {done:,} of {total:,}", done, total)
            yield item


class LiveView:
    """Writes to standard error what moves, and to standard output what stays."""

    def __init__(self, *columns: ProgressColumn, description: str = "") -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
        self.out = Console(highlight=False, soft_wrap=True, markup=False)
        self.bar = Progress(*columns, console=self.console)
        self.task = self.bar.add_task(description, total=None)
        self.waiting = ExitStack()

    def wait(self, words: str) -> None:
        """Show what is being done until there is something to say."""
        self.waiting.enter_context(working(words))

    def start(self) -> None:
        """Show the line that moves."""
        self.waiting.close()
        self.bar.start()

    def note(self, line: str) -> None:
        self.waiting.close()
        self.console.print(line)

    def say(self, label: str, words: str) -> None:
        """Print a labelled line, on a terminal wrapped beside its label."""
        self.waiting.close()
        if self.out.is_terminal:
            lines = textwrap.wrap(words, max(20, self.out.width - LABEL), break_on_hyphens=False)
            words = f"\n{' ' * LABEL}".join(lines)
        self.out.print(f"{label:<{LABEL}}{words}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.waiting.close()
        if self.bar.live.is_started:  # else it would leave an empty line
            self.bar.stop()
