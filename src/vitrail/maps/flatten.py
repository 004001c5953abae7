"""Vectors to points of a plane, and how much of the vectors' neighbourhoods the plane keeps.

Shapes: N images, D width, K neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import require
from vitrail.vectors.cosine import Floats

__all__ = ["COMPARED", "METHODS", "Flat", "Kept", "Method", "check_method", "flatten", "neighbours_kept"]

Method = Literal["pca", "tsne"]
METHODS: dict[Method, str] = {"pca": "PCA", "tsne": "t-SNE"}
COMPARED = 10
"""Nearest neighbours that are looked for on the map."""
SAMPLED = 2000
"""Images whose neighbours are looked for, at even steps."""
PERPLEXITY = 30.0
LEAST_FOR_TSNE = 5


@dataclass(frozen=True, kw_only=True)
class Flat:
    """Points, and what the method says about them."""

    points: Floats
    """(N, 2): across and up."""
    variance: float | None = None
    """Share of the vectors' variance that the two principal components have; None for t-SNE."""
    centre: Floats | None = None
    axes: Floats | None = None
    """(D, 2): a new vector's point is (vector − centre) @ axes. None for t-SNE, which has no rule for new vectors."""

    def point_of(self, vector: Floats) -> tuple[float, float] | None:
        """Return the place of another vector on the map, if the method has one."""
        if self.centre is None or self.axes is None:
            return None
        across, up = ((vector - self.centre) @ self.axes).tolist()
        return across, up


@dataclass(frozen=True, kw_only=True)
class Kept:
    """How well the map keeps neighbours."""

    share: float
    """Mean share of an image's nearest neighbours by cosine that are among as many nearest on the map."""
    chance: float
    """The share that a map with random places keeps, on average."""
    neighbours: int


def check_method(method: Method) -> None:
    """Refuse a method whose library is missing, before minutes of work."""
    require(
        method == "pca" or find_spec("sklearn") is not None,
        "t-SNE needs scikit-learn, which is not installed; run pip install 'vitrail[map]', or use the method pca",
    )


def flatten(vectors: Floats, method: Method = "pca", *, seed: int = 0) -> Flat:
    """Give every vector (N, D) a point: by its two principal components, or by t-SNE, which keeps neighbours better."""
    check_method(method)
    pca = _principal(vectors)
    if method == "pca":
        return pca
    require(
        len(vectors) >= LEAST_FOR_TSNE,
        f"t-SNE needs {LEAST_FOR_TSNE} images, and there are {len(vectors)}; use the method pca",
    )
    from sklearn.manifold import TSNE

    start: Any = pca.points / max(float(pca.points[:, 0].std()), 1e-12) * 1e-4  # a global order to begin with
    solver = TSNE(metric="cosine", init=start, perplexity=min(PERPLEXITY, (len(vectors) - 1) / 3), random_state=seed)
    return Flat(points=solver.fit_transform(vectors).astype(np.float32))


def _principal(vectors: Floats) -> Flat:
    centre = vectors.mean(axis=0, dtype=np.float64)
    x = vectors - centre
    values, axes = np.linalg.eigh(x.T @ x)  # ascending
    axes = axes[:, ::-1][:, :2]
    skew = ((x @ axes) ** 3).sum(axis=0)
    axes = axes * np.where(skew < 0, -1.0, 1.0)  # the same map on every machine
    total = np.square(x).sum()
    points = x @ axes
    if points.shape[1] < 2:  # vectors of one number
        points, axes = (np.pad(each, ((0, 0), (0, 1))) for each in (points, axes))
    return Flat(
        points=points.astype(np.float32),
        variance=float(values[::-1][:2].sum() / total) if total > 1e-12 else 1.0,
        centre=centre.astype(np.float32),
        axes=axes.astype(np.float32),
    )


def neighbours_kept(points: Floats, nearest: NDArray[np.int64]) -> Kept | None:
    """Look for the nearest vectors (N, K) of each image among the nearest points; None for fewer than three images."""
    count = len(points)
    wanted = min(COMPARED, nearest.shape[1], (count - 1) // 2)
    if wanted < 1:
        return None
    rows = np.unique(np.linspace(0, count - 1, min(count, SAMPLED)).astype(np.int64))
    found = 0
    for some in np.array_split(rows, -(-len(rows) // 256)):
        apart = np.square(points[some, None].astype(np.float64) - points[None]).sum(axis=-1)  # (rows, N)
        apart[np.arange(len(some)), some] = np.inf
        near = np.argpartition(apart, wanted - 1, axis=1)[:, :wanted]
        found += int((nearest[some, :wanted, None] == near[:, None]).sum())
    return Kept(share=found / (len(rows) * wanted), chance=wanted / (count - 1), neighbours=wanted)
