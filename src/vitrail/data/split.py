"""Parts of the training images with the classes in proportion: a share to train on, and a split to make choices on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vitrail.data.source import Source, Subset
from vitrail.errors import require

__all__ = ["cut_validation", "draw_fraction"]


def draw_fraction(source: Source, fraction: float, seed: int) -> Source:
    """Return a share of every class, drawn by the seed; a smaller share is a part of a larger one of the same seed.

    >>> from vitrail.data.shapes import Shapes
    >>> from vitrail.geometry import Size
    >>> tenth = draw_fraction(Shapes(Size(8, 8), count=80), 0.1, seed=0)
    >>> sorted(label for _, label in tenth)
    [0, 0, 1, 1, 2, 2, 3, 3]
    """
    require(0 < fraction <= 1, f"fraction {fraction:g} is not above 0 and at most 1; 0.1 is a tenth of the images")
    if fraction == 1:
        return source
    random = np.random.default_rng(seed)
    drawn = [random.permutation(own)[: max(1, round(fraction * len(own)))] for own in _by_class(source)]
    return Subset(source, np.sort(np.concatenate(drawn)))


def cut_validation(source: Source, share: float) -> tuple[Source, Source | None]:
    """Return what is left to train on, and the validation split; None if the share is 0.

    The split is every n-th image of each class and no seed changes it, so that a run which starts from another one's
    weights never validates on images that those were trained on.
    """
    require(0 <= share < 1, f"validation {share:g} is not of 0 or more and below 1; 0.1 is a tenth of the images")
    if share == 0:
        return source, None
    chosen = [own[_evenly(len(own), round(share * len(own)))] for own in _by_class(source)]
    held = np.zeros(len(source), dtype=bool)
    held[np.concatenate(chosen)] = True
    kept, cut = np.flatnonzero(~held), np.flatnonzero(held)
    require(
        len(kept) > 0 and len(cut) > 0,
        f"validation {share:g} of {len(source)} images leaves {len(kept)} to train on and {len(cut)} to validate on; "
        "give another share, or more images",
    )
    return Subset(source, kept), Subset(source, cut)


def _by_class(source: Source) -> Iterator[np.ndarray]:
    """Yield the indices of every class that has images."""
    labels = np.asarray(source.labels)
    for label in range(len(source.classes)):
        own = np.flatnonzero(labels == label)
        if len(own):
            yield own


def _evenly(count: int, chosen: int) -> np.ndarray:
    return np.arange(chosen) * count // max(1, chosen)
