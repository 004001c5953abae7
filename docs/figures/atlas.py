"""Draws docs/figures/atlas.png and atlas-doubts.png: 2,000 test images of CIFAR-10 by the bundled model.

.venv/bin/vitrail data fetch cifar10 --out cifar
.venv/bin/python docs/figures/atlas.py cifar
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from PIL import Image

from vitrail import atlas
from vitrail.data.open import open_source
from vitrail.maps.picture import doubt_sheet, map_picture

HERE = Path(__file__).parent
EACH = 200
"""Images of a class: the first in the test split."""


def write_folder(data: Path, folder: Path) -> None:
    source, seen = open_source(data, "test"), Counter[int]()
    for index, label in enumerate(source.labels):
        seen[int(label)] += 1
        if seen[int(label)] <= EACH:
            path = folder / source.classes[label] / f"{index:05}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(source[index][0]).save(path)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "cifar10")
        write_folder(Path(sys.argv[1]), folder)
        found = atlas(folder, method="tsne", vectors=Path(temporary, "vectors"))
        for name, picture in (
            ("atlas", map_picture(found, "The map of 2,000 images")),
            ("atlas-doubts", doubt_sheet(found, 12)),
        ):
            smaller = picture.resize((picture.width * 2 // 3, picture.height * 2 // 3), Image.Resampling.LANCZOS)
            smaller.save(HERE / f"{name}.png", optimize=True)
        for name, words in found.in_words():
            print(f"{name}: {words}")


if __name__ == "__main__":
    main()
