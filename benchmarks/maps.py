"""Maps of images by PCA, t-SNE and, if umap-learn is installed, UMAP: time, and the neighbours that they keep.

vitrail data fetch cifar10 --out cifar
python benchmarks/maps.py cifar --images 2000
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from vitrail import embed
from vitrail.data.open import open_source
from vitrail.maps.atlas import map_collection
from vitrail.maps.flatten import flatten, neighbours_kept
from vitrail.vectors.collection import of_table


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("data", type=Path, help="labelled images, as for vitrail train --data")
    reader.add_argument("--images", type=int, default=2000)
    reader.add_argument("--weights", default="default")
    reader.add_argument("--json", action="store_true")
    asked = reader.parse_args()
    source = open_source(asked.data, "test")
    places = np.linspace(0, len(source) - 1, asked.images).astype(int)
    table = embed([source[int(place)][0] for place in places], asked.weights, workers=0)
    labels = [source.classes[source.labels[int(place)]] for place in places]
    atlas = map_collection(of_table(table), labels=labels)
    vectors, near = atlas.vectors, atlas.near.places
    methods: dict[str, Callable[[], np.ndarray]] = {
        "PCA": lambda: flatten(vectors, "pca").points,
        "t-SNE": lambda: flatten(vectors, "tsne").points,
    }
    if find_spec("umap") is not None:
        methods["UMAP"] = lambda: _umap(vectors)
    rows: list[dict[str, Any]] = []
    for name, place in methods.items():
        first, _ = _timed(place)  # which also imports and compiles
        second, points = _timed(place)
        kept = neighbours_kept(points, near)
        assert kept is not None
        rows.append({"method": name, "first": first, "second": second, "kept": kept.share, "chance": kept.chance})
    assert atlas.judged is not None
    found = {"images": len(atlas), "variance": atlas.flat.variance, "probe": atlas.judged.accuracy, "maps": rows}
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{found['images']:,} images, two components have {found['variance']:.1%}, probe {found['probe']:.1%}")
    for row in rows:
        times = f"{row['first']:6.1f} s, again {row['second']:5.1f} s"
        print(f"{row['method']:<6} {times}   keeps {row['kept']:.1%} of ten neighbours, {row['chance']:.1%} by chance")


def _timed(place: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    start = time.perf_counter()
    points = place()
    return time.perf_counter() - start, points


def _umap(vectors: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from umap import UMAP  # type: ignore[import-not-found]

        return UMAP(metric="cosine", random_state=0).fit_transform(vectors)


if __name__ == "__main__":
    main()
