"""Similarity by distance and by offset, against plain loops and the closed forms of sines."""

from __future__ import annotations

from math import dist

import numpy as np
import pytest
import torch

from vitrail import Learned, Patches, RelativeBias, Rotary, SinCos2d, Size, ViTConfig
from vitrail.errors import VitrailError
from vitrail.look.offsets import by_distance, by_offset
from vitrail.look.positions import PositionSimilarity, position_similarity
from vitrail.nn.vit import ViT
from vitrail.parts import Mlp, Position
from vitrail.training.experiments.structure import position_structure

GRID = Size(5, 7)


def model(position: Position) -> ViT:
    torch.manual_seed(0)
    embedding = Patches(patch=Size(1, 1))
    return ViT(
        ViTConfig(
            image=GRID,
            embedding=embedding,
            width=24,
            depth=1,
            num_heads=3,
            mlp=Mlp(width=8),
            classes=0,
            position=position,
        )
    )


@pytest.fixture(scope="module")
def found() -> PositionSimilarity:
    values = torch.randn(*GRID, *GRID, generator=torch.Generator().manual_seed(3))
    return PositionSimilarity(values=values, kind="random", measure="none")


def pairs():
    cells = [(row, column) for row in range(GRID.height) for column in range(GRID.width)]
    return [(query, key) for query in cells for key in cells if query != key]


def test_distances_gather_every_pair_of_different_patches_once(found):
    curve = by_distance(by_offset(found))
    for distance, mean, spread, count in zip(curve.distances, curve.means, curve.spreads, curve.pairs, strict=True):
        alike = [float(found.values[q + k]) for q, k in pairs() if round(dist(q, k)) == distance]
        assert count == len(alike)
        assert mean == pytest.approx(np.mean(alike), abs=1e-6)
        assert spread == pytest.approx(np.std(alike), abs=1e-6)
    assert sum(curve.pairs) == GRID.area * (GRID.area - 1)


def test_the_correlation_is_numpys(found):
    alike, apart = zip(*((float(found.values[q + k]), dist(q, k)) for q, k in pairs()), strict=True)
    assert by_distance(by_offset(found)).correlation == pytest.approx(np.corrcoef(alike, apart)[0, 1], abs=1e-9)


def test_the_correlation_of_a_learned_table_is_its_structure():
    learned = model(Learned())
    table = learned.position.table[-GRID.area :]  # type: ignore[union-attr,index]
    found = by_distance(by_offset(position_similarity(learned)))
    assert found.correlation == pytest.approx(position_structure(table, GRID), abs=1e-9)


def test_an_offset_gathers_keys_that_lie_there(found):
    offsets = by_offset(found)
    down, across = 2, -3
    alike = [float(found.values[q + k]) for q, k in pairs() if (k[0] - q[0], k[1] - q[1]) == (down, across)]
    assert offsets.means[GRID.height - 1 + down, GRID.width - 1 + across] == pytest.approx(np.mean(alike), abs=1e-6)
    assert offsets.share < 0.5


@pytest.mark.parametrize("position", [SinCos2d(), Rotary(), RelativeBias()])
def test_sines_rotations_and_biases_depend_on_the_offset_alone(position):
    assert by_offset(position_similarity(model(position))).share == pytest.approx(1, abs=1e-6)


def test_where_all_are_alike_nothing_correlates():
    alike = PositionSimilarity(values=torch.ones(*GRID, *GRID), kind="none", measure="none")
    assert by_offset(alike).share == 1
    assert by_distance(by_offset(alike)).correlation == 0


def test_one_patch_has_no_pairs():
    alone = PositionSimilarity(values=torch.ones(1, 1, 1, 1), kind="none", measure="none")
    with pytest.raises(VitrailError, match="no pairs"):
        by_distance(by_offset(alone))
