"""The figure of docs/matching.md: trained weights on two photographs, as `vitrail match` draws them.

    python docs/figures/matching.py WEIGHTS            writes docs/figures/matching.png

WEIGHTS is any checkpoint that vitrail reads. The page shows dinov2-S/14 (`vitrail weights fetch dinov2-S/14`). The
photographs are scikit-image's `stereo_motorcycle`, two views of one scene (Middlebury 2014).
"""

from __future__ import annotations

import sys
from pathlib import Path

import skimage.data
from PIL import Image

from vitrail.look.match import match
from vitrail.look.views.match import view_match

PATH = Path(__file__).with_name("matching.png")


def main(weights: str) -> None:
    left, right, _ = skimage.data.stereo_motorcycle()
    found = match(left, right, weights, image=378, whole=True, layer=6)
    view_match(found, names=("left.png", "right.png"), lines=60).figure.savefig(PATH, dpi=110)
    # 256 colours are enough, and a third of the bytes
    Image.open(PATH).convert("RGB").quantize(256, kmeans=2, dither=Image.Dither.NONE).save(PATH, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1])
