"""vitrail compare: models side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.charts.numbers import bytes_text, count_text, number_text
from vitrail.checkpoint.sources.names import names_preset
from vitrail.cli.models import config_named
from vitrail.cli.options import CardOption, Json, SizeOption
from vitrail.cli.tables import plain, show, table, write_json, written
from vitrail.geometry import Size
from vitrail.plan.cards import GIB, Card
from vitrail.plan.comparison import Compared, compared
from vitrail.plan.folklore import claim
from vitrail.plan.published import DOUBTS, best
from vitrail.plan.workload import AttentionKernel, Optimizer, Precision, Workload
from vitrail.presets import preset_named

__all__ = ["compare"]

VARIANTS = ("Ti/16", "S/16", "B/16", "L/16", "H/14")


def compare(
    *models: str,
    image: SizeOption | None = None,
    batch: Annotated[int, Parameter(allow_leading_hyphen=True)] = 32,
    precision: Precision = "amp-bf16",
    optimizer: Optimizer = "adamw",
    attention: AttentionKernel = "flash",
    gpu: CardOption | None = None,
    chart: Path | None = None,
    json: Json = False,
) -> None:
    """Put models side by side: parameters, FLOPs, memory, and what was published of them.

    Parameters
    ----------
    models
        Presets, e.g. B/16 dinov2-S/14 (vitrail presets lists them); weights, runs, or JSON files of a config
        (default: the ViT family, Ti/16 to H/14).
    image
        Image size for all models, HEIGHTxWIDTH or one number for a square, e.g. 384x640 (default: each model's own).
    batch
        Images per device and forward pass, for memory.
    precision
        Number type of weights and arithmetic.
    optimizer
        Optimizer, for the memory of training.
    attention
        Attention kernel: eager keeps attention maps in memory, the others do not.
    gpu
        Card by name, e.g. rtx-4090, or by memory, e.g. 24GiB: adds the largest training batch (default: none).
    chart
        File to draw parameters and memory against FLOPs into: .png, .svg or .pdf (default: none).
    """
    workload = Workload(batch=batch, train=True, precision=precision, optimizer=optimizer, attention=attention)
    found = [_compared(name, image, workload, gpu) for name in dict.fromkeys(models or VARIANTS)]
    if chart is not None:
        _draw(found, chart, f"training, batch {batch}, {precision}")
    if json:
        write_json({"models": found, "folklore": plain(claim("vit-b-jft"))})
    else:
        _show(found, workload)
        if chart is not None:
            written(chart)


def _compared(word: str, image: Size | None, workload: Workload, gpu: Card | None) -> Compared:
    config = config_named(word)
    name = preset_named(word) if names_preset(word) else word
    return compared(name, config if image is None else config.but(image=image), workload, gpu)


def _draw(found: list[Compared], path: Path, kind: str) -> None:
    """Parameters and memory against FLOPs."""
    from vitrail.charts.plots import plots
    from vitrail.charts.points import named_points

    flops = "forward GFLOP an image"
    sheet, (params, memory) = plots(
        "Models side by side",
        f"memory of {kind}",
        [("Parameters", flops, "millions"), ("Memory", flops, "GiB at the peak")],
    )
    named_points(params, [(each.flops_forward / 1e9, each.params / 1e6, each.model) for each in found])
    named_points(memory, [(each.flops_forward / 1e9, each.train_peak_bytes / GIB, each.model) for each in found])
    sheet.save(path)


def _show(found: list[Compared], workload: Workload) -> None:
    on_a_card = any(entry.max_batch is not None for entry in found)
    images = {str(entry.image) for entry in found}
    headings = ("model", *(("image",) if len(images) > 1 else ()), "tokens", "params", "GFLOP", "infer", "train")
    headings += (("batch",) if on_a_card else ()) + ("top-1 %",)
    rows = []
    for entry in found:
        top = best(entry.model)
        said = top.label if top else "–"
        rows.append(
            (
                f"[bold]{entry.model}[/]",
                *((str(entry.image),) if len(images) > 1 else ()),
                f"{entry.tokens:,}",
                count_text(entry.params),
                number_text(entry.flops_forward / 1e9),
                bytes_text(entry.infer_peak_bytes),
                bytes_text(entry.train_peak_bytes),
                *((f"{entry.max_batch:,}",) if on_a_card else ()),
                said,
            )
        )
    tops = [top for entry in found if (top := best(entry.model))]
    sources = sorted({top.source for top in tops})
    doubts = "".join(f"; {words}" for check, words in DOUBTS.items() if any(top.check == check for top in tops))
    show(
        table(
            f"Models side by side{f' at {images.pop()}' if len(images) == 1 else ''}",
            headings,
            rows,
            "l" * (len(headings) - 6 - on_a_card) + "rrrrr" + "r" * on_a_card + "w",
            caption=f"GFLOP: forward, an image; memory: live tensors, batch {workload.batch}, {workload.precision}",
        ),
        f" [dim]top-1 on ImageNet-1k, as published ({'; '.join(sources) or 'nothing is recorded'}){doubts}[/]",
        f" [dim]{claim('vit-b-jft').words}[/]",
    )
