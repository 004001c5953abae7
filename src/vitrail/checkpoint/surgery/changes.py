"""The result of surgery as data: the change of every tensor of both models, and notes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Literal

from vitrail.charts.notebook import Shown, html_table
from vitrail.checkpoint.surgery.projection import Projection
from vitrail.checkpoint.surgery.resample import Method
from vitrail.config import Config
from vitrail.geometry import Size

__all__ = ["STATUSES", "Change", "Changes", "Resized", "Status", "input_text", "shape_text"]

Status = Literal["kept", "resampled", "missing", "unused"]
STATUSES: dict[Status, str] = {
    "kept": "the same tensor, untouched",
    "resampled": "made from the old tensor",
    "missing": "newly made: the old model has none that fits",
    "unused": "left out: the new model does not use it",
}


@dataclass(frozen=True, kw_only=True)
class Resized:
    """How a tensor was resized to another grid or patch size."""

    what: Literal["positions", "biases", "vectors", "patch"]
    """A table of places, of biases for offsets, of vectors for the offsets along one axis, or the patch projection."""
    old: Size
    new: Size
    by: Method | Projection


@dataclass(frozen=True, kw_only=True)
class Change:
    """The change of one tensor."""

    name: str
    status: Status
    before: tuple[int, ...] | None
    """Shape in the old model; None if it is new."""
    after: tuple[int, ...] | None
    note: str = ""
    resized: Resized | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Changes(Shown):
    """All changes: every tensor of the old and the new model is listed exactly once."""

    source: Config
    target: Config
    tensors: tuple[Change, ...]
    notes: tuple[str, ...] = ()
    """How the new model differs from the trained one."""

    def _summary(self) -> str:
        counts = ", ".join(f"{len(self.named(status))} {status}" for status in STATUSES if self.named(status))
        old, new = self.source, self.target
        frames = f"frames {old.frames} → {new.frames}, " if old.frames != new.frames else ""
        return f"{frames}image {old.image} → {new.image}, grid {old.grid} → {new.grid}: {counts}"

    def _panel(self) -> Iterator[str]:
        changed = [change for change in self.tensors if change.status != "kept"]
        yield html_table(
            ("tensor", "", "before", "after", ""),
            (
                (change.name, change.status, shape_text(change.before), shape_text(change.after), escape(change.note))
                for change in changed
            ),
            "lllll",
        )
        yield "".join(f"<div>! {escape(note)}</div>" for note in self.notes)

    def named(self, status: Status) -> tuple[str, ...]:
        return tuple(change.name for change in self.tensors if change.status == status)

    @property
    def kept(self) -> tuple[str, ...]:
        return self.named("kept")

    @property
    def resampled(self) -> tuple[str, ...]:
        return self.named("resampled")

    @property
    def missing(self) -> tuple[str, ...]:
        return self.named("missing")

    @property
    def unused(self) -> tuple[str, ...]:
        return self.named("unused")


def input_text(config: Config) -> str:
    """Return what a model takes: "image 32x32, grid 8x8", or "4 frames of 32x32, 2 steps of grid 8x8"."""
    if config.frames == 1:
        return f"image {config.image}, grid {config.grid}"
    steps = f"{config.steps} step{'s' * (config.steps > 1)}"
    return f"{config.frames} frames of {config.image}, {steps} of grid {config.grid}"


def shape_text(shape: tuple[int, ...] | None) -> str:
    return "–" if shape is None else "×".join(map(str, shape))
