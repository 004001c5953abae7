"""Parameters, FLOPs and saved bytes, row by row: a row's path is its module's prefix in the state dict."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vitrail.config import Config
from vitrail.plan.step import Step, run_step
from vitrail.plan.workload import Workload

__all__ = ["Ledger", "Row", "ledger"]


@dataclass(frozen=True)
class Row:
    """What one module has and does by itself, its submodules apart.

    FLOPs are two per multiply-add, per image: matrix products, convolutions and attention.
    """

    path: str
    params: int
    flops: int
    train_flops: int
    """Forward, backward and what checkpointing computes again."""
    saved_bytes: int
    """What it keeps for backward, for the whole batch; 0 in inference."""

    @property
    def macs(self) -> int:
        return self.flops // 2


@dataclass(frozen=True)
class Ledger:
    """The rows in the order of the model, and their totals."""

    rows: tuple[Row, ...]

    @property
    def params(self) -> int:
        return sum(row.params for row in self.rows)

    @property
    def flops_forward(self) -> int:
        """Per image."""
        return sum(row.flops for row in self.rows)

    @property
    def flops_train(self) -> int:
        """Per image, forward and backward."""
        return sum(row.train_flops for row in self.rows)

    @property
    def macs_forward(self) -> int:
        return self.flops_forward // 2

    @property
    def saved_bytes(self) -> int:
        return sum(row.saved_bytes for row in self.rows)


def ledger(config: Config, workload: Workload | None = None) -> Ledger:
    """A model's books; without a workload, those of training on one image.

    >>> from vitrail.config import ViTConfig
    >>> books = ledger(ViTConfig())
    >>> books.params, books.flops_forward
    (86567656, 35127656448)
    """
    workload = workload or Workload(train=True)
    step = run_step(config, workload)
    return Ledger(tuple(_rows(step, workload.batch)))


def _rows(step: Step, batch: int) -> list[Row]:
    tape = step.tape
    places: dict[str, int] = {}
    rows: dict[str, Row] = {}
    for path in tape.paths:
        places.setdefault(path.split(".")[0], len(places))
        flops, more = tape.flops[path], tape.backward_flops[path]
        row = Row(path, tape.params[path], flops // batch, (flops + more) // batch, tape.saved_bytes[path])
        rows[path] = row
        for template, (_, others) in tape.repeats.items():
            if path == template or path.startswith(f"{template}."):
                for other in others:
                    like = other + path.removeprefix(template)
                    rows[like] = replace(row, path=like)

    def place(path: str) -> tuple[int, ...]:
        name, *rest = path.split(".")
        return places[name], *(int(part) for part in rest if part.isdigit())

    return [rows[path] for path in sorted(rows, key=place)]
