"""What healing did: agreement with the original before and after, the steps, the curve, and what changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.charts.notebook import Shown, curve, html_table
from vitrail.healing.distil import Point
from vitrail.healing.score import Score
from vitrail.healing.work import Step

__all__ = ["Colours", "Counts", "Healing", "PartChange", "part_changes", "to_json"]


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Different images, by what they were used for."""

    training: int
    choosing: int
    judging: int


@dataclass(frozen=True, kw_only=True)
class PartChange:
    """How far a part of the model moved."""

    part: str
    change: float
    """Norm of the difference, relative to the norm before."""


@dataclass(frozen=True, kw_only=True)
class Colours:
    """One image, and the colours of its tokens by three models: uint8 pictures (height, width, 3)."""

    image: np.ndarray
    original: np.ndarray
    before: np.ndarray
    after: np.ndarray


@dataclass(frozen=True, kw_only=True, repr=False)
class Healing(Shown):
    """The result of `heal`, measured on images that it neither learned from nor chose by."""

    target: str
    """The view of the original that the model is compared with."""
    before: Score
    """Of the adapted model, before healing."""
    after: Score
    """Of the returned model."""
    healed: bool
    """Whether the returned weights are healed ones; otherwise they are those that were given."""
    reason: str
    """Why they are, in a sentence."""
    steps: tuple[Step, ...] = ()
    curve: tuple[Point, ...] = ()
    """Errors on the images to choose by, during distillation."""
    images: Counts
    parts: tuple[PartChange, ...] = ()
    seconds: float = 0.0
    stopped: int | None = None
    """Number of the signal that stopped it, if one did; the same call resumes it."""
    notes: tuple[str, ...] = ()
    colours: tuple[Colours, ...] = field(default=(), compare=False)

    def _summary(self) -> str:
        pairs = [("patches", self.before.patches, self.after.patches)]
        if self.before.vectors is not None and self.after.vectors is not None:
            pairs.append(("vectors", self.before.vectors, self.after.vectors))
        said = ", ".join(f"{name} {old:.4f} → {new:.4f}" for name, old, new in pairs)
        return f"{'healed' if self.healed else 'unchanged'}; cosine with the original: {said}"

    def _panel(self) -> Iterator[str]:
        yield f"<div>{escape(self.reason)}</div>"
        yield html_table(("", "before", "after"), score_rows(self.before, self.after), "lrr")
        if len(self.curve) > 1:
            yield curve("Error on images to choose by", {"error": [(each.step, each.error) for each in self.curve]})
        yield "".join(f"<div>! {escape(note)}</div>" for note in self.notes)


def score_rows(before: Score, after: Score) -> Iterator[tuple[str, str, str]]:
    """Yield a row per figure: its name, before and after."""
    rows = (
        ("cosine of patch tokens", before.patches, after.patches, "{:.5f}"),
        ("cosine of vectors", before.vectors, after.vectors, "{:.5f}"),
        ("lowest cosine of a vector", before.lowest, after.lowest, "{:.4f}"),
        ("nearest neighbours shared", before.neighbours, after.neighbours, "{:.1%}"),
    )
    for name, old, new, form in rows:
        if old is not None and new is not None:
            yield name, form.format(old), form.format(new)


def part_changes(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> tuple[PartChange, ...]:
    """Return how far each part moved, those that moved only, in the model's order."""
    sums: dict[str, list[float]] = {}
    for name, old in before.items():
        part = ".".join(name.split(".")[: 2 if name.startswith("blocks.") else 1])
        held, new = sums.setdefault(part, [0.0, 0.0]), after[name]
        held[0] += 0.0 if new is old else float((new.double() - old.double()).square().sum())
        held[1] += float(old.double().square().sum())
    return tuple(
        PartChange(part=part, change=(moved / max(whole, 1e-300)) ** 0.5)
        for part, (moved, whole) in sums.items()
        if moved
    )


def to_json(healing: Healing) -> dict[str, Any]:
    """Return the report as JSON values, without pictures."""
    held = {name: value for name, value in vars(healing).items() if name != "colours"}
    plain = {name: _plain(value) for name, value in held.items()}
    return plain | {"error_before": healing.before.error, "error_after": healing.after.error}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value
