"""What training a part of a model saves against training all of it, in bytes and in words."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vitrail.charts.numbers import bytes_text
from vitrail.config import Config
from vitrail.plan.ledger import Ledger
from vitrail.plan.memory import memory
from vitrail.plan.workload import Memory, Workload
from vitrail.tuning import Tuning

__all__ = ["Saving", "saving"]


@dataclass(frozen=True, kw_only=True)
class Saving:
    """The peak of a step that trains a part, beside that of full training.

    >>> from vitrail import preset
    >>> from vitrail.plan import Workload, ledger, memory
    >>> model, work = preset("B/16"), Workload(batch=8, train=True, tuning=Tuning(last=4))
    >>> found = saving(model, work, ledger(model, work), memory(model, work))
    >>> found.first, sum(found.by_component.values()) == found.full_peak_bytes - found.peak_bytes
    ('blocks.8.norm1', True)
    """

    trained_params: int
    params: int
    first: str
    """The first module with a trained tensor, in the order of the model."""
    frozen_above: bool
    """Whether some of the modules after the first trained one are frozen."""
    peak_bytes: int
    full_peak_bytes: int
    by_component: dict[str, int]
    """Bytes at the peak of full training less those at this peak; their sum is the whole difference."""
    in_the_way: tuple[str, ...]
    """Trained parts below frozen blocks, because of which the blocks keep their activations."""
    without_them_bytes: int
    """The peak with these parts frozen too."""

    def sentences(self) -> tuple[str, ...]:
        """Say what is saved, and what is not."""
        whole = self.full_peak_bytes - self.peak_bytes
        parts = sorted(self.by_component.items(), key=lambda item: -item[1])
        named = ", ".join(
            f"{name.replace('_', ' ')} {'−' if size < 0 else ''}{bytes_text(abs(size))}"
            for name, size in parts
            if abs(size) > abs(whole) // 100
        )
        saved = f"saves {bytes_text(whole)} of" if whole >= 0 else f"takes {bytes_text(-whole)} more than"
        found = [
            f"training a part {saved} full training's {bytes_text(self.full_peak_bytes)}: {named}",
            "frozen weights have no gradients and no optimizer state; nothing is saved for backward below the first "
            f"trained tensor, in {self.first}",
        ]
        if self.frozen_above:
            found[1] += "; above it, frozen layers keep most activations, because gradients pass through them"
        if self.without_them_bytes < self.peak_bytes:
            found.append(
                f"{', '.join(self.in_the_way)} below frozen blocks need gradients to pass through them; freezing these "
                f"too would save another {bytes_text(self.peak_bytes - self.without_them_bytes)}"
            )
        return tuple(found)


def saving(config: Config, workload: Workload, books: Ledger, planned: Memory) -> Saving:
    """Compare a planned step with full training; `books` is the ledger of the same workload."""
    full, tuning = memory(config, replace(workload, tuning=Tuning())), workload.tuning
    trained = [row.trained_params > 0 for row in books.rows]
    first = trained.index(True)
    in_the_way = tuning.on(config).in_the_way()
    further = replace(tuning, freeze=(*tuning.freeze, *in_the_way))
    return Saving(
        trained_params=books.trained_params,
        params=books.params,
        first=books.rows[first].path or "the model's own tensors",  # timm's model itself has cls_token and pos_embed
        frozen_above=any(row.params > row.trained_params for row in books.rows[first:]),
        peak_bytes=planned.peak_bytes,
        full_peak_bytes=full.peak_bytes,
        by_component={name: size - planned.bytes[name] for name, size in full.bytes.items()},
        in_the_way=in_the_way,
        without_them_bytes=memory(config, replace(workload, tuning=further)).peak_bytes
        if in_the_way
        else planned.peak_bytes,
    )
