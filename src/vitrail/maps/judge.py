"""A linear probe that judges every image of a folder with classes, fitted on the others: accuracy, and what it doubts.

Shapes: N images, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.training.probe import fit_linear
from vitrail.vectors.collection import Watch
from vitrail.vectors.cosine import Floats

__all__ = ["FOLDS", "Judged", "judge"]

FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What probes say of images that they were not fitted on."""

    accuracy: float
    chance: float
    """Accuracy of always naming the largest class."""
    images: int
    """Number of images that were judged."""
    folds: int
    probabilities: Floats
    """(N,) of each image's own class; NaN if the image was not judged."""
    guesses: NDArray[np.int64]
    """(N,) the most probable class; −1 if the image was not judged."""
    left_out: tuple[str, ...]
    """Classes with one image, or only copies of one: no probe could know them without having seen it."""

    def doubted(self) -> NDArray[np.int64]:
        """Return the places of the judged images, the least probable in its own class first."""
        order = np.argsort(self.probabilities, kind="stable")  # NaN comes last
        return order[: self.images]


def judge(
    vectors: Floats,
    labels: NDArray[np.int64],
    classes: Sequence[str],
    copies: Sequence[NDArray[np.int64]] = (),
    *,
    seed: int = 0,
    watch: Watch = lambda words, done, total: None,
) -> Judged:
    """Judge each image by a linear probe on the vectors (N, D) of the other folds.

    `copies` are sets of images that are the same picture: each set is in one fold, so that no probe has seen what it
    judges. Every class is spread evenly over the folds. One temperature for all images makes the probabilities honest:
    those of 90 % are right about nine times in ten.
    """
    group = np.arange(len(labels))
    for same in copies:
        group[same] = same[0]
    different = [len(np.unique(group[labels == label])) for label in range(len(classes))]
    judged = np.array([count > 1 for count in different])[labels]
    kept = np.unique(labels[judged])
    if len(kept) < 2:
        raise VitrailError("fewer than two classes have two different images; add images, or a probe has no task")
    fold = _folds(labels, group, seed)
    compact = np.searchsorted(kept, labels)  # classes without those that are left out
    probabilities = np.full(len(labels), np.nan, np.float32)
    guesses = np.full(len(labels), -1, np.int64)
    features, answers = torch.from_numpy(vectors), torch.from_numpy(compact)
    logits = torch.zeros(len(labels), len(kept), dtype=torch.float64)
    for number in range(FOLDS):
        watch("fitting probes", number, FOLDS)
        fitted, held = (torch.from_numpy(np.flatnonzero(judged & mask)) for mask in (fold != number, fold == number))
        if not len(held):
            continue
        probe = fit_linear(features[fitted], answers[fitted], len(kept))
        logits[held] = probe.logits(features[held])
    asked = torch.from_numpy(np.flatnonzero(judged))
    likely = (logits[asked] / _temperature(logits[asked], answers[asked])).softmax(dim=1)
    probabilities[asked] = likely.gather(1, answers[asked, None])[:, 0].float().numpy()
    guesses[asked] = kept[likely.argmax(dim=1).numpy()]
    counts = np.bincount(labels[judged])
    return Judged(
        accuracy=float((guesses[judged] == labels[judged]).mean()),
        chance=float(counts.max() / counts.sum()),
        images=int(judged.sum()),
        folds=FOLDS,
        probabilities=probabilities,
        guesses=guesses,
        left_out=tuple(name for name, count in zip(classes, different, strict=True) if count < 2),
    )


def _folds(labels: NDArray[np.int64], group: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return a fold for every image: that of its group, and the groups of a class in turn."""
    leaders = np.random.default_rng(seed).permutation(np.unique(group))
    leaders = leaders[np.argsort(labels[leaders], kind="stable")]
    turn = np.zeros(len(labels), np.int64)
    turn[leaders] = np.arange(len(leaders)) % FOLDS
    return turn[group]


def _temperature(logits: Tensor, answers: Tensor) -> float:
    """Return what logits (N, K) are divided by so that the answers are most likely (arXiv 1706.04599)."""
    tried = torch.logspace(-1, 3, 161, dtype=torch.float64)
    losses = torch.stack([F.cross_entropy(logits / each, answers) for each in tried])
    return float(tried[losses.argmin()])
