"""Memory against image size: the same step on smaller and larger images of the same aspect ratio."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.config import Config
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.plan.cards import Card
from vitrail.plan.fit import image_steps, need_bytes
from vitrail.plan.memory import COMPONENTS
from vitrail.plan.sweep import sweep
from vitrail.plan.workload import Workload

__all__ = ["Sample", "memory_by_image"]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One image size and the memory of a step on it."""

    image: Size
    peak_bytes: int
    bytes: dict[str, int]
    """By component at the peak."""
    needed_bytes: int | None
    """Bytes that the step would likely take on the card; None without one."""


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
    smallest, current = image_steps(config)

    def scaled(step: int) -> Size:
        return Size(smallest.height * step, smallest.width * step)

    def fills(step: int, card: Card) -> bool:
        return need_bytes(config.but(image=scaled(step)), workload, card) >= card.visible_bytes

    last = max(2 * current, 4)
    while target is not None and last < widest * current and not fills(last, target):
        last += max(1, current // 2)
    steps = sorted({max(1, round(last * part / points)) for part in range(1, points + 1)} | {current})
    images = [scaled(step) for step in steps]
    found = sweep(
        lambda image: (config.but(image=image), workload), {"image": images}, len(images), target, batches=False
    )
    require(not any(found.errors), next(filter(None, found.errors), ""))
    return [
        Sample(
            image=image,
            peak_bytes=found["peak_bytes"][place],
            bytes={name: found[f"bytes.{name}"][place] for name in COMPONENTS},
            needed_bytes=None if target is None else found["needed_bytes"][place],
        )
        for place, image in enumerate(images)
    ]
