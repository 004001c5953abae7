"""Activation checkpointing: what a block keeps for backward, and what it computes again there.

The planner and training read the same `Checkpointing`, so that what is planned can be run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from vitrail.errors import VitrailError, shown
from vitrail.rules import PositiveInt
from vitrail.value import Value, one_of

__all__ = ["Checkpointing"]

CheckpointingKind = Literal["full", "selective"]


@dataclass(frozen=True)
class Checkpointing(Value):
    """Blocks that keep little for backward and recompute the rest.

    Full checkpointing keeps only a block's input. Selective checkpointing also keeps the outputs of matrix products and
    attention, so that only cheap operations run again: norms, activations, dropout, casts and copies.

    >>> from vitrail import Checkpointing
    >>> str(Checkpointing.of("selective:2")), Checkpointing.of(True), Checkpointing.of(False)
    ('selective:2', Checkpointing(), None)
    """

    kind: CheckpointingKind = "full"
    every: PositiveInt = 1
    """Checkpoint every k-th block of a stage, counted from 1; the others keep everything."""

    @classmethod
    def of(cls, value: Checkpointing | str | bool) -> Checkpointing | None:
        """Read `full`, `selective:2`, a Checkpointing, True for full checkpointing of all blocks, or False for none."""
        if isinstance(value, bool):
            return cls() if value else None
        if isinstance(value, Checkpointing):
            return value
        match = re.fullmatch(r"([^:]*)(?::(\d{1,9}))?", value) if isinstance(value, str) else None
        if match is None:
            raise VitrailError(f"checkpointing {shown(value)} is not KIND or KIND:EVERY; write full or selective:2")
        return cls(one_of("checkpointing", match[1], get_args(CheckpointingKind)), int(match[2] or 1))

    def covers(self, number: int) -> bool:
        """Return whether the block with this number, counted from 0, is checkpointed.

        >>> [number for number in range(7) if Checkpointing(every=3).covers(number)]
        [2, 5]
        """
        return (number + 1) % self.every == 0

    @property
    def words(self) -> str:
        """Say it for a title.

        >>> Checkpointing("selective", every=3).words
        'selective checkpointing of every 3rd block'
        """
        ending = {1: "st", 2: "nd", 3: "rd"}.get(self.every % 10 if self.every % 100 // 10 != 1 else 0, "th")
        which = "" if self.every == 1 else f" of every {self.every}{ending} block"
        return f"{'selective ' if self.kind == 'selective' else ''}checkpointing{which}"

    def __str__(self) -> str:
        return self.kind if self.every == 1 else f"{self.kind}:{self.every}"
