from __future__ import annotations

import itertools

import pytest
import torch

from vitrail import parts
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.nn.layout import Layout
from vitrail.vectors.engines.engine import LeanEngine, build_engine
from vitrail.vectors.engines.merge import Merged, MergingEncoder, first_merging, merge_patches

SMALL = ViTConfig(
    image=Size(40, 56),
    embedding=parts.Patches(patch=Size(8, 8)),
    width=48,
    depth=3,
    num_heads=3,
    mlp=parts.Mlp(width=80),
)


def checkpoint_of(config: ViTConfig) -> Checkpoint:
    torch.manual_seed(0)
    return Checkpoint(
        config=config, tensors=build(config).state_dict(), preprocessing=Preprocessing(image=config.image)
    )


def fresh(patches: torch.Tensor) -> Merged:
    batch, count, _ = patches.shape
    return Merged(patches=patches, sizes=torch.ones(batch, count), owner=torch.arange(count).expand(batch, -1))


@pytest.mark.parametrize("count", [8, 11])
def test_a_merged_token_is_the_mean_of_those_it_stands_for(count: int):
    torch.manual_seed(1)
    first = torch.randn(2, count, 6)
    now = merge_patches(fresh(first), torch.randn(2, count, 5), 3)
    now = merge_patches(now, torch.randn(2, now.patches.shape[1], 5), 2)
    assert now.patches.shape == (2, count - 5, 6)
    for image in range(2):
        for token in range(count - 5):
            mine = now.owner[image] == token
            assert mine.sum() == now.sizes[image, token]
            torch.testing.assert_close(now.patches[image, token], first[image, mine].mean(dim=0))


def test_the_most_alike_are_merged_first():
    likeness = torch.tensor([[[1.0, 0], [0, 1.0], [0.7, 0.7], [0.71, 0.7], [-1, 0.1], [1, -0.4]]])
    now = merge_patches(fresh(torch.arange(6.0).view(1, 6, 1)), likeness, 1)
    assert now.owner[0, 2] == now.owner[0, 3]
    assert now.sizes.sum() == 6
    assert 2.5 in now.patches[0, :, 0]


def test_no_more_than_half_can_be_merged_at_once():
    now = merge_patches(fresh(torch.randn(1, 5, 4)), torch.randn(1, 5, 4), 100)
    assert now.patches.shape[1] == 3


@pytest.mark.parametrize("pool", [parts.ClsPool(), parts.MeanPool(), parts.AttentionPool(num_heads=3, mlp_width=40)])
def test_merging_tokens_that_are_the_same_changes_nothing(pool):
    """A uniform image without positions has 35 equal patches: counted by their size, fewer do the same."""
    config = SMALL.but(pool=pool, position=parts.NoPosition())
    checkpoint = checkpoint_of(config)
    images = torch.full((2, 40, 56, 3), 77, dtype=torch.uint8)
    merged, plain = build_engine(checkpoint, merge=9), build_engine(checkpoint)
    torch.testing.assert_close(merged.vectors(images), plain.vectors(images), rtol=1e-4, atol=1e-5)


def test_a_merged_token_is_at_the_mean_place_of_those_it_stands_for():
    torch.manual_seed(1)
    grid = Size(3, 5)
    now = merge_patches(fresh(torch.randn(2, 15, 6)), torch.randn(2, 15, 5), 6)
    places = now.placed(Layout(grid=grid, frame=grid)).centres(torch.device("cpu"))
    for image, token in itertools.product(range(2), range(9)):
        cells = [divmod(cell, 5) for cell in range(15) if now.owner[image, cell] == token]
        torch.testing.assert_close(places[image, token], torch.tensor(cells, dtype=torch.float32).mean(dim=0))


def test_the_first_third_of_the_blocks_and_the_last_merge_nothing(monkeypatch):
    engine = build_engine(checkpoint_of(SMALL.but(depth=9)), merge=3)
    assert isinstance(engine, LeanEngine)
    (encoder,) = engine.blocks
    assert isinstance(encoder, MergingEncoder)
    seen = []
    for block in encoder.blocks:
        monkeypatch.setattr(block, "with_mlp", lambda x, of=block.with_mlp: seen.append(x.shape[1]) or of(x))
    engine.vectors(torch.zeros(2, 40, 56, 3, dtype=torch.uint8))
    assert first_merging(9) == 3
    assert seen == [36, 36, 36, 33, 30, 27, 24, 21, 1]  # the last block computes the CLS token only


POSITIONS = [parts.Learned(), parts.Rotary(), parts.Rotary(coordinates="normalised"), parts.RotaryMixed()]


@pytest.mark.parametrize("position", POSITIONS)
def test_merging_no_pairs_changes_nothing(position):
    engine = build_engine(checkpoint_of(SMALL.but(position=position)))
    assert isinstance(engine, LeanEngine)
    images = torch.randint(0, 256, (2, 40, 56, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))
    plain = engine.vectors(images)
    engine.blocks = [MergingEncoder(engine.lean, 0, engine.model.position)]
    torch.testing.assert_close(engine.vectors(images), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("position", POSITIONS)
def test_merging_more_costs_more_cosine(position):
    checkpoint = checkpoint_of(SMALL.but(position=position))
    images = torch.randint(0, 256, (6, 40, 56, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    plain = build_engine(checkpoint).vectors(images)
    cosines = [
        torch.nn.functional.cosine_similarity(build_engine(checkpoint, merge=r).vectors(images), plain).mean().item()
        for r in (1, 4, 12)
    ]
    assert cosines == sorted(cosines, reverse=True)
    assert cosines[0] > 0.99


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"position": parts.RelativeBias()}, "RelativeBias has a number per pair of cells"),
        ({"attention": parts.WindowedAttention(window=Size(3, 2))}, "WindowedAttention needs a grid"),
    ],
)
def test_what_needs_a_grid_is_refused(changes, line: str):
    with pytest.raises(VitrailError, match=line):
        build_engine(checkpoint_of(SMALL.but(**changes)), merge=2)
