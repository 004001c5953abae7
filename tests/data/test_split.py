"""Shares and validation splits keep the classes in proportion, and no image is on both sides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.classes import ClassFolder
from vitrail.data.shapes import Shapes
from vitrail.data.source import ArraySource, Source, Subset
from vitrail.data.split import cut_validation, draw_fraction
from vitrail.errors import VitrailError
from vitrail.geometry import Size

COUNTS = (120, 60, 20)
"""Images of each class: unequal, so that a draw over all images would not keep the proportions."""
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(3), COUNTS))
SOURCE = ArraySource(np.zeros((200, 3, 5, 3), np.uint8), LABELS, "abc", name="drawn")


def indices(source: Source) -> set[int]:
    assert isinstance(source, Subset)
    return set(source.indices.tolist())


def test_a_fraction_has_that_share_of_every_class():
    drawn = draw_fraction(SOURCE, 0.1, seed=0)
    assert np.bincount(drawn.labels).tolist() == [12, 6, 2]
    assert np.bincount(draw_fraction(SOURCE, 0.001, seed=0).labels).tolist() == [1, 1, 1]  # never a class of none
    assert draw_fraction(SOURCE, 1, seed=0) is SOURCE


def test_a_smaller_fraction_is_a_part_of_a_larger_one_and_the_seed_draws_both():
    small, large = (indices(draw_fraction(SOURCE, share, seed=3)) for share in (0.05, 0.25))
    assert small < large
    assert indices(draw_fraction(SOURCE, 0.25, seed=3)) == large != indices(draw_fraction(SOURCE, 0.25, seed=4))


def test_a_validation_split_takes_its_share_of_every_class_and_training_has_the_rest():
    rest, held_out = cut_validation(SOURCE, 0.1)
    assert held_out is not None
    assert np.bincount(held_out.labels).tolist() == [12, 6, 2]
    assert indices(rest).isdisjoint(indices(held_out))
    assert len(rest) + len(held_out) == len(SOURCE)
    assert cut_validation(SOURCE, 0) == (SOURCE, None)


def test_labels_are_those_of_the_images(tmp_path: Path):
    for number in range(5):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 3)).save(path)
    folder = ClassFolder(tmp_path)
    for source in (folder, Shapes(Size(8, 12), count=7), Subset(folder, np.array([3, 0])), SOURCE):
        assert list(source.labels) == [source[index][1] for index in range(len(source))]


@pytest.mark.parametrize("share", [-0.1, 0, 1.5, float("nan")])
def test_a_share_beyond_all_or_none_is_refused(share: float):
    with pytest.raises(VitrailError, match=r"0\.1 is a tenth of the images"):
        draw_fraction(SOURCE, share, seed=0)
    if share != 0:
        with pytest.raises(VitrailError, match=r"0\.1 is a tenth of the images"):
            cut_validation(SOURCE, share)


def test_a_split_without_images_is_refused():
    with pytest.raises(VitrailError, match="leaves 200 to train on and 0 to validate on"):
        cut_validation(SOURCE, 0.001)
