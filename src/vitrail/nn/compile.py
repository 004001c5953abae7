"""torch.compile, with the reason in one line where it cannot work."""

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


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, made into one program when it is first called."""
    require_compiler()
    return torch.compile(function)


def require_compiler() -> None:
    compiler = os.environ.get("CXX", "g++")
    require(
        shutil.which(compiler) is not None,
        f"torch.compile needs a C++ compiler, and there is no {compiler}; install one, set CXX, or do without compile",
    )
