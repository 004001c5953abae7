"""The figure of docs/dense.md: trained weights on photographs, as `vitrail dense` draws them.

    python docs/figures/dense.py WEIGHTS               writes docs/figures/dense.png

WEIGHTS is any checkpoint that vitrail reads. The page shows dinov2-S/14 (`vitrail weights fetch dinov2-S/14`). The
photographs are the studio's two cuts of scikit-image's `chelsea` (Stéfan van der Walt, CC0).
"""

from __future__ import annotations

import sys
from pathlib import Path

from vitrail.look.dense import dense
from vitrail.look.dense_colours import dense_colours, point_similarity
from vitrail.look.views.dense import view_dense
from vitrail.server.pictures import PICTURES

PATH = Path(__file__).with_name("dense.png")
POINT = (80.0, 110.0)


def main(weights: str) -> None:
    found = [dense(PICTURES[name](), weights, size=336, stride=7) for name in ("cat", "turned")]
    near = [each.numpy() for each in point_similarity(found, *POINT)]
    colours = dense_colours(found)
    shares = ", ".join(f"{100 * share:.0f}" for share in colours.shares)
    subtitle = f"DINOv2-S/14 · {shares} % of the tokens' variance · guided upsampling"
    names, title = ("cat.jpg", "turned.jpg"), "Features at every pixel"
    sheet = view_dense(found, colours, near, names=names, point=POINT, title=title, subtitle=subtitle)
    sheet.figure.savefig(PATH, dpi=90, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main(sys.argv[1])
