"""vitrail export: weights as a graph that other runtimes run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.charts.numbers import bytes_text
from vitrail.checkpoint.sources.names import short_name
from vitrail.cli.options import Flag, Json, Weights
from vitrail.cli.tables import write_json
from vitrail.errors import require

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.checkpoint.checkpoint import Checkpoint

__all__ = ["export"]

MOST_IMAGES = 8


def export(
    weights: Weights,
    out: Path,
    /,
    *,
    dynamic: Flag = False,
    opset: int = 18,
    images: Path | None = None,
    json: Json = False,
) -> None:
    """Write weights as ONNX or OpenVINO, read the file back, and compare it with torch on images.

    Parameters
    ----------
    out
        The file to write: .onnx, or .xml for OpenVINO, with its .bin beside it.
    dynamic
        Leave the image size open as well as the batch size; for models without positions, or with learned ones that
        ONNX can resample.
    opset
        Version of ONNX's operators.
    images
        Image, or folder of images, to compare on (default: drawn images).
    """
    from vitrail.checkpoint.read import load
    from vitrail.cli.progress import working
    from vitrail.vectors.engines import export as work

    checkpoint = load(weights)
    pixels, what = _pixels(checkpoint, images)
    with working(f"exporting {short_name(weights)} and comparing it with torch"):
        done = work.export(checkpoint, out, pixels, dynamic=dynamic, opset=opset)
    if json:
        write_json(done)
        return
    size = "any size that the patch divides" if dynamic else f"{checkpoint.config.image}"
    names = str(out) if out.suffix == ".onnx" else f"{out} and {out.with_suffix('.bin').name}"
    tried = " and ".join(str(each) for each in done.sizes)
    sys.stdout.write(
        f"{names}: {bytes_text(done.bytes)}, any batch of {size}\n"
        f"beside torch on {what} at {tried}: largest difference {done.largest_difference:.1e}, "
        f"lowest cosine {done.lowest_cosine:.7f}\n"
    )


def _pixels(checkpoint: Checkpoint, images: Path | None) -> tuple[Tensor, str]:
    """uint8 (B, H, W, C) to compare on, and what they are in words."""
    import torch

    from vitrail.images.folder import image_files
    from vitrail.images.synthesize import synthesize_image

    channels, steps = checkpoint.config.channels, checkpoint.preprocessing
    require(
        channels in (1, 3),
        f"the model takes {channels} channels, and images to compare on have 1 or 3; export from Python",
    )
    if images is None:
        drawn = [torch.from_numpy(synthesize_image(seed, steps.image))[:, :, :channels] for seed in range(4)]
        return torch.stack(drawn), "4 drawn images"
    paths = image_files(images, limit=MOST_IMAGES) if images.is_dir() else [images]
    found = [torch.from_numpy(steps.pixels(path).pixels) for path in paths]
    return torch.stack(found), f"{len(found)} image{'s' if len(found) > 1 else ''} of yours"
