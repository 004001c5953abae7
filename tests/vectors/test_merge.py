from __future__ import annotations

import math

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
from vitrail.vectors.engines import merge
from vitrail.vectors.engines.engine import LeanEngine, agreement_of, build_engine
from vitrail.vectors.engines.merge import MergingEncoder, merge_patches
from vitrail.vectors.engines.merged import Merged
from vitrail.vectors.engines.pack import PackedEngine

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


def fresh(count: int) -> Merged:
    return Merged(sizes=torch.ones(count), owner=torch.arange(count))


def parts_of(now: Merged) -> list[torch.Tensor]:
    """Of every token, which patches it represents."""
    assert torch.equal(now.sizes, now.owner.bincount().float())
    return [now.owner == token for token in range(len(now.sizes))]


@pytest.mark.parametrize("count", [8, 11])
def test_a_merged_token_points_where_the_mean_of_those_it_represents_does(count: int):
    torch.manual_seed(1)
    first = torch.randn(count, 6)
    patches, now = merge_patches(first, fresh(count), 0.9)
    assert len(patches) < count
    means = torch.stack([first[mine].mean(dim=0) for mine in parts_of(now)])
    torch.testing.assert_close(torch.cosine_similarity(patches, means), torch.ones(len(patches)))


@pytest.mark.parametrize("count", [8, 11])
def test_a_merged_token_deviates_as_those_it_represents_do_on_average(count: int):
    torch.manual_seed(1)
    first = torch.randn(count, 6) * torch.arange(1, count + 1)[:, None]
    patches, now = merge_patches(first, fresh(count), 0.9)
    patches, now = merge_patches(patches, now, 1.9)
    assert now.sizes.max() > 2
    means = torch.stack([first[mine].std(dim=-1).mean() for mine in parts_of(now)])
    torch.testing.assert_close(patches.std(dim=-1), means)


def test_merging_patches_without_any_deviation_stays_finite():
    patches, now = merge_patches(torch.full((6, 5), 3.0), fresh(6), 1.5)
    assert len(now.sizes) == 3
    torch.testing.assert_close(patches, torch.full((3, 5), 3.0))


def test_only_pairs_nearer_than_the_threshold_are_merged():
    """Of six tokens, the third and the fourth are nearly alike, and the first and the sixth a little."""
    patches = torch.tensor([[1.0, 0, -1], [0, 1, -1], [3, 2, -5], [3, 2.1, -5.1], [-1, 1, 0], [1, 0.5, -1.5]])
    _, now = merge_patches(patches, fresh(6), 0.01)
    assert sorted(now.sizes.tolist()) == [1, 1, 1, 1, 2]
    assert now.owner[2] == now.owner[3]
    assert len(merge_patches(patches, fresh(6), 0.0)[0]) == 6


def test_what_represents_many_patches_must_be_more_alike(monkeypatch):
    monkeypatch.setattr(merge, "LEAST", 0.0)
    torch.manual_seed(2)
    patches = torch.randn(8, 5)
    lone, many = fresh(8), Merged(sizes=torch.full((8,), 3.0), owner=torch.arange(8).repeat(3))
    for threshold in (0.3, 0.6, 0.9):
        alone = len(merge_patches(patches, lone, threshold / 3)[0])
        assert len(merge_patches(patches, many, threshold)[0]) == alone


def test_no_more_than_half_can_be_merged_at_once():
    assert len(merge_patches(torch.randn(5, 4), fresh(5), 100.0)[0]) == 2
    assert len(merge_patches(torch.randn(1, 4), fresh(1), 100.0)[0]) == 1


def test_an_image_keeps_its_share_of_patches_and_the_nearest_pairs_are_merged_first():
    torch.manual_seed(3)
    first = torch.randn(20, 6)
    patches, now = merge_patches(first, fresh(20), 100.0)
    assert len(patches) == 10
    direction = torch.nn.functional.layer_norm(patches, [6])
    nearest = (direction[::2] @ direction[1::2].mT).amax(dim=1).topk(2)  # of five, as all represent two patches
    left, later = merge_patches(patches, Merged(sizes=torch.full((10,), 2.0), owner=now.owner), 100.0)
    assert len(left) == math.ceil(merge.LEAST * 20)
    assert all((left == patches[2 * stays]).all(dim=1).any() for stays in set(range(5)) - set(nearest.indices.tolist()))
    assert merge_patches(left, later, 100.0) == (left, later)


@pytest.mark.parametrize("pool", [parts.ClsPool(), parts.MeanPool(), parts.AttentionPool(num_heads=3, mlp_width=40)])
def test_merging_tokens_that_are_the_same_changes_nothing(pool):
    """A uniform image without positions has 35 equal patches: counted by their size, fewer do the same."""
    config = SMALL.but(pool=pool, position=parts.NoPosition())
    checkpoint = checkpoint_of(config)
    images = torch.full((2, 40, 56, 3), 77, dtype=torch.uint8)
    merged, plain = build_engine(checkpoint, merge=0.1), build_engine(checkpoint)
    torch.testing.assert_close(merged.vectors(images), plain.vectors(images), rtol=1e-4, atol=1e-5)


def test_a_merged_token_is_at_the_mean_place_of_those_it_represents():
    torch.manual_seed(1)
    grid = Size(3, 5)
    layout = Layout(grid=grid, frame=grid, prefix=2)
    _, now = merge_patches(torch.randn(15, 6), fresh(15), 0.7)
    places = now.placed(layout).centres(torch.device("cpu"))[0]
    assert len(places) < 15
    for token in range(len(places)):
        cells = [divmod(cell, 5) for cell in range(15) if now.owner[cell] == token]
        torch.testing.assert_close(places[token], torch.tensor(cells, dtype=torch.float32).mean(dim=0))


