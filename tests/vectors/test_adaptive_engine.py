from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from command import call
from embedding import photos, save_weights
from vitrail import parts
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adaptive import adaptive_config, with_adaptive_patches
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.adaptive import to_dense, tokens_saved
from vitrail.nn.build import build
from vitrail.nn.vit import ViT
from vitrail.vectors.engines import merge
from vitrail.vectors.engines.adaptive import AdaptiveEngine
from vitrail.vectors.engines.engine import LeanEngine, agreement, build_engine
from vitrail.vectors.engines.merge import merge_patches
from vitrail.vectors.engines.merged import Merged

SMALL = ViTConfig(
    image=Size(48, 64),
    embedding=parts.Patches(patch=Size(8, 8)),
    width=48,
    depth=3,
    num_heads=3,
    mlp=parts.Mlp(width=80),
)
POOLS = [parts.ClsPool(), parts.MeanPool(), parts.AttentionPool(num_heads=3, mlp_width=40)]


def checkpoint_of(config: ViTConfig) -> Checkpoint:
    torch.manual_seed(0)
    tensors = {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in build(config).state_dict().items()}
    return Checkpoint(config=config, tensors=tensors, preprocessing=Preprocessing(image=config.image))


def adaptive(checkpoint: Checkpoint, threshold: float, likeness: float = 0.0) -> AdaptiveEngine:
    engine = build_engine(with_adaptive_patches(checkpoint, threshold), merge=likeness)
    assert isinstance(engine, LeanEngine)
    return AdaptiveEngine(engine)


