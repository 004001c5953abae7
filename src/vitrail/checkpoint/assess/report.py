"""What an adaptation did, as data: every tensor accounted for, with the numbers to judge it by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoint.assess.drift import Drift
from vitrail.checkpoint.assess.simulate import Band
from vitrail.checkpoint.surgery.projection import ProjectionLoss
from vitrail.checkpoint.surgery.resample import Method, resample_table
from vitrail.codec import to_plain
from vitrail.config import Config
from vitrail.geometry import Size

__all__ = [
    "PLACES",
    "STATUSES",
    "Change",
    "Report",
    "SimilarityMap",
    "TableChange",
    "agreement",
    "correlation",
    "similarity_maps",
    "to_json",
]

Status = Literal["kept", "resampled", "missing", "unused"]
STATUSES: dict[Status, str] = {
    "kept": "the same tensor, untouched",
    "resampled": "made from the old tensor",
    "missing": "made new: the old model has none that fits",
    "unused": "the new model has no place for it: left out",
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """What became of one tensor."""

    name: str
    status: Status
    before: tuple[int, ...] | None
    """Its shape in the old model; None if it has none there."""
    after: tuple[int, ...] | None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class SimilarityMap:
    """Cosine of one place's row with every place's, before and after, as pictures of the two grids."""

    place: tuple[float, float]
    """Row and column of the place, 0 … 1 down and across the image."""
    before: Tensor
    """(h, w) of the old grid."""
    after: Tensor
    """(h, w) of the new grid."""


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """A table that was carried to another grid."""

    name: str
    old: Size
    new: Size
    method: Method
    round_trip: float
    """Relative error of the table after there and back: what the new grid does not hold."""
    agreement: float | None
    """Correlation of similarity maps before and after, at nine places; None for relative biases."""
    bands: tuple[Band, ...] = ()
    """What the method did to each band of the table's frequencies; none for relative biases."""
    maps: tuple[SimilarityMap, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """Kept, resampled, missing, unused: every tensor of the old and the new model is in exactly one line."""

    source: Config
    target: Config
    changes: tuple[Change, ...]
    tables: tuple[TableChange, ...] = ()
    projection: ProjectionLoss | None = None
    filters: tuple[Tensor, Tensor] | None = None
    """The projection's filters before and after, (D, C, P, Q) each: for pictures."""
    notes: tuple[str, ...] = ()
    """What a reader must know before relying on the result."""
    drift: Drift | None = None
    """Measured on images, where there were any."""

    def named(self, status: Status) -> tuple[str, ...]:
        return tuple(change.name for change in self.changes if change.status == status)

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


def to_json(report: Report) -> dict[str, Any]:
    """The report as JSON values; pictures are left out, sizes are "384x640"."""
    return {
        "source": to_plain(report.source),
        "target": to_plain(report.target),
        "counts": {status: len(report.named(status)) for status in STATUSES},
        "changes": [_plain(change) for change in report.changes if change.status != "kept"],
        "kept": list(report.kept),
        "tables": _plain(report.tables),
        "projection": _plain(report.projection),
        "notes": list(report.notes),
        "drift": _plain(report.drift),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Size) or not is_dataclass(value):
        return [_plain(item) for item in value] if isinstance(value, tuple) else to_plain(value)
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.name != "maps"}


# ── similarity before and after ─────────────────────────────────────────────────────────────────────────────────

PLACES = tuple((row, column) for row in (1 / 6, 1 / 2, 5 / 6) for column in (1 / 6, 1 / 2, 5 / 6))
"""Nine places, spread evenly over the image."""


def similarity_maps(
    before: Tensor, after: Tensor, *, old: Size, new: Size, places: Sequence[tuple[float, float]] = PLACES
) -> tuple[SimilarityMap, ...]:
    """Maps of a table before, (old.area, D), and after, (new.area, D)."""
    pairs = zip(places, _maps(before, old, places), _maps(after, new, places), strict=True)
    return tuple(SimilarityMap(place=place, before=first, after=second) for place, first, second in pairs)


def agreement(maps: Iterable[SimilarityMap]) -> float:
    """Mean correlation of each map before, brought to the new grid, with the one after."""
    values = []
    for each in maps:
        old, new = Size(*each.before.shape), Size(*each.after.shape)
        expected = resample_table(each.before.reshape(-1, 1), old=old, new=new, method="exact")
        values.append(correlation(expected, each.after))
    return sum(values) / len(values)


def correlation(first: Tensor, second: Tensor) -> float:
    """Pearson's, of all elements; 1 where both are constant."""
    pair = torch.stack([first.flatten(), second.flatten()]).double()
    pair = pair - pair.mean(dim=1, keepdim=True)
    length = pair.norm(dim=1).prod()
    return 1.0 if length == 0 else float(pair.prod(dim=0).sum() / length)


def _maps(table: Tensor, grid: Size, places: Sequence[tuple[float, float]]) -> Tensor:
    """(places, h, w): rows at places are read between cells, so that both grids are asked about the same points."""
    table = table.float()
    points = torch.tensor([[[(2 * column - 1, 2 * row - 1) for row, column in places]]])  # (1, 1, places, 2)
    image = table.T.reshape(1, -1, *grid)
    rows = F.grid_sample(image, points, mode="bilinear", padding_mode="border", align_corners=False)[0, :, 0]  # (D, p)
    return (F.normalize(rows, dim=0).T @ F.normalize(table, dim=1).T).view(len(places), *grid)