def test_all_blocks_but_the_first_and_the_last_merge_and_a_flat_image_keeps_fewer_tokens(monkeypatch):
    engine = build_engine(checkpoint_of(SMALL.but(depth=6, position=parts.NoPosition())), merge=0.1)
    assert isinstance(engine, LeanEngine)
    (encoder,) = engine.blocks
    assert isinstance(encoder, MergingEncoder)
    seen = []
    for block in encoder.blocks:
        monkeypatch.setattr(block, "with_mlp", lambda x, of=block.with_mlp: seen.append(len(x)) or of(x))
    noise = torch.randint(0, 256, (1, 40, 56, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))
    engine.vectors(torch.cat([torch.zeros_like(noise), noise]))
    assert seen[0] == 72  # both have 35 patches and the CLS token
    assert seen[1] == 72 - 18  # the flat image has 17 of 35 equal patches left, and the noise all
    assert seen[1:5] == sorted(seen[1:5], reverse=True)
    assert seen[5] == 2  # the last block computes the CLS tokens only


def test_an_image_in_which_no_pairs_are_found_is_looked_at_ever_more_rarely(monkeypatch):
    begun, looks = [], []

    def look(patches: torch.Tensor, now: Merged, threshold: float) -> tuple[torch.Tensor, Merged]:
        left, after = merge_patches(patches, now, threshold)
        looks.append((len(begun), len(left) < len(patches)))
        return left, after

    engine = build_engine(checkpoint_of(SMALL.but(depth=16, position=parts.NoPosition())), merge=1e-4)
    assert isinstance(engine, LeanEngine)
    (encoder,) = engine.blocks
    assert isinstance(encoder, MergingEncoder)
    for block in encoder.blocks:
        monkeypatch.setattr(block, "attended", lambda *given, of=block.attended: begun.append(of) or of(*given))
    monkeypatch.setattr(merge, "merge_patches", look)
    noise = torch.randint(0, 256, (1, 40, 56, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))
    engine.vectors(noise)
    assert looks == [(2, False), (4, False), (7, False), (11, False)]  # the second block is the first that looks


def test_merging_in_bfloat16_is_near_merging_in_float32():
    checkpoint = checkpoint_of(SMALL)
    images = torch.randint(0, 256, (3, 40, 56, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    half, whole = (build_engine(checkpoint, merge=0.02, bf16=bf16).vectors(images) for bf16 in (True, False))
    assert agreement_of(half, whole).mean > 0.99


POSITIONS = [parts.Learned(), parts.Rotary(), parts.Rotary(coordinates="normalised"), parts.RotaryMixed()]


@pytest.mark.parametrize("position", POSITIONS)
def test_merging_without_pairs_that_are_near_changes_nothing(position):
    engine = build_engine(checkpoint_of(SMALL.but(position=position)))
    assert isinstance(engine, LeanEngine)
    images = torch.randint(0, 256, (2, 40, 56, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))
    plain = engine.vectors(images)
    engine.blocks = [MergingEncoder(engine.lean, 1e-9, engine.model.position)]
    torch.testing.assert_close(engine.vectors(images), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("position", POSITIONS)
def test_merging_more_costs_more_cosine(position):
    checkpoint = checkpoint_of(SMALL.but(position=position))
    images = torch.randint(0, 256, (6, 40, 56, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    plain = build_engine(checkpoint).vectors(images)
    merged = [build_engine(checkpoint, merge=threshold).vectors(images) for threshold in (0.02, 0.3, 0.9)]
    cosines = [agreement_of(vectors, plain).mean for vectors in merged]
    assert cosines == sorted(cosines, reverse=True)
    assert cosines[0] > 0.99


def test_images_of_their_own_sizes_are_merged_and_each_gets_the_vector_that_it_gets_alone():
    checkpoint = checkpoint_of(SMALL.but(depth=4, remainder="pad"))
    dice = torch.Generator().manual_seed(5)
    coarse = [torch.randint(0, 256, (*size, 3), dtype=torch.uint8, generator=dice) for size in ((5, 7), (3, 4), (5, 7))]
    images = [each.repeat_interleave(8, 0).repeat_interleave(8, 1) for each in coarse]
    images[0][:, 24:] = 90
    engine, plain = (build_engine(checkpoint, merge=merge) for merge in (0.3, 0.0))
    assert isinstance(engine, LeanEngine)
    assert isinstance(plain, LeanEngine)
    packed = PackedEngine(engine)
    together = packed.vectors(images)
    torch.testing.assert_close(together, torch.cat([packed.vectors([image]) for image in images]), rtol=2e-5, atol=2e-5)
    assert not torch.allclose(together, PackedEngine(plain).vectors(images), rtol=1e-3, atol=1e-3)


def test_a_model_made_with_adaptive_patches_is_not_merged_padded():
    config = SMALL.but(image=Size(48, 64), embedding=parts.Adaptive(patches=(Size(8, 8), Size(16, 16))))
    engine = build_engine(checkpoint_of(config), merge=0.2)
    with pytest.raises(VitrailError, match="AdaptiveEngine"):
        engine.vectors(torch.zeros(1, 48, 64, 3, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"position": parts.RelativeBias()}, "RelativeBias has a number per pair of cells"),
        ({"attention": parts.WindowedAttention(window=Size(3, 2))}, "WindowedAttention needs a grid"),
    ],
)
def test_what_needs_a_grid_is_refused(changes, line: str):
    with pytest.raises(VitrailError, match=line):
        build_engine(checkpoint_of(SMALL.but(**changes)), merge=0.2)
