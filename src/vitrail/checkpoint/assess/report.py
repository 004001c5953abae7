"""What an adaptation is worth: the numbers to judge it by, computed from the weights before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.charts.notebook import Shown, facts, html_table
from vitrail.checkpoint.assess.drift import Drift, Watch, measure_drift
from vitrail.checkpoint.assess.projection_loss import ProjectionLoss, predicted_loss
from vitrail.checkpoint.assess.similarity import SimilarityMap, agreement, similarity_maps
from vitrail.checkpoint.assess.simulate import Band, simulate
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.surgery.changes import STATUSES, Changes, Resized
from vitrail.checkpoint.surgery.projection import change_channels, projection_named
from vitrail.checkpoint.surgery.resample import Method, method_of, resample_relative, resample_table
from vitrail.codec import to_plain
from vitrail.errors import require
from vitrail.geometry import Size, offsets_of

__all__ = ["Report", "TableChange", "assess", "to_json"]

WORTH_SAYING = 0.01
"""A loss above this is a note."""


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """A position table that was resampled to another grid."""

    name: str
    old: Size
    new: Size
    method: Method
    round_trip: float
    """Relative error of the table after resampling to the new grid and back."""
    agreement: float | None
    """Correlation of similarity maps before and after, at nine positions; None for relative biases."""
    bands: tuple[Band, ...] = ()
    """The method's error in each frequency band of the table; empty for relative biases."""
    maps: tuple[SimilarityMap, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class Report(Shown):
    """What surgery changed, and the measured or predicted effect."""

    changes: Changes
    tables: tuple[TableChange, ...] = ()
    projection: ProjectionLoss | None = None
    filters: tuple[Tensor, Tensor] | None = None
    """The projection's filters before and after, (D, C, P, Q) each: for pictures."""
    notes: tuple[str, ...] = ()
    """Caveats to read before relying on the result."""
    drift: Drift | None = None
    """Drift measured on images, if images were given."""

    def _summary(self) -> str:
        return self.changes._summary()

    def _panel(self) -> Iterator[str]:
        yield html_table(
            ("table", "grid", "method", "agreement", "round trip"),
            (
                (
                    escape(each.name),
                    f"{each.old} → {each.new}",
                    each.method,
                    "" if each.agreement is None else f"{each.agreement:.4f}",
                    f"{each.round_trip:.4f}",
                )
                for each in self.tables
            ),
            "lllrr",
        )
        if self.drift is not None:
            yield facts([("cosine, old with new", f"{self.drift.mean:.4f}")])
        yield "".join(f"<div>! {escape(note)}</div>" for note in self.notes)


def assess(
    before: Checkpoint,
    after: Checkpoint,
    changes: Changes,
    *,
    images: Sequence[str | Path] | None = None,
    watch: Watch = lambda done, total: None,
) -> Report:
    """Assess an adaptation, `after, changes = adapt(before, …)`; with `images`, also measure drift on these files.

    `watch` is called with the number of images measured, and of all.

    >>> from vitrail import adapt, assess, load
    >>> before = load("default")
    >>> after, changes = adapt(before, {"image": "48x64"})
    >>> assess(before, after, changes).tables[0].agreement > 0.99
    True
    """
    require(
        (changes.source, changes.target) == (before.config, after.config),
        "the changes are not those between these two checkpoints; give what adapt returned with the second of them",
    )
    still = before.config.frames == after.config.frames == 1  # tables and filters of clips are not judged
    resized = [(each.name, each.resized) for each in changes.tensors if each.resized is not None and still]
    pairs = {name: (before.tensors[name].double(), after.tensors[name].double()) for name in changes.resampled}
    tables = tuple(_judge_table(name, each, *pairs[name]) for name, each in resized if each.what != "patch")
    losses = (
        predicted_loss(change_channels(pairs[name][0], after.config.channels), each.new, how=projection_named(each.by))
        for name, each in resized
        if each.what == "patch"
    )
    loss = next(losses, None)
    return Report(
        changes=changes,
        tables=tables,
        projection=loss,
        filters=next((pair for pair in pairs.values() if pair[0].ndim == 4 and still), None),
        notes=(*changes.notes, *_losses_in_words(tables, loss)),
        drift=None if images is None else measure_drift(before, after, list(map(Path, images)), watch=watch),
    )


def _judge_table(name: str, moved: Resized, before: Tensor, after: Tensor) -> TableChange:
    old, new, method = moved.old, moved.new, method_of(moved.by)
    if moved.what == "biases":  # entries of the prefix come last
        before, after = before[: offsets_of(old).area], after[: offsets_of(new).area]
        back = resample_relative(after, old=new, new=old, method=method)
        figures: dict[str, Any] = {"agreement": None}
    elif moved.what == "vectors":
        sides = (Size(each.shape[0], 1) for each in (after, before))
        back = resample_table(after, old=next(sides), new=next(sides), method=method)
        figures = {"agreement": None}
    else:  # rows of the prefix come first
        before, after = before[-old.area :], after[-new.area :]
        back = resample_table(after, old=new, new=old, method=method)
        maps = similarity_maps(before, after, old=old, new=new)
        bands = simulate(old, new, method, table=before).bands if old.area > 1 else ()
        figures = {"agreement": agreement(maps), "bands": bands, "maps": maps}
    lost = 0.0 if not before.any() else float((back - before).norm() / before.norm())
    return TableChange(name=name, old=old, new=new, method=method, round_trip=lost, **figures)


def _losses_in_words(tables: Sequence[TableChange], loss: ProjectionLoss | None) -> Iterator[str]:
    for table in tables[:1]:
        if table.round_trip > WORTH_SAYING:
            yield f"{table.name} comes back from {table.new} with an error of {table.round_trip:.0%}"
    if loss is not None and loss.natural > WORTH_SAYING:
        better = f" ({loss.least:.0%} with projection natural)" if loss.least < 0.9 * loss.natural else ""
        yield (
            f"tokens of the new patch {loss.new} are off by {loss.natural:.0%} on photographs{better} and by "
            f"{loss.white:.0%} on noise, as predicted from the filters"
        )


def to_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON values, without pictures; sizes are written as "384x640"."""
    changes = report.changes
    return {
        "source": to_plain(changes.source),
        "target": to_plain(changes.target),
        "counts": {status: len(changes.named(status)) for status in STATUSES},
        "changes": [_plain(change) for change in changes.tensors if change.status != "kept"],
        "kept": list(changes.kept),
        "tables": _plain(report.tables),
        "projection": _plain(report.projection),
        "notes": list(report.notes),
        "drift": _plain(report.drift),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Size) or not is_dataclass(value):
        return [_plain(item) for item in value] if isinstance(value, tuple) else to_plain(value)
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.name != "maps"}
