"""Run vitrail's command line in a test: in this process, or as people run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vitrail.cli import main

__all__ = ["call", "run"]


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
