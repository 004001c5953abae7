"""The full plan of a config and a workload, optionally on a card.

The command line and the studio show the same `Report`; docs/schema/plan.json describes its JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any

from vitrail.charts.notebook import Shown, facts, html_table
from vitrail.charts.numbers import bytes_text, count_text
from vitrail.config import Config, MobileConfig, ViTConfig
from vitrail.geometry import Size
from vitrail.plan.cards import Card
from vitrail.plan.changes import Change, changes
from vitrail.plan.fit import largest_batches, on_card
from vitrail.plan.hardware import Bound, Verdict, flash_scratch_bytes, roofline, verdicts
from vitrail.plan.ledger import Ledger, ledger
from vitrail.plan.memory import memory
from vitrail.plan.saving import Saving, saving
from vitrail.plan.workload import Memory, Workload

__all__ = ["Report", "report"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Report(Shown):
    """A plan. FLOPs and MACs are per image; memory and time are per device and step."""

    config: Config
    workload: Workload
    """With the attention kernel that would run on the card."""
    books: Ledger
    """The ledger of a training step for any workload; its forward FLOPs are also those of inference."""
    memory: Memory
    card: Card | None
    verdicts: tuple[Verdict, ...]
    max_batch: dict[str, int]
    changes: tuple[Change, ...]
    step_bound: Bound | None
    saving: Saving | None
    """What training a part saves against full training; None if everything is trained."""
    notes: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """Tokens, prefix included; in a pyramid or a mobile model, those of the last grid."""
        config = self.config
        if isinstance(config, ViTConfig) and self.workload.adaptive_tokens is not None:
            return config.prefix.count + self.workload.adaptive_tokens
        return config.tokens

    def _summary(self) -> str:
        work = self.workload
        step = f"{'training' if work.train else 'inference'}, batch {work.batch}, {work.precision}"
        return f"image {self.config.image}, {self.tokens:,} tokens, {step}: {bytes_text(self.memory.peak_bytes)}"

    def _panel(self) -> Iterator[str]:
        yield facts(
            [
                ("grid", self.config.grid),
                ("parameters", f"{self.books.params:,}"),
                ("forward", f"{count_text(self.books.flops_forward, 'FLOP')} per image"),
            ]
        )
        yield from self.memory._panel()
        if self.card is not None:
            yield html_table(
                (self.card.name, "", "needs", "largest batch"),
                (
                    (
                        verdict.name,
                        "fits" if verdict.fits else "<b>does not fit</b>",
                        bytes_text(verdict.needed_bytes),
                        f"{self.max_batch[verdict.name]:,}",
                    )
                    for verdict in self.verdicts
                ),
                "llrr",
            )
        if self.changes:
            head = ("change", "needs with it alone", "price")
            rows = ((escape(each.what), bytes_text(each.alone_bytes), escape(each.price)) for each in self.changes)
            yield html_table(head, rows, "lrl")

    def to_json(self) -> dict[str, Any]:
        config, work = self.config, self.workload
        return {
            "image": _size(config.image),
            "patch": None if isinstance(config, MobileConfig) else _size(config.patch),
            "frames": config.frames,
            "steps": config.steps,
            "grid": _size(config.grid),
            "tokens": self.tokens,
            "params": self.books.params,
            "trained_params": self.books.trained_params if work.train else 0,
            "flops_forward": self.books.flops_forward,
            "flops_train": self.books.flops_train,
            "macs_forward": self.books.macs_forward,
            "workload": work.to_json(),
            "peak_bytes": self.memory.peak_bytes,
            "bytes": self.memory.bytes,
            "phase_peaks": self.memory.phase_peaks,
            "exact": self.memory.exact,
            "gpu": None if self.card is None else asdict(self.card),
            "verdicts": {
                verdict.name: {
                    "fits": verdict.fits,
                    "needed_bytes": verdict.needed_bytes,
                    "free_bytes": verdict.free_bytes,
                }
                for verdict in self.verdicts
            },
            "max_batch": self.max_batch,
            "changes": [
                {
                    "name": change.name,
                    "what": change.what,
                    "price": change.price,
                    "alone_bytes": change.alone_bytes,
                    "alone_fits": change.alone_fits,
                    "together_bytes": change.together_bytes,
                    "together_fits": change.together_fits,
                }
                for change in self.changes
            ],
            "step_bound": None if self.step_bound is None else asdict(self.step_bound),
            "saving": None
            if self.saving is None
            else {
                "first_trained": self.saving.first,
                "full_peak_bytes": self.saving.full_peak_bytes,
                "bytes": self.saving.by_component,
            },
            "notes": list(self.notes),
        }


def _size(size: Size) -> dict[str, int]:
    return {"height": size.height, "width": size.width}


def report(config: Config, workload: Workload, card: Card | None = None) -> Report:
    """Plan a workload; with a card, also whether it fits, the largest batch, what to change, and a bound on time."""
    real = workload if card is None else on_card(workload, card)
    planned = memory(config, real)
    books = ledger(config, replace(real, batch=1, accumulate=1, train=True))
    notes = [planned.note] if planned.note else []
    if real.attention != workload.attention:
        notes.append(f"{workload.attention} attention does not run on this card; planned with {real.attention}")
    part = None
    if real.train and not real.tuning.is_everything:
        part = saving(config, real, books, planned)
        notes += part.sentences()
    bound = None
    if card is not None:
        bound = _bound(card, real, books, planned)
        notes += [text for text in (card.note, bound.note if bound else "") if text]
    return Report(
        config=config,
        workload=real,
        books=books,
        memory=planned,
        card=card,
        verdicts=() if card is None else verdicts(planned, card, flash_scratch_bytes(config, real)),
        max_batch={} if card is None else largest_batches(config, workload, card),
        changes=() if card is None else changes(config, workload, card),
        step_bound=bound,
        saving=part,
        notes=tuple(notes),
    )


def _bound(card: Card, workload: Workload, books: Ledger, planned: Memory) -> Bound | None:
    """Bound the time of a step, which reads and writes weights, activations and optimizer state at least once."""
    images = workload.batch * workload.accumulate
    flops = images * (books.flops_train if workload.train else books.flops_forward)
    part = planned.bytes
    traffic = part["weights"] + part["input"]
    if workload.train:
        micro = 2 * (part["weights"] + part["activations"] + part["attention_maps"])
        traffic = workload.accumulate * micro + part["gradients"] + 2 * (part["optimizer"] + part["weights"])
    return roofline(card, workload, flops=flops, traffic_bytes=traffic, images=images)
