"""vitrail bench: where the time of an image goes, on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from vitrail.charts.numbers import count_text, seconds_text
from vitrail.checkpoint.sources.names import short_name
from vitrail.cli.options import Json, Weights, several
from vitrail.cli.tables import show, table, write_json, written
from vitrail.errors import require

if TYPE_CHECKING:
    from vitrail.vectors.engines.profile import Profile

__all__ = ["bench"]


def bench(
    weights: Weights,
    /,
    *,
    images: Path | None = None,
    engine: Literal["torch", "int8"] = "torch",
    batch: Annotated[tuple[int, ...], several(int, "1,8,64")] = (1, 8, 64),
    threads: int | None = None,
    seconds: float = 2.0,
    chart: Path | None = None,
    json: Json = False,
) -> None:
    """Time what a model does with an image: decode, patches, attention, MLP, and the share of the peak.

    Parameters
    ----------
    images
        Image, or folder of images, to decode (default: a drawn JPEG of 1.5 megapixels).
    engine
        torch computes in float32; int8 is calibrated on the same images.
    batch
        Batch sizes to time, e.g. 1,8,64.
    threads
        Torch threads (default: torch's own number).
    seconds
        Time to spend on each batch size, in seconds.
    chart
        File to draw the table into: .png, .svg or .pdf (default: none).
    """
    import torch

    from vitrail.checkpoint.read import load
    from vitrail.cli.progress import working
    from vitrail.config import ViTConfig
    from vitrail.vectors.engines.engine import LeanEngine, build_engine
    from vitrail.vectors.engines.profile import profile

    if chart is not None:
        from vitrail.charts.sheet import check_drawing

        check_drawing(chart)
    checkpoint = load(weights)
    config = checkpoint.config
    config.require_still("bench")
    require(
        isinstance(config, ViTConfig) and config.channels in (1, 3),
        f"{type(config).__name__} of {config.channels} channels cannot be taken apart here; give a ViT of 1 or 3",
    )
    files = _files(images)
    calibration = None
    with working("timing") as tell:

        def watch(part: str) -> None:
            tell(f"timing {part}")

        if engine == "int8":
            watch("int8's ranges")
            few = [checkpoint.preprocessing.pixels(file).pixels for file in files[:16]]
            calibration = torch.stack([torch.from_numpy(each) for each in few])
        built = build_engine(checkpoint, engine, threads=threads, calibration=calibration)
        assert isinstance(built, LeanEngine)
        found = profile(checkpoint, built, files, batches=batch, seconds=seconds, watch=watch)
    if json:
        write_json(found)
    else:
        _show(found, weights)
    if chart is not None:
        _draw(found, chart, f"{short_name(weights)} at {config.image} · {found.engine}, {found.threads} threads")
        if not json:
            written(chart)


def _draw(found: Profile, path: Path, subtitle: str) -> None:
    from vitrail.charts.plots import plots
    from vitrail.charts.stack import stacked_bars

    times = {(row.section, row.batch): 1e3 * row.seconds_per_image for row in found.rows}
    sections, batches = dict.fromkeys(row.section for row in found.rows), sorted({row.batch for row in found.rows})
    parts = {section: [times[section, batch] for batch in batches] for section in sections}
    labels = [("", "", "milliseconds per image")]
    sheet, (axes,) = plots("Where the time of an image goes", subtitle, labels, height=4.0, width=6.2, names=[*parts])
    stacked_bars(axes, [f"batch {batch}" for batch in batches], parts, "ms")
    sheet.save(path)


def _files(images: Path | None) -> list[Path | bytes]:
    import io

    from PIL import Image

    from vitrail.geometry import Size
    from vitrail.images.folder import image_files
    from vitrail.images.synthesize import synthesize_image

    if images is not None:
        return list(image_files(images, limit=64)) if images.is_dir() else [images]
    buffer = io.BytesIO()
    drawn = Image.fromarray(synthesize_image(0, Size(177, 236))).resize((1416, 1062), Image.Resampling.BICUBIC)
    drawn.save(buffer, "JPEG", quality=90)
    return [buffer.getvalue()]


def _show(found: Profile, weights: str) -> None:
    batches = sorted({row.batch for row in found.rows})
    for batch in batches:
        rows = [row for row in found.rows if row.batch == batch]
        whole = sum(row.seconds_per_image for row in rows)
        lines = [
            (
                row.section,
                seconds_text(row.seconds_per_image),
                f"{row.share:.0%}",
                count_text(row.flops_per_image, "FLOP") if row.flops_per_image else "",
                f"{row.peak_share:.0%}" if row.flops_per_image else "",
            )
            for row in rows
        ]
        lines.append(("together", seconds_text(whole), f"{1 / whole:.1f}/s", "", ""))
        show(table(f"batch {batch}", ("", "per image", "share", "work", "of the peak"), lines, "lrrrr"))
    sys.stdout.write(
        f"{short_name(weights)}, {found.engine}, {found.threads} thread{'s' if found.threads > 1 else ''}; "
        f"peak: {count_text(found.gemm_flops_per_second, 'FLOP')}/s on a float32 product in this run\n"
    )
