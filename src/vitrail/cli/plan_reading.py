"""vitrail plan of a vision-language model: what its tower receives of an image, and the language model."""

from __future__ import annotations

from dataclasses import replace

from vitrail.charts.numbers import bytes_text, count_text
from vitrail.cli.plan_view import show_report, verdict_table
from vitrail.cli.tables import show, table, write_json
from vitrail.config import TwoBranches
from vitrail.geometry import Size
from vitrail.plan.branches import plan_branches
from vitrail.plan.cards import Card
from vitrail.plan.fit import on_card
from vitrail.plan.hardware import verdicts
from vitrail.plan.report import report
from vitrail.plan.vision_language import Reading, VisionLanguage
from vitrail.plan.workload import Workload

__all__ = ["run_reading"]


def run_reading(
    name: str, known: VisionLanguage, image: Size | None, workload: Workload, gpu: Card | None, *, json: bool
) -> None:
    """Print how the model reads an image, and the plan of its tower on the crops of a batch of images."""
    reading = known.reader.read(image or known.tower.image)
    if known.branches is not None:
        _show_branches(name, known.branches, reading, workload, gpu, json=json, left_out=known.left_out)
        return
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


def _show_branches(
    name: str,
    branches: TwoBranches,
    reading: Reading,
    workload: Workload,
    gpu: Card | None,
    *,
    json: bool,
    left_out: str,
) -> None:
    """Print the plan of two towers that read one image."""
    workload = workload if gpu is None else on_card(workload, gpu)
    plan = plan_branches(branches, workload)
    found = () if gpu is None else verdicts(plan.memory, gpu)
    if json:
        fits = {each.name: {"fits": each.fits, "needed_bytes": each.needed_bytes} for each in found}
        said = {"model": name, "reading": reading.to_json(), "notes": [left_out], "verdicts": fits}
        write_json({**said, **plan.to_json()})
        return
    show(table(f"{name} reads {reading.image}", ("", ""), _facts(reading, ""), "ll"))
    kinds = {"low": f"tower of {branches.low.image}", "high": f"tower of {branches.high.image}"}
    kinds |= {"merger": "what joins them", "": "together"}
    step, flops = ("training step", plan.train_flops) if workload.train else ("forward", plan.flops)
    rows = [(words, f"{plan.params(part):,}", count_text(flops(part), "FLOP")) for part, words in kinds.items()]
    show(table("An image costs", ("", "parameters", step), rows, "lrr"))
    memory, precision = plan.memory, workload.precision
    exact = "exact" if memory.exact else f"estimated: {memory.note}"
    show(f"Memory at the peak, batch {workload.batch}, {precision}: {bytes_text(memory.peak_bytes)} ({exact})")
    if gpu is not None:
        show(verdict_table(gpu, found, {}))
    show(f"note: {left_out}")


def _facts(reading: Reading, merger: str) -> list[tuple[str, str]]:
    crops = f"{reading.crops} image{'s' * (reading.crops > 1)} of {reading.crop}, {reading.patches:,} patches"
    towers = [("the tower receives", crops)]
    if any(view.joins for view in reading.views):
        names = zip(("first", "second"), reading.views, strict=True)
        towers = [
            (f"the {name} tower receives", f"an image of {view.crop}, {view.grid.area:,} patches")
            for name, view in names
        ]
    first, *more = reading.steps
    return [
        ("steps", first),
        *(("", step) for step in more),
        *towers,
        *([("its merger", merger)] if merger else []),
        ("the language model receives", f"{reading.tokens:,} tokens"),
    ]
