"""Parameters, FLOPs and saved bytes per module; a row's path is the module's prefix in the state dict."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from vitrail.charts.notebook import Shown, html_table
from vitrail.charts.numbers import count_text
from vitrail.config import Config
from vitrail.plan.meter import NoMeter
from vitrail.plan.step import run_step
from vitrail.plan.tape import Tape
from vitrail.plan.workload import Workload

__all__ = ["Ledger", "Row", "ledger", "rows_of"]


@dataclass(frozen=True)
class Row:
    """The costs of one module, without its submodules.

    FLOPs are per image, two per multiply-add, of matrix products, convolutions and attention.

    >>> from vitrail import preset
    >>> from vitrail.plan import ledger
    >>> row = ledger(preset("B/16")).rows[0]
    >>> row.path, row.params, row.macs
    ('embedding', 590592, 115605504)
    """

    path: str
    params: int
    flops: int
    train_flops: int
    """Forward, backward and recomputation by checkpointing."""
    saved_bytes: int
    """Bytes saved for backward in a training step, for the whole batch."""
    trained_params: int

    @property
    def macs(self) -> int:
        return self.flops // 2


@dataclass(frozen=True, repr=False)
class Ledger(Shown):
    """Rows in the order of the model, and their totals.

    >>> from vitrail import preset
    >>> from vitrail.plan import ledger
    >>> ledger(preset("B/16"))
    <Ledger: 86,567,656 parameters, 35.1 GFLOP forward per image>
    """

    rows: tuple[Row, ...]

    @property
    def params(self) -> int:
        return sum(row.params for row in self.rows)

    @property
    def trained_params(self) -> int:
        return sum(row.trained_params for row in self.rows)

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
        """Per image."""
        return self.flops_forward // 2

    @property
    def saved_bytes(self) -> int:
        return sum(row.saved_bytes for row in self.rows)

    def _summary(self) -> str:
        return f"{self.params:,} parameters, {count_text(self.flops_forward, 'FLOP')} forward per image"

    def _panel(self) -> Iterator[str]:
        alike: dict[str, list[Row]] = {}
        for row in self.rows:
            alike.setdefault(re.sub(r"\.\d+", "[…]", row.path), []).append(row)
        yield html_table(
            ("module", "", "parameters", "forward FLOP", "share"),
            (
                (
                    path,
                    f"× {len(rows)}" if len(rows) > 1 else "",
                    f"{sum(row.params for row in rows):,}",
                    count_text(sum(row.flops for row in rows), "FLOP"),
                    f"{sum(row.flops for row in rows) / max(1, self.flops_forward):.1%}",
                )
                for path, rows in alike.items()
            ),
            "lrrrr",
        )


def ledger(config: Config, workload: Workload | None = None) -> Ledger:
    """Return a model's ledger; the workload affects the attention kernel, checkpointing and saved bytes.

    >>> from vitrail.config import ViTConfig
    >>> books = ledger(ViTConfig())
    >>> books.params, books.flops_forward
    (86567656, 35127656448)
    """
    training = replace(workload or Workload(), train=True, accumulate=1)
    return Ledger(tuple(rows_of(run_step(config, training, meter=NoMeter()).tape, training.batch)))


def rows_of(tape: Tape, images: int) -> list[Row]:
    """Return a step's rows, skipped blocks included."""
    forward, backward = (tape.per_image(flops, images) for flops in (tape.flops, tape.backward_flops))
    params, trained = tape.params(), tape.params(trained=True)
    rows: list[tuple[tuple[int, ...], Row]] = []
    names: dict[str, int] = {}
    blocks: dict[str, tuple[int, ...]] = {}

    def place(block: str) -> tuple[int, ...]:
        """What comes before a path's first number, in the order of the model, and its numbers."""
        if block not in blocks:
            name, *_ = re.split(r"\.\d", block, maxsplit=1)
            numbers = (int(part) for part in block.split(".") if part.isdigit())
            blocks[block] = (names.setdefault(name, len(names)), *numbers)
        return blocks[block]

    for path in tape.paths:
        flops = forward.get(path, 0)
        costs = (
            params.get(path, 0),
            flops,
            flops + backward.get(path, 0),
            tape.saved_bytes[path],
            trained.get(path, 0),
        )
        rows.append((place(path), Row(path, *costs)))
        for template, others in tape.repeats.items():
            if path == template or path.startswith(f"{template}."):
                rest = path.removeprefix(template)
                numbers = place(rest)[1:] if any(map(str.isdigit, rest)) else ()
                rows += [((*place(other), *numbers), Row(other + rest, *costs)) for other in others]
    return [row for _, row in sorted(rows, key=lambda each: each[0])]
