"""vitrail dense: features at every pixel, as arrays and as colours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from vitrail.cli.options import Flag, Json, Paths, SizeOption, Weights, one
from vitrail.cli.tables import show, table, write_json, written
from vitrail.errors import VitrailError, require

if TYPE_CHECKING:
    from vitrail.look.dense import Dense

__all__ = ["dense"]

DRAWN = 640
"""Pixels of the longer side of a drawn photograph, if the model sees fewer."""


def _read_point(text: str) -> tuple[float, float]:
    """`120,80` → (120.0, 80.0)."""
    row, _, column = text.partition(",")
    try:
        return float(row), float(column)
    except ValueError:
        raise VitrailError(f"point {text!r} is not ROW,COLUMN in pixels; write 120,80") from None


def dense(
    photos: Paths,
    /,
    *,
    weights: Weights = "default",
    image: SizeOption | None = None,
    stride: int | None = None,
    tile: SizeOption | None = None,
    layer: int | None = None,
    upsample: Literal["guided", "bilinear", "nearest"] = "guided",
    foreground: Flag = False,
    point: Annotated[tuple[float, float] | None, one(_read_point)] = None,
    save: Path | None = None,
    out: Path | None = None,
    json: Json = False,
) -> None:
    """Compute features on a fine grid, and draw them at every pixel, in colours that all images share.

    Parameters
    ----------
    photos
        Image files; each keeps its shape.
    image
        Size of the model's input, HEIGHTxWIDTH or one number for a square; an image gets about as many pixels in its
        own shape (default: the model's own).
    stride
        Pixels between tokens, a divisor of the patch: 7 for a patch of 14 takes 4 passes (default: the patch, 1 pass).
    tile
        Size of overlapping windows that large images are seen through (default: the whole image at once).
    layer
        Layer whose tokens are taken, from 0; -1 is the last (default: the model's features).
    upsample
        How tokens become pixels in the picture: guided by the photograph's edges, bilinear, or a square per token.
    foreground
        Remove the background, which the first principal component separates.
    point
        Pixel of the first image, ROW,COLUMN: draw the similarity of every place to it (default: none).
    save
        File for the features (width, rows, columns), float32: .npy for one image, or .safetensors (default: none).
    out
        File to draw into: .png, .svg or .pdf (default: none).
    """
    from vitrail.charts.sheet import check_drawing, check_path
    from vitrail.cli.progress import working

    if out is not None:
        check_drawing(out)
    if save is not None:
        check_path(save, (".npy", ".safetensors"))
        require(
            save.suffix == ".safetensors" or len(photos) == 1,
            f"--save {save} has room for one image, and {len(photos)} are given; use .safetensors",
        )
    names = [path.name for path in photos]
    require(len(set(names)) == len(names), "two images have the same file name; rename one of them")
    with working("reading the weights") as tell:
        from vitrail.checkpoint.pixels import read_pixels
        from vitrail.checkpoint.read import load
        from vitrail.checkpoint.sources.names import short_name
        from vitrail.look.dense import dense as compute
        from vitrail.look.dense_colours import dense_colours, point_similarity

        checkpoint, found = load(weights), []
        for path in photos:
            tell(f"looking at {path.name}", 0, 1)
            found.append(
                compute(
                    path, checkpoint, size=image, stride=stride, tile=tile, layer=layer,
                    watch=lambda done, total: tell(None, done, total),
                )
            )  # fmt: skip
        shown = found
        if out is not None:
            read = (read_pixels(path, checkpoint.preprocessing) for path in photos)
            shown = [each.over(pixels, DRAWN) for each, pixels in zip(found, read, strict=True)]
        colours = dense_colours(shown, foreground=foreground, upsampling=upsample)
        near = [] if point is None else point_similarity(shown, *point, upsampling=upsample)
        if save is not None:
            tell(f"writing {save.name}")
            _save(save, dict(zip(names, found, strict=True)))
        if out is not None:
            from vitrail.look.views.dense import view_dense

            tell(f"drawing {out.name}")
            shares = ", ".join(f"{100 * share:.0f}" for share in colours.shares)
            sheet = view_dense(
                shown,
                colours,
                [each.numpy() for each in near],
                names=names,
                point=point,
                title="Features at every pixel",
                subtitle=f"{short_name(weights)} · {shares} % of the tokens' variance · {upsample} upsampling",
            )
            sheet.save(out)
    if json:
        write_json({"shares": colours.shares, "images": [_plain(*each) for each in zip(names, found, strict=True)]})
        return
    rows = [
        (name, str(each.cells.grid), f"{each.cells.step[0]:g} × {each.cells.step[1]:g}", str(each.passes))
        for name, each in zip(names, found, strict=True)
    ]
    shares = ", ".join(f"{share:.1%}" for share in colours.shares)
    caption = f"tokens of width {len(found[0].features)}; the three colours have {shares} of their variance"
    show(table("", ("image", "grid", "pixels apart", "passes"), rows, "wrrr", caption=caption))
    written(*(path for path in (save, out) if path is not None))


def _plain(name: str, found: Dense) -> dict[str, Any]:
    rows, columns = found.pixels.shape[:2]
    return {
        "image": name,
        "original": found.original,
        "seen": {"height": rows, "width": columns},
        "grid": found.cells.grid,
        "step": found.cells.step,
        "corner": (found.cells.top, found.cells.left),
        "passes": found.passes,
        "width": len(found.features),
    }


def _save(path: Path, found: dict[str, Dense]) -> None:
    """Write the features under a temporary name, and rename the file when it is whole."""
    import numpy as np

    from vitrail.atomic import write_file
    from vitrail.checkpoint.formats.safetensors import write_safetensors

    if path.suffix == ".npy":
        (only,) = found.values()
        write_file(path, lambda file: np.save(file, only.features.numpy()))
    else:
        features = {name: each.features for name, each in found.items()}
        write_file(path, lambda file: write_safetensors(file, features, {}))
