"""vitrail classify: what a labelled model says images show."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.options import Json, Paths, Weights
from vitrail.cli.tables import show, table, write_json, written
from vitrail.errors import require

if TYPE_CHECKING:
    from vitrail.checkpoint.classify import Prediction
    from vitrail.images.decode import ImageError

__all__ = ["classify"]


def classify(
    photos: Paths,
    /,
    *,
    weights: Weights = "default",
    top: int = 5,
    out: Path | None = None,
    json: Json = False,
) -> int | None:
    """Label images with the classes that a trained model knows, most likely first.

    Parameters
    ----------
    photos
        Image files, or folders of them.
    top
        Number of labels per image.
    out
        CSV file to write, one row per image (default: none).
    """
    from vitrail.atomic import write_file
    from vitrail.checkpoint.classify import classify as run
    from vitrail.checkpoint.read import load
    from vitrail.cli.progress import counted
    from vitrail.images.decode import ImageError
    from vitrail.images.folder import image_files

    require(out is None or out.suffix == ".csv", f"out {out} is not a CSV file; let its name end in .csv")
    files = [file for path in photos for file in (image_files(path) if path.is_dir() else [path])]
    checkpoint = load(weights)
    answers = run(checkpoint, files, top=top)
    found = dict(zip(files, counted(answers, "classifying", len(files)), strict=True))
    failed = [str(answer) for answer in found.values() if isinstance(answer, ImageError)]
    if out is not None:
        text = _csv(found)
        write_file(out, lambda file: file.write(text.encode()))
    if json:
        write_json({str(file): {"error": str(a)} if isinstance(a, ImageError) else a for file, a in found.items()})
        return 1 if failed else None
    rows = [
        (str(file) if rank == 0 else "", each.label, f"{each.probability:.1%}")
        for file, answer in found.items()
        if not isinstance(answer, ImageError)
        for rank, each in enumerate(answer)
    ]
    named = "" if checkpoint.labels else "; the weights name no classes, so these are numbers"
    caption = f"{weights}, {checkpoint.config.classes:,} classes at {checkpoint.config.image}{named}"
    if rows:
        show(table("", ("image", "label", "probability"), rows, "wwr", caption=caption))
    for line in failed:
        show(line)
    if out is not None:
        written(out, note=f", {len(found):,} rows")
    return 1 if failed else None


def _csv(found: dict[Path, tuple[Prediction, ...] | ImageError]) -> str:
    """One row per image: its labels with their probabilities, or its error."""
    import csv
    import io

    width = max((len(answer) for answer in found.values() if isinstance(answer, tuple)), default=0)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [f"{name}_{rank}" for rank in range(1, width + 1) for name in ("label", "probability")]
    writer.writerow(["image", *columns, "error"])
    for file, answer in found.items():
        known = isinstance(answer, tuple)
        pairs = [(each.label, f"{each.probability:.6f}") for each in answer] if known else [("", "")] * width
        writer.writerow([file, *chain(*pairs), "" if known else answer])
    return text.getvalue()
