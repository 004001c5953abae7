"""vitrail convert: weights of one library → files that another loads."""

from __future__ import annotations

import sys
from pathlib import Path

from vitrail.checkpoint.sources.names import short_name
from vitrail.cli.options import Architecture, FromImage, NumHeads, Weights

__all__ = ["convert"]


def convert(
    weights: Weights,
    out: Path,
    /,
    *,
    to: str,
    from_image: FromImage = None,
    num_heads: NumHeads = None,
    architecture: Architecture = None,
) -> None:
    """Write weights in another library's names and format.

    Parameters
    ----------
    out
        The file to write, whose ending sets the format; or a folder for huggingface.
    to
        Library whose names and layout are written: timm, huggingface, torchvision, google, dino, dinov2, dinov3,
        openclip, sam or vitrail.
    """
    from vitrail.checkpoint.assess.describe import check, few
    from vitrail.checkpoint.read import load
    from vitrail.checkpoint.write import save
    from vitrail.cli.progress import working

    with working(f"converting {short_name(weights)}"):
        checkpoint = load(weights, from_image=from_image, num_heads=num_heads, architecture=architecture)
        written = save(checkpoint, out, dialect=to)
        bad = check(checkpoint).not_finite
    family = "" if written.dialect in ("vitrail", written.family) else f" ({written.family})"
    lines = [f"{out}: {len(written.tensors)} tensors in {written.dialect}'s names{family}"]
    lines += [f"note: {note}" for note in written.notes]
    if bad:
        lines.append(f"note: {few(bad)}: not all values are finite")
    sys.stdout.write("\n".join(lines) + "\n")
