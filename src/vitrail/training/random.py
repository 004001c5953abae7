"""Randomness without state: a number is a function of its use, so that nothing has to be saved to resume.

Order of data: (seed, epoch). Augmentation: (seed, epoch, index). Mixing, scales: (seed, step). Dropout:
(seed, step, micro-batch, rank).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["generator", "order", "reseed", "uniform"]

_STREAMS = ("order", "augment", "mix", "scale", "dropout", "weights")


def generator(stream: str, *key: int) -> np.random.Generator:
    """Return the generator of a stream and key."""
    return np.random.Generator(np.random.PCG64([_STREAMS.index(stream), *key]))


def reseed(stream: str, *key: int) -> None:
    """Set torch's generators, which dropout and initial weights draw from."""
    torch.manual_seed(int(generator(stream, *key).integers(2**63)))


def order(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return the epoch's permutation of all indices."""
    return generator("order", seed, epoch).permutation(count)


def uniform(seed: int, epochs: np.ndarray, indices: np.ndarray, count: int) -> np.ndarray:
    """Draw (len(indices), count) of 0 ≤ u < 1; a row is a function of (seed, epoch, index) only.

    A hash (the finaliser of SplitMix64) of a counter, because a generator per row would be slow.
    """
    with np.errstate(over="ignore"):
        state = _mixed(np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15))
        for key in (epochs, indices):
            state = _mixed(state ^ _mixed(key.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)))
        counter = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits = _mixed(state[:, None] + counter)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
