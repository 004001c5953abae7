"""Run vitrail's command line in a test, in this process or as people run it; and wait for what other processes do."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vitrail.cli import main

__all__ = ["PATIENCE", "call", "children", "command_of", "run", "until"]

PATIENCE = 300
"""Seconds until a condition is given up: a loaded machine is slow, not wrong."""


def call(*arguments: str) -> int:
    """In this process; the exit code. Output goes where capsys looks."""
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As a process of its own, by the installed script."""
    script = Path(sys.executable).with_name("vitrail")
    return subprocess.run([script, *arguments], capture_output=True, text=True, check=False)


def until(holds: Callable[[], object]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    try:
        return [
            int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _read(task / "children").split()
        ]
    except OSError:
        return []


def command_of(pid: int) -> bytes:
    """A process's command, empty once it has ended."""
    return _read(Path(f"/proc/{pid}/cmdline"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
