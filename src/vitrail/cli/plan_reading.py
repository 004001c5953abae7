"""vitrail plan of a vision-language model: what its tower receives of an image, and the language model."""

from __future__ import annotations

from dataclasses import replace

from vitrail.charts.numbers import count_text
from vitrail.cli.plan_view import show_report
from vitrail.cli.tables import show, table, write_json
from vitrail.geometry import Size
from vitrail.plan.cards import Card
from vitrail.plan.report import report
from vitrail.plan.vision_language import Reading, VisionLanguage
from vitrail.plan.workload import Workload

__all__ = ["run_reading"]


def run_reading(
    name: str, known: VisionLanguage, image: Size | None, workload: Workload, gpu: Card | None, *, json: bool
) -> None:
    """Print how the model reads an image, and the plan of its tower on the crops of a batch of images."""
    reading = known.reader.read(image or known.tower.image)
    found = report(known.on(reading), replace(workload, batch=workload.batch * reading.crops), gpu)
    left_out = (known.left_out,) if known.left_out else ()
    found = replace(found, notes=(*found.notes, *left_out, "FLOPs are of one crop"))
    merger = [row for row in found.books.rows if row.path.startswith("merger")]
    params, flops = sum(row.params for row in merger), sum(row.flops for row in merger)
    if json:
        cost = {"params": params, "flops_forward": flops} if merger else None
        write_json({"model": name, "reading": reading.to_json(), "merger": cost, **found.to_json()})
        return
    cost = f"{params:,} parameters, {count_text(flops, 'FLOP')}, counted in the plan" if merger else ""
    show(table(f"{name} reads {reading.image}", ("", ""), _facts(reading, cost), "ll"))
    show_report(found, f"{name}'s tower")


def _facts(reading: Reading, merger: str) -> list[tuple[str, str]]:
    crops = f"{reading.crops} image{'s' * (reading.crops > 1)} of {reading.crop}, {reading.patches:,} patches"
    first, *more = reading.steps
    return [
        ("steps", first),
        *(("", step) for step in more),
        ("the tower receives", crops),
        *([("its merger", merger)] if merger else []),
        ("the language model receives", f"{reading.tokens:,} tokens"),
    ]
