"""Memory against image size: the same step on smaller and larger images of the same aspect ratio."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.config import Config
from vitrail.geometry import Size
from vitrail.plan.cards import Card
from vitrail.plan.fit import LIKELY, image_steps, on_card
from vitrail.plan.hardware import flash_scratch_bytes, needed_bytes
from vitrail.plan.memory import memory
from vitrail.plan.workload import Memory, Workload

__all__ = ["Sample", "memory_by_image"]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One image size and the memory of a step on it."""

    image: Size
    memory: Memory
    needed_bytes: int
    """Bytes that the step would likely take on a card."""


def memory_by_image(
    config: Config, workload: Workload, target: Card | None = None, *, points: int = 32, widest: int = 2
) -> list[Sample]:
    """Plan about `points` image sizes of the config's aspect ratio, from the smallest to twice its side.

    With a card, continue until it is full, up to `widest` times the side.

    >>> from vitrail.config import ViTConfig
    >>> samples = memory_by_image(ViTConfig(), Workload(), points=4)
    >>> [str(sample.image) for sample in samples]
    ['112x112', '224x224', '336x336', '448x448']
    """
    work = workload if target is None else on_card(workload, target)
    smallest, current = image_steps(config)

    def sample(step: int) -> Sample:
        scaled = config.but(image=Size(smallest.height * step, smallest.width * step))
        planned = memory(scaled, work)
        needed = needed_bytes(planned, LIKELY, flash_scratch_bytes(scaled, work))
        return Sample(image=scaled.image, memory=planned, needed_bytes=needed)

    last = max(2 * current, 4)
    while target is not None and last < widest * current and sample(last).needed_bytes < target.visible_bytes:
        last += max(1, current // 2)
    steps = sorted({max(1, round(last * part / points)) for part in range(1, points + 1)} | {current})
    return [sample(step) for step in steps]
