"""Training steps with activation checkpointing, drawn at random: full or selective, of all blocks or every k-th."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from cases import draw
from tunings import draw_tuned

from vitrail.checkpointing import Checkpointing
from vitrail.config import Config
from vitrail.plan import Workload

__all__ = ["draw_checkpointed"]


def draw_checkpointed(count: int, seed: int) -> list[tuple[Config, Workload]]:
    """Training steps, a third of which train only a part, each with a random kind of checkpointing."""
    random = Random(seed)
    parts = draw_tuned(count // 3, seed + 2)
    whole = [(config, workload) for config, workload in draw(2 * count, seed + 3) if workload.train]
    kinds = [Checkpointing(kind, every) for kind in ("full", "selective") for every in (1, 2, 3)]
    cases = [*parts, *whole[: count - len(parts)]]
    return [(config, replace(workload, checkpointing=random.choice(kinds[1:]))) for config, workload in cases]
