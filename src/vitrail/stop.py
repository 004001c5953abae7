"""SIGTERM and Ctrl-C: once, what is under way is finished and saved; twice, it stops now."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Stop"]


class Stop:
    """While entered, the first signal is noted in `asked`; the second raises KeyboardInterrupt.

    What is saved is renamed into place when it is whole, so stopping now harms nothing.
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