def images(count: int = 3) -> torch.Tensor:
    """The left part of each is flat, of another width in every image."""
    dice = torch.Generator().manual_seed(2)
    made = torch.randint(0, 256, (count, 48, 64, 3), dtype=torch.uint8, generator=dice)
    for index in range(count):
        made[index, :, : 16 * (index % 3 + 1)] = 10 * index
    return made


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("position", [parts.Learned(), parts.SinCos2d(), parts.Rotary()])
def test_a_threshold_of_0_is_the_model_as_it_was(pool, position):
    checkpoint = checkpoint_of(SMALL.but(pool=pool, position=position))
    plain = build_engine(checkpoint).vectors(images())
    torch.testing.assert_close(adaptive(checkpoint, 0).vectors(images()), plain, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("pool", POOLS)
def test_large_patches_of_a_uniform_image_without_positions_change_nothing(pool):
    checkpoint = checkpoint_of(SMALL.but(pool=pool, position=parts.NoPosition()))
    flat = torch.full((2, 48, 64, 3), 77, dtype=torch.uint8)
    plain = build_engine(checkpoint).vectors(flat)
    torch.testing.assert_close(adaptive(checkpoint, math.inf).vectors(flat), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pool", POOLS)
def test_a_large_patch_counts_as_often_as_the_cells_it_covers(pool):
    """The reference: the model's own blocks on a sequence in which every cell has its token."""
    checkpoint = checkpoint_of(SMALL.but(pool=pool))
    model, plain = with_adaptive_patches(checkpoint, 0.3).model(), checkpoint.model()
    assert isinstance(model, ViT)
    assert isinstance(plain, ViT)
    assert plain.norm is not None
    pixels = (images().permute(0, 3, 1, 2) / 255 - torch.tensor(checkpoint.preprocessing.mean).view(3, 1, 1)) / (
        torch.tensor(checkpoint.preprocessing.std).view(3, 1, 1)
    )
    with torch.inference_mode():
        x, layout = model.embed(pixels)
        every = torch.cat([x[:, :1], to_dense(x[:, 1:], layout).flatten(2).mT], dim=1)
        _, regular = plain.embed(pixels)
        for block in plain.blocks:
            every = block(every, regular)
        expected = plain.pool(plain.norm(every), regular)
    assert x.shape[1] < every.shape[1]
    torch.testing.assert_close(adaptive(checkpoint, 0.3).vectors(images()), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("likeness", [0.0, 0.4])
def test_an_image_gets_the_vector_that_it_gets_alone(likeness: float):
    engine = adaptive(checkpoint_of(SMALL), 0.3, likeness)
    alone = torch.cat([engine.vectors(image[None]) for image in images()])
    torch.testing.assert_close(engine.vectors(images()), alone, rtol=2e-5, atol=2e-5)


def test_an_image_that_would_save_less_than_it_costs_keeps_its_patches():
    checkpoint = checkpoint_of(SMALL.but(image=Size(64, 96)))
    busy = torch.randint(0, 256, (4, 64, 96, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    busy[1:3, 16:32, 32:48] = 90  # one flat cell of 24
    busy[3, :, 48:] = 90
    engine = adaptive(checkpoint, 0.3)
    assert tokens_saved(engine.engine.embed(busy)[1]).kept == (96, 93, 93, 60)
    pairs = zip(engine.vectors(busy), build_engine(checkpoint).vectors(busy), strict=True)
    assert [torch.allclose(*pair, rtol=1e-5, atol=1e-5) for pair in pairs] == [True, True, True, False]


def test_a_higher_threshold_costs_more_cosine_on_trained_weights():
    checkpoint = load("default")
    dice = torch.Generator().manual_seed(1)
    coarse = torch.randint(0, 256, (6, 3, 7, 7), generator=dice).float()
    smooth = torch.nn.functional.interpolate(coarse, (32, 32), mode="bicubic").clamp(0, 255).byte()
    plain = build_engine(checkpoint)
    cosines = [
        agreement(adaptive(checkpoint, t), plain, smooth.permute(0, 2, 3, 1)).mean for t in (0.0, 0.3, 0.6, math.inf)
    ]
    assert cosines == sorted(cosines, reverse=True)
    assert cosines[0] > 0.99999
    assert cosines[-1] < 0.99


@pytest.mark.parametrize("position", [parts.Learned(), parts.Rotary(), parts.RotaryMixed()])
def test_large_patches_are_merged_as_what_they_cover(position, monkeypatch):
    """Merging looks at tokens that represent four cells and one, and where no pair is near, it changes nothing."""
    checkpoint = checkpoint_of(SMALL.but(depth=4, position=position))
    seen = []

    def look(patches: torch.Tensor, now: Merged, threshold: float) -> tuple[torch.Tensor, Merged]:
        seen.append(sorted(set(now.sizes.tolist())))
        return merge_patches(patches, now, threshold)

    monkeypatch.setattr(merge, "merge_patches", look)
    cut = adaptive(checkpoint, 0.3).vectors(images())
    torch.testing.assert_close(adaptive(checkpoint, 0.3, 1e-9).vectors(images()), cut, rtol=2e-5, atol=2e-5)
    assert seen == [[1.0, 4.0]] * 3 + [[1.0, 4.0]] * 3 or seen == [[1.0, 4.0]] * 3
    assert not torch.allclose(adaptive(checkpoint, 0.3, 0.6).vectors(images()), cut, rtol=1e-3, atol=1e-3)


def test_merging_a_uniform_image_of_large_patches_changes_nothing():
    checkpoint = checkpoint_of(SMALL.but(depth=4, position=parts.NoPosition(), pool=parts.MeanPool()))
    flat = torch.full((2, 48, 64, 3), 77, dtype=torch.uint8)
    plain = build_engine(checkpoint).vectors(flat)
    torch.testing.assert_close(adaptive(checkpoint, math.inf, 0.2).vectors(flat), plain, rtol=1e-4, atol=1e-5)


def test_int8_runs_on_adaptive_patches():
    checkpoint = with_adaptive_patches(checkpoint_of(SMALL), 0.3)
    engine = build_engine(checkpoint, "int8", calibration=images(24))
    assert isinstance(engine, LeanEngine)
    found = agreement(AdaptiveEngine(engine), adaptive(checkpoint_of(SMALL), 0.3), images())
    assert found.mean > 0.98


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"embedding": parts.Patches(patch=Size(16, 16), stride=Size(8, 8)), "position": parts.SinCos2d()}, "overlap"),
        ({"embedding": parts.Stem(patch=Size(8, 8), widths=(8, 16, 24))}, "Stem"),
        ({"image": Size(48, 56)}, "16x16"),
        ({"position": parts.RelativeBias()}, "regular grid"),
    ],
)
def test_models_that_cannot_have_adaptive_patches_are_refused(changes, why):
    with pytest.raises(VitrailError, match=why):
        adaptive_config(SMALL.but(**changes), 0.3)


def embed(folder: Path, weights: Path | str, *more: str) -> int:
    """The command on some photographs, into folder/out."""
    source = photos(folder / "photos", 6)
    fixed = ("--adaptive", "0.3", "--workers", "1", "--out", str(folder / "out"))
    return call("embed", str(source), "--weights", str(weights), *fixed, *more)


def test_the_command_measures_the_cost_in_cosine_of_the_model_that_comes_along_too(tmp_path: Path, capsys):
    assert embed(tmp_path, "default") == 0
    printed = capsys.readouterr().out
    assert "larger patches below detail 0.3" in printed
    assert "cosine    to float32 on" in printed
    assert '"cosine_to_float32"' in (tmp_path / "out" / "manifest.json").read_text()


def test_the_command_merges_what_adaptive_patches_leave(tmp_path: Path, capsys):
    assert embed(tmp_path, "default", "--merge", "0.2") == 0
    printed = capsys.readouterr().out
    assert "larger patches below detail 0.3" in printed
    assert "tokens that differ by less than 0.2 merged" in printed


@pytest.mark.parametrize("other", [["--native"], ["--scales", "1,2"], ["--tokens", "npy"]])
def test_adaptive_patches_go_alone(other: list[str], tmp_path: Path, capsys):
    weights = save_weights(tmp_path / "w.safetensors", SMALL.but(classes=0))
    assert embed(tmp_path, weights, *other) == 2
    printed = capsys.readouterr().err
    assert "--adaptive" in printed
    assert "cannot be combined" in printed
    assert not (tmp_path / "out").exists()
