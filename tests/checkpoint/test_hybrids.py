"""timm's hybrids, with a ResNet or convolutions before their blocks: equal outputs, and written back to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from peer_models import relative_error, save_timm
from peers import timm
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.write import save
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import Mlp, ResNetStem, Stem

IMAGE = (64, 96)
SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": IMAGE, "num_classes": 7}
NAMES: dict[str, dict[str, Any]] = {
    "vit_tiny_r_s16_p8_224": SMALL,
    "vit_small_r26_s32_224": SMALL,
    "vit_base_r50_s16_224": {**SMALL, "in_chans": 1},
    "vit_base_mci_224": {"depth": 1, "img_size": IMAGE, "num_classes": 7},  # its stem has width 768
}


def pixels(channels: int, *image: int) -> Tensor:
    return torch.randn(2, channels, *image, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_timms_outputs_and_tensors(name: str, tmp_path: Path):
    theirs = save_timm(tmp_path / "timm", name, **NAMES[name])
    ours = load(tmp_path / "timm")
    images = pixels(ours.config.channels, *IMAGE)
    found = ours.model()(images)
    assert relative_error(found, theirs(images)) < 1e-5
    assert not torch.allclose(found[0], found[1], atol=1e-3)
    exact = theirs.double()(images.double())
    assert relative_error(ours.model(dtype=torch.float64)(images.double()), exact) < 1e-10

    save(replace(ours, dialect="vitrail", family="stem", origin={}), tmp_path / "back", dialect="timm")
    again, state = load_file(tmp_path / "back" / "model.safetensors"), theirs.float().state_dict()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], value) for key, value in state.items())
    assert load(tmp_path / "back").config == ours.config
    rebuilt = timm.create_model(f"local-dir:{tmp_path / 'back'}", pretrained=True).eval()
    assert relative_error(rebuilt(images), theirs(images)) < 1e-6


@torch.no_grad()
def test_an_adapted_hybrid_is_timms_with_resampled_positions(tmp_path: Path):
    theirs = save_timm(tmp_path / "timm", "vit_base_r50_s16_224", **{**SMALL, "img_size": (64, 64)})
    wide, changes = adapt(load(tmp_path / "timm"), {"image": "96x48"})
    assert changes.resampled == ("position.table",)
    theirs.set_input_size((96, 48))
    assert relative_error(wide.model()(pixels(3, 96, 48)), theirs(pixels(3, 96, 48))) < 1e-5


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"patch": 32}, "ResNetStem of patch 16x16 cannot change to patch 32x32; keep its patch"),
        ({"channels": 1}, "channels change from 3 to 1, and a ResNetStem standardises its filters"),
        ({"frames": 4}, "ResNetStem cuts still images and has no form for clips of 4 frames"),
    ],
)
def test_what_weights_of_a_resnet_cannot_follow_is_refused(change: dict[str, Any], why: str, tmp_path: Path):
    save_timm(tmp_path / "timm", "vit_base_r50_s16_224", **SMALL)
    with pytest.raises(VitrailError, match=why):
        adapt(load(tmp_path / "timm"), change)


def test_an_image_whose_maps_timm_would_pad_is_refused(tmp_path: Path):
    save_timm(tmp_path / "timm", "vit_base_r50_s16_224", **{**SMALL, "img_size": (64, 72)})
    with pytest.raises(VitrailError, match="image 64x72 is no multiple of the ResNet's 16x16: the library pads maps"):
        load(tmp_path / "timm")


def test_a_config_of_other_cells_than_the_weights_is_refused(tmp_path: Path):
    save_timm(tmp_path / "timm", "vit_tiny_r_s16_p8_224", **SMALL)
    config = tmp_path / "timm" / "config.json"
    config.write_text(config.read_text().replace('"embed_dim"', '"patch_size": 4, "embed_dim"'))
    with pytest.raises(VitrailError, match="patch_size that is not the 8x8 cells of the weights"):
        load(tmp_path / "timm")


@pytest.mark.parametrize(
    ("embedding", "why"),
    [
        (ResNetStem(depths=(1, 1), width=8, groups=4, cells=Size(2, 2)), "its ResNets have width 64, 32 groups and"),
        (Stem(patch=Size(16, 16), widths=(8, 12), overlap=False), "its only stem is Stem"),
        (Stem(patch=Size(16, 16), widths=(4, 6, 8, 10)), "its only stem is Stem"),
    ],
)
def test_what_timm_has_no_hybrid_for_is_not_written(embedding: ResNetStem | Stem, why: str, tmp_path: Path):
    size = Size(32, 48)
    config = ViTConfig(image=size, embedding=embedding, width=48, depth=1, num_heads=3, mlp=Mlp(width=60))
    tensors = build(config).state_dict()
    checkpoint = Checkpoint(config=config, tensors=tensors, preprocessing=Preprocessing(image=size))
    with pytest.raises(VitrailError, match=why):
        save(checkpoint, tmp_path / "timm", dialect="timm")
