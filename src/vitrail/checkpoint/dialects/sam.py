"""SAM's own files: the image encoder in segment-anything's names, alone or inside the whole model."""

from __future__ import annotations

from vitrail.checkpoint.dialects.dialect import Dialect, Family, Written
from vitrail.checkpoint.dialects.sam_shapes import known_bare, refuse_sam, sam_rows
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import IMAGENET, Preprocessing
from vitrail.geometry import Size

__all__ = ["SAM"]

ROWS = sam_rows("blocks", "proj", "norm", ("lin1", "lin2"), ("0", "1", "2", "3"))


def _preprocessing(stored: Stored, family: Family, image: Size) -> Preprocessing:
    mean, std = IMAGENET
    return Preprocessing(
        image=image,
        mean=mean,
        std=std,
        interpolation="bilinear",
        resize="squash",
        source="SAM's own statistics; it pads the shorter side with zeros, and here the image is squashed",
    )


SAM = Dialect(
    name="sam",
    suffix=".pth",
    preprocessing=_preprocessing,
    families=(
        Family(
            name="sam",
            rows=ROWS,
            anchor="patch_embed.proj.weight",
            signs=lambda stored, prefix: f"{prefix}blocks.0.mlp.lin1.weight" in stored.tensors,
            known=lambda stored, prefix: known_bare(
                stored, prefix, "proj", 1e-6, "names and shapes, as segment-anything has them"
            ),
            statistics=IMAGENET,
            write=lambda checkpoint, tensors: Written(prefix="image_encoder."),
            needs=("position.table", "blocks.0.attention.position.rows", "neck.conv.weight", "embedding.bias"),
            refuse=refuse_sam,
        ),
    ),
)
