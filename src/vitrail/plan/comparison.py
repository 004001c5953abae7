"""A model's numbers for a comparison of models: planned figures and published accuracies."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vitrail.config import Config
from vitrail.geometry import Size
from vitrail.plan.cards import Card
from vitrail.plan.fit import largest_batch
from vitrail.plan.ledger import ledger
from vitrail.plan.memory import memory
from vitrail.plan.published import Result, results
from vitrail.plan.workload import Workload

__all__ = ["Compared", "compared"]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One model's numbers; memory is per device, FLOPs are per image."""

    model: str
    image: Size
    grid: Size
    tokens: int
    params: int
    flops_forward: int
    flops_train: int
    macs_forward: int
    infer_peak_bytes: int
    train_peak_bytes: int
    max_batch: int | None
    """The largest training batch that likely fits the card."""
    published: tuple[Result, ...]


def compared(name: str, config: Config, workload: Workload, target: Card | None = None) -> Compared:
    """Plan a model; published results are those of the preset of that name."""
    books = ledger(config, replace(workload, batch=1))
    return Compared(
        model=name,
        image=config.image,
        grid=config.grid,
        tokens=config.tokens,
        params=books.params,
        flops_forward=books.flops_forward,
        flops_train=books.flops_train,
        macs_forward=books.macs_forward,
        infer_peak_bytes=memory(config, replace(workload, train=False)).peak_bytes,
        train_peak_bytes=memory(config, workload).peak_bytes,
        max_batch=None if target is None else largest_batch(config, workload, target),
        published=results(name),
    )
