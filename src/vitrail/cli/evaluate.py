"""vitrail evaluate: accuracy against resolution."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from vitrail.cli.options import Json, Words, several
from vitrail.cli.tables import show, table, write_json, written
from vitrail.errors import require
from vitrail.geometry import Size

__all__ = ["evaluate"]


def evaluate(
    run: Path,
    /,
    *,
    image: Annotated[tuple[Size, ...] | None, several(Size.of, "32,48x64")] = None,
    data: Words | None = None,
    batch: int = 128,
    chart: Path | None = None,
    json: Json = False,
) -> None:
    """Measure a trained model on its test split, at its own resolution and at others.

    Parameters
    ----------
    run
        A run's folder, or weights.
    image
        Image sizes, each HEIGHTxWIDTH or one number for a square, e.g. 32,48x64; the model is adapted to each
        (default: its own).
    data
        Dataset, as for vitrail train (default: the run's own; weights alone need it).
    batch
        Images per forward pass.
    chart
        File to draw accuracy against resolution into: .png, .svg or .pdf (default: resolution.png in the run's folder,
        if there are several sizes).
    """
    from vitrail.cli.progress import working
    from vitrail.data.open import open_source
    from vitrail.training.evaluate import evaluate_at
    from vitrail.training.job import read_job
    from vitrail.training.prepare import open_checkpoint

    if chart is not None:
        from vitrail.charts.sheet import check_drawing

        check_drawing(chart)
    checkpoint = open_checkpoint(run)
    is_run = (run / "data.json").is_file()
    require(data is not None or is_run, f"{run} is not a run, which would name its data; give --data")
    sources = data if data is not None else list(read_job(run).data.sources)
    sizes = image or (checkpoint.config.image,)
    scores = []
    with working("evaluating") as tell:
        for size in sizes:
            source = open_source(sources, "test", image=size)

            def watch(done: int, size: Size = size, total: int = len(source)) -> None:
                tell(f"evaluating at {size}, {done:,} of {total:,} images", done, total)

            scores.append(evaluate_at(checkpoint, source, size, batch=batch, watch=watch))
    if json:
        fields = ("image", "accuracy", "right", "images", "damaged")
        write_json([{name: getattr(score, name) for name in fields} for score in scores])
    else:
        own = checkpoint.config.image
        rows = [
            (str(s.image), f"{s.accuracy:.2%}", f"{s.right:,} of {s.images:,}", "own" if s.image == own else "adapted")
            for s in scores
        ]
        show(table("Accuracy against resolution", ("image", "accuracy", "right", ""), rows, "lrrl"))
        for name in dict.fromkeys(name for score in scores for name in score.damaged):
            show(f"left out: {name}")
    if chart is None and is_run and len(scores) > 1:
        chart = run / "resolution.png"
    if chart is not None:
        _draw(chart, [str(s.image) for s in scores], [s.accuracy for s in scores], str(checkpoint.config.image))
        if not json:
            written(chart)


def _draw(path: Path, names: list[str], values: list[float], own: str) -> None:
    from vitrail.charts.palette import BLUE, GREY
    from vitrail.charts.plots import note, plots

    labels = [("", "image, pixels", "accuracy, %")]
    sheet, (axes,) = plots("Accuracy against resolution", f"test split; trained at {own}", labels)
    shares = [100 * value for value in values]
    axes.plot(names, shares, "o-", color=BLUE)
    for place in enumerate(shares):
        note(axes, f"{place[1]:.1f}", place, up=7, ha="center")
    if own in names:
        axes.axvline(names.index(own), linestyle=":", color=GREY)
    axes.set_ylim(0, 108)
    axes.margins(x=0.08)
    sheet.save(path)
