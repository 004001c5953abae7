"""vitrail convert: weights of one library → files that another loads."""

from __future__ import annotations

import sys

__all__ = ["convert"]


def convert(
    source: str,
    target: str,
    /,
    *,
    to: str,
    from_image: str | None = None,
    num_heads: int | None = None,
    architecture: str | None = None,
) -> None:
    """Write weights in another library's names and format.

    Parameters
    ----------
    source
        A weights file, or a directory with weights and their config.
    target
        Where to write: the ending says the format; a directory for huggingface.
    to
        timm, huggingface, torchvision, google, dino, dinov2, dinov3, openclip or vitrail.
    from_image
        HEIGHTxWIDTH of the image that the positions were made for, where the file does not say.
    num_heads
        Attention heads, where the file does not say.
    architecture
        timm's name of the model, where the file does not say and several have its shape: vit_base_patch16_clip_224.
    """
    from vitrail.checkpoint.assess.describe import check, few
    from vitrail.checkpoint.read import load
    from vitrail.checkpoint.write import save

    checkpoint = load(source, from_image=from_image, num_heads=num_heads, architecture=architecture)
    written = save(checkpoint, target, dialect=to)
    family = "" if written.dialect in ("vitrail", written.family) else f" ({written.family})"
    lines = [f"{target}: {len(written.tensors)} tensors in {written.dialect}'s names{family}"]
    lines += [f"note: {note}" for note in written.notes]
    bad = check(checkpoint).not_finite
    if bad:
        lines.append(f"note: {few(bad)}: not all values are finite")
    sys.stdout.write("\n".join(lines) + "\n")
