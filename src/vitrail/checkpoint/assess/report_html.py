"""A report as one page of HTML: self-contained, light or dark as the reader's screen is."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import numpy as np
import torch
from torch import Tensor

from vitrail.charts.bars import bars
from vitrail.charts.palette import HEAT
from vitrail.charts.raster import data_uri, filter_picture, heat
from vitrail.checkpoint.assess.projection_loss import ProjectionLoss
from vitrail.checkpoint.assess.report import Report, TableChange
from vitrail.checkpoint.surgery.changes import STATUSES, Change, input_text, shape_text
from vitrail.checkpoint.surgery.resample import METHODS
from vitrail.geometry import Size

__all__ = ["paired_filters", "to_html"]

MOST_SHOWN = 12
"""Images of which the page shows the cosine."""
STYLE = """
:root { color-scheme: light dark; --ground: #f7f6f3; --card: #ffffff; --ink: #1d2329; --soft: #5d6770; --line: #e2dfd8;
  --accent: #2a7f9e; --warn: #9a5b00; --warn-ground: #fdf3e1; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171b; --card: #1c2127; --ink: #e8eaec; --soft: #9aa4ad;
  --line: #2d343c; --accent: #63b8d6; --warn: #f0b45a; --warn-ground: #2c2415; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 0 0 4px; }
p { margin: 0 0 12px; } .apart { margin-top: 20px; } .soft { color: var(--soft); } .small { font-size: 13px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 20px 24px;
  margin-top: 20px; }
.figures { display: flex; flex-wrap: wrap; gap: 12px; margin-top: 24px; }
.figure { flex: 1 0 auto; background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 12px 16px; }
.figure b { display: block; font-size: 20px; font-weight: 600; white-space: nowrap; }
.warn { background: var(--warn-ground); border-color: transparent; } .warn h2 { color: var(--warn); }
.warn ul { margin: 8px 0 0; padding-left: 20px; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 28px; margin-top: 14px; }
.pair h3, .filters h3 { font-size: 13px; font-weight: 600; color: var(--soft); margin: 0 0 8px; }
.maps { display: grid; grid-template-columns: repeat(3, 1fr); gap: 8px; align-items: center; }
.maps img, .filters img { width: 100%; display: block; image-rendering: pixelated; border-radius: 4px; }
.scale { display: flex; align-items: center; gap: 10px; margin-top: 12px; color: var(--soft); font-size: 13px; }
.scale i { flex: 1; height: 8px; border-radius: 4px;
  background: linear-gradient(90deg, HEAT); }
.filters { display: grid; grid-template-columns: repeat(12, 1fr); gap: 8px; margin-top: 8px; }
.filters h3 { grid-column: 1 / -1; margin: 10px 0 0; }
svg { width: 100%; height: auto; margin-top: 16px; overflow: visible; }
table { width: 100%; border-collapse: collapse; font-size: 14px; margin-top: 10px; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 13px; }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } tr:last-child td { border-bottom: 0; }
code { font: 13px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.tag { font-size: 12px; padding: 1px 8px; border-radius: 999px; border: 1px solid currentColor; color: var(--accent); }
.tag.missing { color: var(--warn); } .tag.unused { color: var(--soft); }
.meter { height: 6px; border-radius: 3px; background: var(--line); min-width: 120px; margin-top: 8px; }
.meter i { display: block; height: 100%; border-radius: 3px; background: var(--accent); }
details summary { cursor: pointer; color: var(--soft); margin-top: 12px; }
@media (max-width: 640px) { .pair { grid-template-columns: 1fr; } .filters { grid-template-columns: repeat(6, 1fr); } }
""".replace("HEAT", ", ".join(HEAT))


def to_html(report: Report, *, title: str = "Adapted checkpoint", sections: Iterable[str] = (), style: str = "") -> str:
    """Return the whole HTML page; `sections` are shown after the caveats, with `style` of their own."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_headline(report))}</p>',
        _figures(report),
        _caveats(report.notes),
        *sections,
        *(_table(table) for table in report.tables if table.maps),
        _biases([table for table in report.tables if not table.maps]),
        _projection(report),
        _drift(report),
        _changes(report.changes.tensors),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _headline(report: Report) -> str:
    source, target = report.changes.source, report.changes.target
    old, new = input_text(source), input_text(target)
    begun = old[0].upper() + old[1:]
    if source == target:
        return f"{begun}: nothing to do, every tensor is the same."
    return f"{begun}, as before." if old == new else f"From {old}, to {new}."


def _figures(report: Report) -> str:
    old, new = report.changes.source, report.changes.target
    cells = [("grid", _arrow(old.grid, new.grid)), ("tokens", _arrow(old.tokens, new.tokens))]
    cells += [(status, f"{len(report.changes.named(status)):,}") for status in STATUSES]
    if report.drift is not None:
        cells.append(("cosine, old with new", f"{report.drift.mean:.4f}"))
    boxes = (
        f'<div class="figure"><b>{escape(value)}</b><span class="soft small">{name}</span></div>'
        for name, value in cells
    )
    return f'<div class="figures">{"".join(boxes)}</div>'


def _arrow(old: object, new: object) -> str:
    return str(old) if old == new else f"{old} → {new}"


def _caveats(notes: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<section class="warn"><h2>Before you rely on it</h2><ul>{items}</ul></section>' if items else ""


def _table(table: TableChange) -> str:
    low = min(float(each.before.min()) for each in table.maps)
    sides = []
    for label, grid in (("before", table.old), ("after", table.new)):
        maps = "".join(
            f'<img src="{data_uri(heat(getattr(each, label).numpy(), low, 1.0))}" '
            f'style="aspect-ratio: {grid.width}/{grid.height}" '
            f'alt="{label}: {each.place[0]:.0%} down, {each.place[1]:.0%} across">'
            for each in table.maps
        )
        sides.append(f'<div><h3>{label}, {grid}</h3><div class="maps">{maps}</div></div>')
    chart = bars(
        "What the method changes, by frequency (share of the finest that the old grid carries)",
        [f"{band.low:.0%} – {band.high:.0%}" for band in table.bands],
        [
            ("energy there", [band.energy for band in table.bands]),
            ("error on the new grid", [band.error for band in table.bands]),
            ("error after there and back", [band.round_trip for band in table.bands]),
        ],
    )
    agree = "" if table.agreement is None else f"Maps agree at a correlation of <b>{table.agreement:.4f}</b>. "
    return (
        f"<section><h2>Positions</h2><p>How alike the position at nine places is to every other, before and after. "
        f"{agree}There and back costs <b>{table.round_trip:.1%}</b> of the table. "
        f'<span class="soft">{table.method}: {escape(METHODS[table.method])}.</span></p>'
        f'<div class="pair">{"".join(sides)}</div>'
        f'<div class="scale">{low:.2f}<i></i>1.00 cosine</div>{chart if table.bands else ""}</section>'
    )


def _biases(tables: list[TableChange]) -> str:
    if not tables:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(table.name)}</code></td><td>{table.old} → {table.new}</td><td>{table.method}</td>"
        f'<td class="number">{table.round_trip:.1%}</td></tr>'
        for table in tables
    )
    return (
        "<section><h2>Relative biases</h2><table><tr><th>table</th><th>grid</th><th>method</th>"
        f"<th>lost there and back</th></tr>{rows}</table></section>"
    )


