"""Choices of earlier tournaments, beside the graphs in vitrail's cache folder.

A choice holds for the weights, the kind of numbers, the batch size, the threads, and this machine with these packages.
"""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from vitrail.atomic import write_json_file
from vitrail.codec import from_plain, to_plain
from vitrail.errors import VitrailError
from vitrail.vectors.engines.graph_cache import kept_folder
from vitrail.vectors.engines.names import RUNTIMES
from vitrail.vectors.engines.tournament import Choice

__all__ = ["keep_choice", "kept_choice"]

Kind = Literal["float32", "int8"]


def keep_choice(key: str, choice: Choice, kind: Kind, batch: int, threads: int) -> None:
    """Keep a choice for the weights that `graph_key` names."""
    with suppress(VitrailError, OSError):  # a machine without a cache folder holds a tournament every time
        write_json_file(_path(key, kind, batch, threads), {"machine": _machine(), "choice": to_plain(choice)})


def kept_choice(key: str, kind: Kind, batch: int, threads: int) -> Choice | None:
    """Return the choice of an earlier tournament, if it was held here with the same packages."""
    try:
        held = json.loads(_path(key, kind, batch, threads).read_bytes())
        if held["machine"] == _machine():
            return from_plain(held["choice"], Choice, "choice").but(why="the fastest here in an earlier run")
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _path(key: str, kind: Kind, batch: int, threads: int) -> Path:
    return kept_folder(key) / f"{kind}-{batch}-{threads}.json"


def _machine() -> dict[str, str]:
    """Return what a choice depends on."""
    names = ("torch", *RUNTIMES)
    packages = {name: version(name) if find_spec(name) else "" for name in names}
    return {"processor": _processor(), "cores": str(len(os.sched_getaffinity(0))), **packages}


def _processor() -> str:
    with suppress(OSError, StopIteration), open("/proc/cpuinfo") as lines:
        facts = [line.split(":", 1)[1].strip() for line in lines if line.startswith(("model name", "flags"))]
        return " ".join(facts[:2])
    return platform.processor() or platform.machine()
