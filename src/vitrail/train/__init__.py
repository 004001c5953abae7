"""Training: recipes as data, one short loop, and runs that resume bit for bit.

`run` loads on demand: recipes and the list of experiments need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.train.runs import run as run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    if name != "run":
        raise AttributeError(f"module 'vitrail.train' has no attribute {name!r}")
    from vitrail.train.runs import run

    return run