def paired_filters(before: Tensor, after: Tensor, count: int = 12) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the strongest directions of the old projection (D, C, P, Q) and the same directions of the new one."""
    directions = torch.linalg.svd(before.flatten(1).double(), full_matrices=False).U.T[:count]
    old, new = ((directions @ each.flatten(1).double()).unflatten(1, each.shape[1:]) for each in (before, after))
    return [(filter_picture(one.numpy()), filter_picture(other.numpy())) for one, other in zip(old, new, strict=True)]


def _projection(report: Report) -> str:
    if report.filters is None:
        return ""
    before, after = report.filters
    pairs = paired_filters(before, after)
    rows = [
        f"<h3>{label}</h3>" + "".join(f'<img src="{data_uri(pair[side])}" alt="filter">' for pair in pairs)
        for side, label in enumerate((_patch_label("before", before), _patch_label("after", after)))
    ]
    return (
        "<section><h2>Patch projection</h2><p>Its strongest directions, as pictures of the patch that each looks for, "
        f'and the same directions afterwards.</p><div class="filters">{"".join(rows)}</div>'
        f"{_loss(report.projection)}</section>"
    )


def _patch_label(when: str, weight: Tensor) -> str:
    return f"{when}, {Size(*weight.shape[2:])}, {weight.shape[1]} channel{'s' * (weight.shape[1] > 1)}"


def _loss(loss: ProjectionLoss | None) -> str:
    if loss is None:
        return ""
    rows = "".join(
        f'<tr><td>{label}</td><td class="number">{value:.2%}</td>'
        f'<td><div class="meter"><i style="width: {min(value, 1):.1%}"></i></div></td></tr>'
        for label, value in (
            ("on photographs", loss.natural),
            ("on white noise, the worst case", loss.white),
            ("on photographs, after a resize there and back", loss.round_trip),
            ("the filters themselves, after there and back", loss.round_trip_white),
        )
    )
    return (
        f'<p class="apart">Predicted from the filters themselves: how far tokens of resized patches are from the old '
        f"ones, {loss.old} → {loss.new} by {loss.how}.</p><table>{rows}</table>"
    )


def _drift(report: Report) -> str:
    if report.drift is None:
        return ""
    count = len(report.drift.images)
    title = f"Measured on {count} image{'s' * (count > 1)}"
    order = f"The {MOST_SHOWN} lowest:" if count > MOST_SHOWN else "The lowest first:"
    rows = "".join(
        f'<tr><td><code>{escape(each.image)}</code></td><td class="number">{each.cosine:.4f}</td>'
        f'<td><div class="meter"><i style="width: {max(each.cosine, 0):.1%}"></i></div></td></tr>'
        for each in sorted(report.drift.images, key=lambda each: each.cosine)[:MOST_SHOWN]
    )
    failed = "".join(f"<li>{escape(line)}</li>" for line in report.drift.failed)
    return (
        f"<section><h2>{title}</h2><p>Cosine of the old model's vector with the new one's, each at its own size: "
        f"mean <b>{report.drift.mean:.4f}</b>, lowest <b>{report.drift.lowest:.4f}</b>. {order}</p>"
        f"<table>{rows}</table>" + (f"<p>Left out:</p><ul>{failed}</ul></section>" if failed else "</section>")
    )


def _changes(changes: tuple[Change, ...]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(change.name)}</code></td>"
        f'<td><span class="tag {change.status}">{change.status}</span></td>'
        f"<td><code>{shape_text(change.before)}</code></td><td><code>{shape_text(change.after)}</code></td>"
        f'<td class="soft">{escape(change.note)}</td></tr>'
        for change in changes
        if change.status != "kept"
    )
    kept = ", ".join(f"<code>{escape(change.name)}</code>" for change in changes if change.status == "kept")
    head = "<tr><th>tensor</th><th></th><th>before</th><th>after</th><th></th></tr>"
    return (
        f"<section><h2>Every tensor</h2>{f'<table>{head}{rows}</table>' if rows else ''}"
        f"<details><summary>kept as they were</summary><p>{kept}</p></details></section>"
    )
