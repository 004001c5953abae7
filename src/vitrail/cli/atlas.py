"""vitrail atlas: a folder of images as a map."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitrail.cli.options import Json, Weights
from vitrail.cli.tables import show, table, write_json, written
from vitrail.errors import require

if TYPE_CHECKING:
    from vitrail.maps.atlas import Atlas

__all__ = ["atlas"]


def atlas(
    folder: Path,
    /,
    *,
    weights: Weights = "default",
    reduction: Literal["pca", "tsne"] = "pca",
    threshold: float = 0.98,
    seed: int = 0,
    top: int = 12,
    vectors: Path | None = None,
    workers: int | None = None,
    out: Path | None = None,
    doubts: Path | None = None,
    json: Json = False,
) -> None:
    """Map a folder of images: similar images are near each other; find near duplicates and doubtful labels.

    Images are embedded once: the same command later embeds only what is new. If every image is in a subfolder, the
    subfolders are classes, and every image is judged by a linear probe that was fitted on others.

    Parameters
    ----------
    folder
        Folder of images, or one that vitrail embed wrote, whose weights are then its own.
    reduction
        How vectors become points: pca, or tsne (extra map), which keeps neighbours better and takes longer.
    threshold
        Least cosine of two near duplicates; what is right depends on the model.
    seed
        Seed of t-SNE, and of the folds of the probe.
    top
        Number of doubtful images to list and to draw; --json has all.
    vectors
        Folder to keep the vectors in, for vitrail search (default: vitrail's cache folder).
    workers
        Processes that embed (default: one per core).
    out
        File for the map: .png, or .html (extra studio), one file with all thumbnails to zoom into (default: none).
    doubts
        PNG file for a contact sheet of the images that the probe doubts (default: none).
    """
    require(top > 0, f"--top {top} is not positive; give 1 or more")
    from vitrail.charts.sheet import check_path
    from vitrail.cli.progress import working
    from vitrail.vectors.job.part_files import require_arrow

    require_arrow()
    if out is not None:
        check_path(out, (".png", ".html"))
        has_page = out.suffix.lower() == ".png" or find_spec("fastapi") is not None
        require(has_page, "a map as HTML needs fastapi; pip install 'vitrail[studio]', or write a .png")
    if doubts is not None:
        check_path(doubts, (".png",))
    with working("reading the folder") as tell:
        from vitrail.maps.atlas import atlas as compute
        from vitrail.vectors.job.forks import start_early

        start_early()  # workers' imports run beside these

        def watch(words: str, done: int, total: int) -> None:
            tell(words if not total else f"{words} {done:,} of {total:,}", done, total or None)

        found = compute(
            folder,
            weights,
            method=reduction,
            threshold=threshold,
            seed=seed,
            vectors=vectors,
            workers=workers,
            watch=watch,
        )
        require(
            doubts is None or found.judged is not None, f"--doubts needs a probe, and there is none: {found.unjudged}"
        )
        _draw(found, folder, top, out, doubts, lambda done: tell(f"drawing {done:,} thumbnails", done))
    if json:
        write_json(_plain(found))
        return
    _show(found, folder, top)
    written(*(path for path in (out, doubts) if path is not None))


def _draw(found: Atlas, folder: Path, top: int, out: Path | None, doubts: Path | None, tell: Any) -> None:
    if out is None and doubts is None:
        return
    from vitrail.atomic import write_file
    from vitrail.charts.raster import encode_png
    from vitrail.maps.picture import doubt_sheet, map_picture

    if out is not None:
        title = f"The map of {folder.resolve().name}"
        if out.suffix.lower() == ".html":
            from vitrail.server.map_page import map_page

            drawn = map_page(found, title, tell)
        else:
            drawn = encode_png(map_picture(found, title, tell))
        write_file(out, lambda file: file.write(drawn))
    if doubts is not None:
        sheet = encode_png(doubt_sheet(found, top, tell))
        write_file(doubts, lambda file: file.write(sheet))


def _plain(found: Atlas) -> dict[str, Any]:
    judged = found.judged
    return {
        "method": found.method,
        "variance": found.flat.variance,
        "kept": found.kept,
        "classes": found.classes,
        "images": [
            {
                "id": name,
                "point": point,
                "class": found.classes[label] if found.classes else None,
                "nearest": [
                    {"id": found.ids[place], "cosine": cosine} for place, cosine in zip(places, cosines, strict=True)
                ],
            }
            for name, point, label, places, cosines in zip(
                found.ids,
                found.points.tolist(),
                found.labels.tolist(),
                found.near.places.tolist(),
                found.near.scores.tolist(),
                strict=True,
            )
        ],
        "failed": found.failed,
        "duplicates": {
            "threshold": found.duplicates.threshold,
            "groups": [[{"id": each.id, "cosine": each.score} for each in group] for group in found.duplicates.groups],
        },
        "probe": judged
        and {
            "accuracy": judged.accuracy,
            "chance": judged.chance,
            "images": judged.images,
            "folds": judged.folds,
            "left_out": judged.left_out,
            "doubts": found.doubts,
        },
        "unjudged": found.unjudged,
        "vectors": str(found.collection.folder),
    }


def _show(found: Atlas, folder: Path, top: int) -> None:
    parts = [
        table(
            f"The map of {folder}",
            ("", ""),
            list(found.in_words()),
            "lw",
            caption=f"vectors in {found.collection.folder}, for vitrail search",
        )
    ]
    if found.failed:
        rows = [(each.id, each.error) for each in found.failed[:top]]
        parts.append(
            table("Images that cannot be read", ("id", "reason"), rows, "ww", caption=_rest(found.failed, top))
        )
    if found.judged is not None:
        rows = [(f"{each.probability:.4f}", each.label, each.guess, each.id) for each in found.doubts[:top]]
        parts.append(
            table(
                "Images that the probe doubts",
                ("probability", "its class", "most probable", "id"),
                rows,
                "rllw",
                caption=f"the probability of its own class; {_rest(found.doubts, top)}",
            )
        )
    show(*parts)


def _rest(items: Any, top: int) -> str:
    return f"{min(top, len(items)):,} of {len(items):,} are listed"
