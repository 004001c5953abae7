"""The models against timm and transformers: the same weights give the same tokens, at the native size and others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from peer_models import relative_error, save_timm, save_transformers
from peers import timm
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.parts import AttentionPool, Prefix, RelativeBias

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3}


def pixels(*image: int) -> Tensor:
    return torch.randn(2, 3, *image, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_a_whole_vit_ti_16_in_float64_equals_timm(tmp_path: Path):
    theirs = save_timm(tmp_path, "vit_tiny_patch16_224").double()
    ours = load(tmp_path).model(dtype=torch.float64)
    image = pixels(224, 224).double()
    assert relative_error(ours(image), theirs(image)) < 1e-10
    tokens, layout = ours.features(image)
    assert tuple(layout.grid) == (14, 14)
    assert relative_error(tokens, theirs.forward_features(image)) < 1e-10


TIMM = {
    "vit_base_patch16_224": (64, 96),
    "deit_tiny_distilled_patch16_224": (64, 96),
    "deit3_small_patch16_224": (64, 96),
    "beit_base_patch16_224": (64, 96),
    "flexivit_small": (64, 96),
    "vit_base_patch16_siglip_224": (64, 96),
    "vit_base_patch16_clip_224": (64, 96),
    "vit_small_patch14_reg4_dinov2": (56, 84),
    "vit_giant_patch14_dinov2": (56, 84),
    "vit_small_patch16_dinov3_qkvb": (64, 96),
    "vit_small_plus_patch16_dinov3": (64, 96),
}


@torch.no_grad()
@pytest.mark.parametrize("name", TIMM)
def test_every_token_equals_timms(name: str, tmp_path: Path):
    image = TIMM[name]
    theirs = save_timm(tmp_path, name, **SMALL, img_size=image)
    checkpoint = load(tmp_path)
    tokens, _ = checkpoint.model().features(pixels(*image))
    assert relative_error(tokens, theirs.forward_features(pixels(*image))) < 1e-5
    exact = theirs.double().forward_features(pixels(*image).double())
    tokens, _ = checkpoint.model(dtype=torch.float64).features(pixels(*image).double())
    # timm and vitrail both make rotary angles in float32, each rounding in its own order
    assert relative_error(tokens, exact) < (1e-7 if "dinov3" in name else 1e-10)


@torch.no_grad()
@pytest.mark.parametrize("seen", [False, True])
def test_attention_pooling_beside_registers_equals_timms(seen: bool, tmp_path: Path):
    """timm's query leaves the prefix out unless pool_include_prefix is set."""
    prefix = {"class_token": True, "reg_tokens": 2, "pool_include_prefix": seen}
    theirs = save_timm(tmp_path, "vit_base_patch16_siglip_224", **SMALL, **prefix, img_size=(64, 96), num_classes=5)
    checkpoint = load(tmp_path)
    config = checkpoint.config
    assert isinstance(config, ViTConfig)
    assert isinstance(config.pool, AttentionPool)
    assert (config.prefix, config.pool.prefix) == (Prefix(registers=2), seen)
    assert relative_error(checkpoint.model()(pixels(64, 96)), theirs(pixels(64, 96))) < 1e-5
    exact = theirs.double()(pixels(64, 96).double())
    assert relative_error(checkpoint.model(dtype=torch.float64)(pixels(64, 96).double()), exact) < 1e-10


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::UserWarning")  # timm's own
@pytest.mark.parametrize("other", [(96, 48), (48, 160)])
def test_a_beit_adapted_to_another_image_equals_timms_loaded_for_it(other: tuple[int, int], tmp_path: Path):
    before = save_timm(tmp_path, "beit_base_patch16_224", **SMALL, img_size=(64, 64))
    theirs = timm.create_model("beit_base_patch16_224", **SMALL, img_size=other).eval()
    theirs.load_state_dict(timm.models.beit.checkpoint_filter_fn(before.state_dict(), theirs))
    adapted, changes = adapt(load(tmp_path), {"image": Size(*other)})
    assert {change.resized.by for change in changes.tensors if change.resized} == {"timm"}
    tokens, _ = adapted.model().features(pixels(*other))
    assert relative_error(tokens, theirs.forward_features(pixels(*other))) < 1e-5


DYNAMIC = (
    "vit_base_patch16_224",
    "flexivit_small",
    "deit3_small_patch16_224",
    "vit_base_patch16_siglip_224",
    "vit_small_patch16_dinov3",
)


@torch.no_grad()
@pytest.mark.parametrize("name", DYNAMIC)
@pytest.mark.parametrize("other", [(96, 64), (48, 160)])
def test_other_images_equal_timms_with_its_dynamic_size(name: str, other: tuple[int, int], tmp_path: Path):
    theirs = save_timm(tmp_path, name, **SMALL, img_size=(64, 96), dynamic_img_size=True)
    tokens, layout = load(tmp_path).model().features(pixels(*other))
    assert tuple(layout.grid) == (other[0] // 16, other[1] // 16)
    assert relative_error(tokens, theirs.forward_features(pixels(*other))) < 1e-5


SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "patch_size": 8}
WITH_MLP = {**SIZES, "intermediate_size": 96}


def interpolated(model: Any, image: Tensor) -> Tensor:
    return model(image, interpolate_pos_encoding=True).last_hidden_state


def plain(model: Any, image: Tensor) -> Tensor:
    return model(image).last_hidden_state


TRANSFORMERS: dict[str, tuple[str, dict[str, Any], Callable[[Any, Tensor], Tensor]]] = {
    "ViT": ("ViTModel", WITH_MLP, interpolated),
    "DeiT": ("DeiTModel", WITH_MLP, interpolated),
    "IJepa": ("IJepaModel", WITH_MLP, interpolated),
    "Dinov2": ("Dinov2Model", SIZES, plain),
    "Dinov2WithRegisters": ("Dinov2WithRegistersModel", SIZES, plain),
    "DINOv3ViT": ("DINOv3ViTModel", {**WITH_MLP, "num_register_tokens": 4}, plain),
    "SiglipVision": ("SiglipVisionModel", WITH_MLP, interpolated),
}


@torch.no_grad()
@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("other", [(32, 32), (24, 56), (16, 16)])
def test_other_images_equal_transformers(name: str, other: tuple[int, int], tmp_path: Path):
    model, options, run = TRANSFORMERS[name]
    theirs = save_transformers(tmp_path, model, f"{name}Config", **options)
    tokens, layout = load(tmp_path).model().features(pixels(*other))
    assert tuple(layout.grid) == (other[0] // 8, other[1] // 8)
    assert relative_error(tokens, run(theirs, pixels(*other))) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("other", [(24, 56), (48, 40)])
def test_relative_biases_on_other_images_equal_transformers(shared: bool, other: tuple[int, int], tmp_path: Path):
    """BEiT's and data2vec's resize their tables at every call. Square sources: of others they swap the sides."""
    kind = {"use_shared_relative_position_bias": True} if shared else {"use_relative_position_bias": True}
    theirs = save_transformers(tmp_path, "BeitModel", "BeitConfig", **WITH_MLP, **kind)
    checkpoint = load(tmp_path)
    assert isinstance(checkpoint.config, ViTConfig)
    assert checkpoint.config.position == RelativeBias(shared=shared, convention="huggingface")
    tokens, _ = checkpoint.model().features(pixels(*other))
    assert relative_error(tokens, plain(theirs, pixels(*other))) < 1e-5
    adapted, _ = adapt(checkpoint, {"image": Size(*other)})
    assert torch.equal(adapted.model().features(pixels(*other))[0], tokens)
