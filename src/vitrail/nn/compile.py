"""torch.compile, with a one-line error if it cannot work."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from vitrail.errors import require

__all__ = ["compiled", "require_compiler"]

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R], *, dynamic: bool | None = None) -> Callable[P, R]:
    """Return the function compiled; compilation happens at the first call, and without `dynamic` for every shape."""
    require_compiler()
    return torch.compile(function, dynamic=dynamic)


def require_compiler() -> None:
    compiler = os.environ.get("CXX", "g++")
    require(
        shutil.which(compiler) is not None,
        f"torch.compile needs a C++ compiler, and {compiler} is not installed; install one, set CXX, or do not compile",
    )
