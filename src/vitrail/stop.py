"""SIGTERM and Ctrl-C: the first signal finishes and saves the current work, the second stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Stop"]


class Stop:
    """Inside the `with` block, the first signal is stored in `asked`; the second raises KeyboardInterrupt.

    Files are renamed into place only when they are complete, so stopping at once loses nothing that was saved.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            raise KeyboardInterrupt
        self.asked = number
